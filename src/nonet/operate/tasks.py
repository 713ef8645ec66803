"""Live tasks: which there are and what keeps them; cancel one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from nonet.base.durations import moment
from nonet.base.errors import ConflictError
from nonet.operate.audited import audited
from nonet.operate.lists import PRINTABLE, Age, ListQuery, Searched, opened, searched
from nonet.rules.permissions import Action
from nonet.stores.namespace.task_queries import TaskQuery, page_of_lock
from nonet.stores.queue.places import UNFINISHED, TaskFilter
from nonet.tasks.handles import TaskStatus

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.stores import Stores

LiveState = Literal["queued", "delayed", "waiting", "running", "dying"]
Label = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f=]+=[^\x00-\x1f\x7f]+$")
]
# How many tasks a list examines, so that it takes less than 0.3 s. Labels are in the messages of
# tasks, which are read one by one.
_BUDGET, _LABELLED = 5000, 1000


def text(description: str) -> Any:
    """Return the field of a query for a short text."""
    return Field(default="", max_length=1000, pattern=PRINTABLE, description=description)


class AnyTaskQuery(ListQuery):
    """What can be asked of live and of ended tasks."""

    task: str = text("Only this task class: its full name `category:Class`, or its bare name.")
    label: tuple[Label, ...] = Field(
        default=(),
        max_length=20,
        description="Only tasks with this label, `NAME=VALUE`. Repeatable.",
    )
    worker: str = text("Only tasks that this worker has, or ended: `pid@host` or its id.")
    error: str = text("Only tasks whose last error contains this text.")
    since: Age = Field(
        default="", description="Only tasks that were submitted, or ended, since then: `1h`."
    )
    search: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="Examine at most this many tasks in each place; by default 5000, or 1000 if a "
        "label is given.",
    )

    @property
    def labels(self) -> dict[str, str]:
        """The labels by name."""
        return {name: value for name, _, value in (pair.partition("=") for pair in self.label)}

    @property
    def budget(self) -> int:
        """How many tasks to examine."""
        return self.search or (_LABELLED if self.label else _BUDGET)

    def asked(self, **more: Any) -> TaskQuery:
        """Return the query for the stores."""
        return TaskQuery(
            task=self.task or None,
            labels=self.labels,
            worker=self.worker or None,
            error=self.error,
            since=datetime.now(UTC) - moment(self.since) if self.since else None,
            **more,
        )


class LiveQuery(AnyTaskQuery):
    """Which live tasks are listed."""

    state: LiveState | None = Field(default=None, description="Only tasks in this state.")
    lock: str = text("Only tasks that hold this lock or limiter, or wait for it.")
    tenant: str = text("Only tasks of this tenant.")

    async def filter(self, stores: Stores) -> TaskFilter:
        """Return the filter for the stores."""
        states = (self.state,) if self.state else ()
        return await self.asked(tenant=self.tenant).live(stores.broker, stores.results, states)

    async def cancellable(self, stores: Stores) -> TaskFilter:
        """Return the filter for the tasks of the list that can be cancelled.

        Raises:
            ValueError: it selects by lock, or dying tasks.
        """
        if self.lock or self.state == "dying":
            raise ValueError("tasks are not cancelled by lock, nor while they are dying")
        found = await self.filter(stores)
        return found if self.state else replace(found, states=UNFINISHED)


async def find(stores: Stores, query: LiveQuery) -> Searched[TaskStatus]:
    """Return live tasks: running ones first, then waiting, dying, queued and delayed ones.

    A page with a filter can have fewer items than `limit`, even none, although more follow. The
    list of a lock has one page.

    Raises:
        InvalidArgumentsError: `lock` is not the name of a lock.
    """
    selection = await query.filter(stores)
    if query.lock:
        page = page_of_lock(stores.results, stores.locks, query.lock, selection, query.limit)
        return searched(await page)
    found = await stores.results.page(
        selection, limit=query.limit, budget=query.budget, cursor=opened(query.cursor)
    )
    return searched(found)


@audited(Action.CANCEL, "task {id}: cancel: {reason}")
async def cancel(client: Client, id: str, reason: str = "") -> str:
    """Cancel a task in whatever state it is; it does not run any further.

    Returns:
        ``cancelled``; or ``cancelling`` while its worker ends it, within seconds.

    Raises:
        ConflictError: it has ended, or is unknown.
    """
    state = (await client.cancel([id], reason=reason))[id]
    if state not in ("cancelled", "cancelling"):
        raise ConflictError(f"task {id} is {state or 'gone'} and can no longer be cancelled")
    return state
