"""What the pages and the API do with dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlencode

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from nonet.base.actor import who as actor
from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.operate.dead_letters import letter_filter
from nonet.operate.letter_bulk import Outcome, in_words, resubmit_many
from nonet.rules.permissions import Action, Principal
from nonet.stores.sql.dead_letters import Cluster, DeadLetter, DeadLetters, LetterFilter, Status
from nonet.web.bulks import Bulk
from nonet.web.site import Site, ensure

if TYPE_CHECKING:
    from nonet.tasks.registry import Registry

# Pages must not wait for a database that hangs as long as daemons do.
_ANSWER_SECONDS = 3.0
# Clusters of 100,000 letters cost a database 0.1 s.
_SECONDS = 5.0
WITHIN = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
"""Choices of how long ago a letter may have died."""
WORDS = {Status.PENDING: "open", Status.DISPATCHED: "resubmitted", Status.FAILED: "failed again"}
"""What pages call a status."""


Row = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""The number of a row, as far as databases can hold it."""


_Text = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Search(BaseModel, frozen=True):
    """Which letters a page shows. Empty: any.

    Attributes:
        task: full or bare name of the class.
        error: a part of the exception's class name.
        status: see `Status`.
        cluster: their fingerprint.
        id: id of the task.
        within: one of `WITHIN`.
    """

    task: _Text = ""
    error: _Text = ""
    status: Literal["", "PENDING", "DISPATCHED", "FAILED"] = ""
    cluster: _Text = ""
    id: Annotated[_Text, AfterValidator(str.strip)] = ""
    within: Literal["", "hour", "day", "week"] = ""

    def selection(self, registry: Registry) -> LetterFilter:
        """Return the filter.

        Raises:
            UnknownTaskError: no class has this bare name.
        """
        age = WITHIN.get(self.within)
        return letter_filter(
            lambda: registry,
            task=self.task,
            cluster=self.cluster,
            error=self.error,
            status=self.status,
            task_id=self.id,
            died_after=None if age is None else datetime.now(UTC) - age,
        )

    @property
    def given(self) -> dict[str, str]:
        """The fields that are not empty."""
        return {name: value for name, value in self.model_dump().items() if value}

    def query(self, **changes: str | int) -> str:
        """Return the query of a URL with these fields, and some changed; an empty one is left out.

        >>> Search(task="a:A", within="day").query(within="", before=7)
        '?task=a%3AA&before=7'
        """
        fields = {name: value for name, value in {**self.given, **changes}.items() if value != ""}
        return f"?{urlencode(fields)}" if fields else "?"


def in_words_of(search: Search) -> str:
    """Describe which letters a search selects, for the audit.

    >>> in_words_of(Search(task="a:A", within="day")), in_words_of(Search())
    ('with task a:A, within day', 'all')
    """
    parts = [f"{name} {value}" for name, value in search.given.items()]
    return f"with {', '.join(parts)}" if parts else "all"


