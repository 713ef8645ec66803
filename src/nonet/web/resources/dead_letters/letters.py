"""What the API and the pages do with dead letters, on behalf of a caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field

from nonet.base.actor import who as actor
from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.operate import dead_letters
from nonet.operate.dead_letters import (
    LARGEST_ROW,
    ClusterPage,
    LetterDetails,
    LetterQuery,
    LetterSelection,
    LetterView,
)
from nonet.operate.lists import Page
from nonet.operate.resubmission import Outcome
from nonet.rules.letters import LetterFilter
from nonet.rules.permissions import Action, Principal
from nonet.stores.sql.dead_letters import DeadLetters
from nonet.web.bulks import Bulk
from nonet.web.site import Site, ensure, may

# Pages must not wait for a database that hangs as long as daemons do.
_ANSWER_SECONDS = 3.0
# Clusters of 100,000 letters cost a database 0.1 s.
_CLUSTERS_SECONDS = 5.0
_T = TypeVar("_T")

Row: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_ROW)]
"""The number of a row, as far as databases can hold it."""
Doer: TypeAlias = Annotated[Principal, may(dead_letters.resubmit)]
Revealer: TypeAlias = Annotated[Principal, may(dead_letters.reveal)]
Noter: TypeAlias = Annotated[Principal, may(dead_letters.annotate)]
Deleter: TypeAlias = Annotated[Principal, may(dead_letters.discard)]


async def asked(site: Site, ask: Callable[[DeadLetters], Awaitable[_T]]) -> _T:
    """Ask the database, and give it a few seconds to answer.

    Raises:
        ServerUnreachableError: it did not.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await ask(await site.nonet.dead_letters())
    except TimeoutError:
        raise ServerUnreachableError(
            f"the SQL database did not answer within {_ANSWER_SECONDS:g} s: 'task-run doctor' "
            "checks it"
        ) from None


async def find(site: Site, query: LetterQuery) -> Page[LetterView]:
    return await asked(site, lambda store: dead_letters.find(store, query, lambda: site.registry))


async def clusters(site: Site, query: LetterQuery) -> ClusterPage:
    """Read clusters, at most once in five seconds for all viewers."""

    async def read() -> ClusterPage:
        return await asked(
            site, lambda store: dead_letters.clusters(store, query, lambda: site.registry)
        )

    return await site.shared.read(("clusters", query), _CLUSTERS_SECONDS, read)


async def get(site: Site, row: int) -> LetterDetails:
    return await asked(site, lambda store: dead_letters.get(store, row))


async def measured(site: Site, selection: LetterFilter) -> tuple[int, LetterFilter]:
    return await asked(site, lambda store: dead_letters.measure(store, selection))


def _log(site: Site) -> dead_letters.Log:
    async def log(kind: str, text: str) -> None:
        with suppress(NonetError):  # the audit has it
            await site.stores.events.log(kind, actor(), text)

    return log


async def again(
    site: Site, who: Principal, row: int, again: bool, changes: Mapping[str, Any] | None = None
) -> str:
    how: dict[str, Any] = {"again": again, "changes": changes}
    return str(await site.perform(who, dead_letters.resubmit, site.client, row, **how))


async def discard(site: Site, who: Principal, row: int, why: str) -> None:
    store = await site.nonet.dead_letters()
    await site.perform(who, dead_letters.discard, store, _log(site), row, why)


async def annotate(site: Site, who: Principal, row: int, note: str) -> None:
    await site.perform(who, dead_letters.annotate, await site.nonet.dead_letters(), row, note)


async def reveal(site: Site, who: Principal, row: int) -> dict[str, Any]:
    nonet = site.nonet
    store, cipher = await nonet.dead_letters(), nonet.client.cipher
    return await site.perform(who, dead_letters.reveal, store, row, nonet.registry, cipher)


async def in_words(site: Site, query: LetterSelection) -> str:
    """Say which letters are selected, for the audit and for people; a cluster by its cause."""
    text = query.in_words
    if query.cluster:
        for letter in (await find(site, LetterQuery(cluster=query.cluster, limit=1))).items:
            cause = f"{letter.error_type or letter.reason} of {letter.shown_class}"
            text = text.replace(f"cluster {query.cluster}", cause)
    return text


async def resubmit_many(
    site: Site, who: Principal, exact: LetterFilter, number: int, words: str, rate: float | None
) -> Bulk:
    store, client = await site.nonet.dead_letters(), site.client
    speed = "" if rate is None else f" at {rate:g} a second"
    bulk = Bulk(Action.RESUBMIT, f"resubmit {words}{speed}", who.name, number)
    rows = store.pages(exact)
    work = dead_letters.resubmit_many(store, client, _log(site), rows, rate=rate)
    return await _begun(site, who, bulk, work)


async def discard_many(
    site: Site, who: Principal, exact: LetterFilter, number: int, words: str, why: str
) -> Bulk:
    store = await site.nonet.dead_letters()
    text = f"{words}: {why}".removesuffix(": ")
    bulk = Bulk(Action.DISCARD, f"discard {text}", who.name, number)
    purged = dead_letters.discard_many(store, _log(site), exact, text)
    return await _begun(site, who, bulk, _each(purged))


async def _each(purged: AsyncIterator[int]) -> AsyncGenerator[list[Outcome], None]:
    async for number in purged:
        yield [Outcome(0)] * number


async def _begun(
    site: Site, who: Principal, bulk: Bulk, work: AsyncGenerator[list[Outcome], None]
) -> Bulk:
    async with site.changing(who, bulk.action, f"{bulk.total} dead letters: {bulk.text}"):
        return await site.bulks.start(bulk, work)


async def stop(site: Site, who: Principal, id: str) -> Bulk:
    bulk = await site.bulks.get(id)
    ensure(site, who, bulk.action)
    async with site.changing(who, bulk.action, f"stop: {bulk.text}"):
        return await site.bulks.stop(id, who.name)
