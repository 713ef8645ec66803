"""The search form of tasks: its fields, as they stand in the address of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from fastapi import Depends, Request

from nonet.app import Nonet
from nonet.stores.namespace.history import STATES as END_STATES, EndedFilter, EndedPage
from nonet.stores.namespace.task_queries import TaskQuery
from nonet.stores.queue.places import LIVE_STATES, UNFINISHED, TaskFilter
from nonet.tasks.handles import TaskPage

# Values of the field `state` besides the states: any that is live, any that has ended.
LIVE, ENDED = "live", "ended"
CHOICES: Sequence[str] = (LIVE, *LIVE_STATES, ENDED, *END_STATES)
WITHIN: Mapping[str, timedelta] = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
LIMIT = 100
# What one page examines in each place, so that it takes less than 0.3 s: "Search on" continues.
# Labels are in the messages of tasks, which are read one by one.
_BUDGET, _LABELLED, _ENDED = 3000, 1000, 5000
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Search:
    """The fields of the form; empty: any.

    Attributes:
        q: an id, which is opened instead of a list.
        state: one of `CHOICES`.
        task: full or bare class name.
        label: ``NAME=VALUE``.
        lock: name of a lock, of live tasks only.
        worker: ``pid@host``.
        error: a part of the last error.
        within: a key of `WITHIN`: submitted, or for ended tasks ended, at most this long ago.
        cursor: of the page before.
    """

    q: str = ""
    state: str = LIVE
    task: str = ""
    label: str = ""
    lock: str = ""
    worker: str = ""
    error: str = ""
    within: str = ""
    cursor: str = ""

    @property
    def is_ended(self) -> bool:
        """Whether it is about ended tasks."""
        return self.state == ENDED or self.state in END_STATES

    @property
    def has_filter(self) -> bool:
        """Whether it selects by more than the state."""
        return any((self.task, self.label, self.lock, self.worker, self.error, self.within))

    @property
    def labels(self) -> dict[str, str]:
        """The label as a mapping.

        Raises:
            ValueError: it is not ``NAME=VALUE``.
        """
        if not self.label:
            return {}
        name, equals, value = self.label.partition("=")
        if not (name and equals):
            raise ValueError(f"label {self.label!r:.80} must be NAME=VALUE")
        return {name.strip(): value.strip()}

    def query(self, **changes: str) -> str:
        """Return the query of the address of the page, with some fields changed."""
        fields = asdict(replace(self, **changes))
        kept = {name: value for name, value in fields.items() if value}
        if kept.get("state") == LIVE:
            del kept["state"]
        return f"?{urlencode(kept)}" if kept else "?"

    @property
    def cleared(self) -> str:
        """The query of the same list without filters."""
        return Search(state=self.state).query()

    async def live_filter(self, nonet: Nonet) -> TaskFilter:
        """Return the filter for the live tasks that can be cancelled."""
        states = (self.state,) if self.state in UNFINISHED else UNFINISHED
        return await self._query().live(nonet.broker, nonet.stores.results, states)

    async def ended_filter(
        self, nonet: Nonet, states: Sequence[str] = (), until: datetime | None = None
    ) -> EndedFilter:
        """Return the filter for ended tasks.

        Args:
            states: instead of `state`.
            until: latest end.
        """
        own = (self.state,) if self.state in END_STATES else ()
        query = replace(self._query(), until=until)
        return await query.ended(nonet.broker, nonet.stores.results, tuple(states) or own)

    def _query(self) -> TaskQuery:
        return TaskQuery(
            task=self.task,
            labels=self.labels,
            worker=self.worker,
            error=self.error,
            since=WITHIN.get(self.within),
        )


def parse(request: Request) -> Search:
    """Read the fields from the address; unknown values count as empty.

    Raises:
        ValueError: a value is too long.
    """
    fields: dict[str, Any] = {}
    for name in Search.__dataclass_fields__:
        value = request.query_params.get(name, "").strip()
        if len(value) > (4000 if name == "cursor" else _LONGEST):
            raise ValueError(f"{name}: more than {_LONGEST} characters")
        fields[name] = value
    if fields["state"] not in CHOICES:
        fields["state"] = LIVE
    if fields["within"] not in WITHIN:
        fields["within"] = ""
    return Search(**fields)


SearchOf: TypeAlias = Annotated[Search, Depends(parse)]


async def find(search: Search, nonet: Nonet) -> TaskPage | EndedPage:
    """Read a page of tasks.

    Raises:
        ValueError: a label, or the cursor, is not valid.
        InvalidArgumentsError: `lock` is not the name of a lock.
        ServerUnreachableError: Redis does not answer.
    """
    if search.is_ended:
        selection = await search.ended_filter(nonet)
        return await nonet.stores.history.page(
            selection, limit=LIMIT, budget=_ENDED, cursor=search.cursor
        )
    return await nonet.list_tasks(
        state=search.state if search.state in LIVE_STATES else None,
        task=search.task or None,
        labels=search.labels,
        worker=search.worker or None,
        lock=search.lock or None,
        error=search.error,
        since=WITHIN.get(search.within),
        limit=LIMIT,
        budget=_LABELLED if search.label else _BUDGET,
        cursor=search.cursor,
    )