@asynccontextmanager
async def _store(site: Site) -> AsyncIterator[DeadLetters]:
    """Give the database a few seconds to answer what the block asks.

    Raises:
        ServerUnreachableError: it did not.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            yield await site.nonet.dead_letters()
    except TimeoutError:
        raise ServerUnreachableError(
            f"the SQL database did not answer within {_ANSWER_SECONDS:g} s: 'task-run doctor' "
            "checks it"
        ) from None


async def clusters(site: Site, selection: LetterFilter, key: object) -> list[Cluster]:
    """Read clusters, at most once in five seconds for all viewers.

    Args:
        key: tells selections apart that mean the same a moment later.
    """

    async def read() -> list[Cluster]:
        async with _store(site) as store:
            return await store.clusters(selection)

    return await site.shared.read(("dead letters", "clusters", key), _SECONDS, read)


async def page_of(
    site: Site, selection: LetterFilter, limit: int, before: int | None
) -> tuple[list[DeadLetter], int | None]:
    """Read a page of letters, the newest first, and where the next page begins (None: nowhere)."""
    filters = {name: getattr(selection, name) for name in LetterFilter.__dataclass_fields__}
    async with _store(site) as store:
        found = await store.list(limit=limit + 1, before=before, **filters)
    return found[:limit], found[limit - 1].id if len(found) > limit else None


async def one(site: Site, row: int) -> DeadLetter:
    """Read a letter.

    Raises:
        NotFoundError: no such row.
    """
    async with _store(site) as store:
        return await store.get(row)


async def row_of_task(site: Site, id: str) -> int | None:
    """Return the row of the newest letter of a task, if it has one."""
    async with _store(site) as store:
        found = await store.list(limit=1, task_id=id)
    return found[0].id if found else None


async def measured(site: Site, selection: LetterFilter) -> tuple[int, LetterFilter]:
    """How many letters a change would concern, and a filter for those that exist now."""
    async with _store(site) as store:
        number, last = await store.measure(selection)
    return number, replace(selection, up_to=last if selection.up_to is None else selection.up_to)


async def resubmit(site: Site, row: int, who: Principal, *, again: bool) -> str:
    """Submit one letter again, and return the id of the new task."""
    nonet = site.nonet
    async with site.changing(who, Action.RESUBMIT, f"dead letter {row}"):
        handle = await nonet.resubmit(row, again=again)
        if handle.created:
            await nonet.stores.events.log("dlq-resubmit", actor(), in_words(1, row))
    return str(handle)


async def discard(site: Site, row: int, who: Principal, note: str) -> None:
    """Delete one letter."""
    what = f"dead letter {row}: {note}" if note else f"dead letter {row}"
    async with site.changing(who, Action.DISCARD, what):
        async with _store(site) as store:
            await store.discard(row)
        await _record(site, "dlq-discard", in_words(1, row, note))


async def annotate(site: Site, row: int, who: Principal, note: str) -> None:
    """Write a note on a letter."""
    what = f"note on dead letter {row}: {note}"
    async with site.changing(who, Action.RESUBMIT, what), _store(site) as store:
        await store.annotate(row, note)


async def start_resubmission(
    site: Site, who: Principal, selection: LetterFilter, rate: float | None, text: str
) -> tuple[Bulk, int]:
    """Begin to submit letters again that were not yet; it goes on after the request.

    Args:
        selection: with `up_to`.
        rate: how many start in a second; None: all at once.
        text: which letters, for people.

    Returns:
        The change, and the highest row that it may concern.
    """
    number, exact = await measured(site, replace(selection, status=Status.PENDING))
    speed = "" if rate is None else f" at {rate:g} a second"
    letters = await site.nonet.dead_letters()
    bulk = Bulk(Action.RESUBMIT, f"resubmit {text}{speed}", who.name, number)
    async with site.changing(who, Action.RESUBMIT, f"{number} dead letters: {text}{speed}"):
        work = resubmit_many(letters, site.nonet.client, letters.pages(exact), rate=rate)

        async def record(done: Bulk) -> None:
            await _record(site, "dlq-resubmit", in_words(done.done, done.last))

        return site.bulks.start(bulk, work, record), exact.up_to or 0


async def start_discarding(
    site: Site, who: Principal, selection: LetterFilter, note: str, text: str
) -> tuple[Bulk, int]:
    """Begin to delete letters; it goes on after the request. See `start_resubmission`."""
    number, exact = await measured(site, selection)
    letters = await site.nonet.dead_letters()
    bulk = Bulk(Action.DISCARD, f"discard {text}", who.name, number)
    about = f": {note}" if note else ""
    async with site.changing(who, Action.DISCARD, f"{number} dead letters: {text}{about}"):

        async def record(done: Bulk) -> None:
            await _record(site, "dlq-discard", f"{done.done} rows, {text}{about}")

        return site.bulks.start(bulk, _purged(letters, exact), record), exact.up_to or 0


async def stop(site: Site, who: Principal, id: str) -> Bulk:
    """Stop a change of many letters.

    Raises:
        HTTPException: 403, `who` may not make such changes.
        NotFoundError: this process does not know it.
    """
    bulk = site.bulks.get(id)
    ensure(site, who, bulk.action)
    async with site.changing(who, bulk.action, f"stop: {bulk.text}"):
        return site.bulks.stop(id)


async def _purged(letters: DeadLetters, selection: LetterFilter) -> AsyncIterator[list[Outcome]]:
    async for number in letters.purge(selection):
        yield [Outcome(0)] * number


async def _record(site: Site, kind: str, text: str) -> None:
    """Write a change of SQL to the event stream; it stays if Redis does not answer."""
    with suppress(NonetError):  # the audit has it
        await site.nonet.stores.events.log(kind, actor(), text)
