"""Read every list that commands and pages show, so that the doctor can report damaged entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from nonet.base.errors import NonetError
from nonet.base.keys import prefix
from nonet.rules.findings.diagnosis import examine_entry
from nonet.rules.findings.finding import Finding
from nonet.stores.connection.unreadable import collecting
from nonet.stores.namespace.history import EndedFilter
from nonet.stores.stores import Stores

_MOST = 10_000
_ALL = 2**40


async def _events(stores: Stores) -> Sequence[Any]:
    return (await stores.events.page(_MOST)).events


async def _history(stores: Stores) -> Sequence[Any]:
    return (await stores.history.page(EndedFilter(), limit=_ALL, budget=_ALL)).rows


async def _tasks(stores: Stores) -> Sequence[Any]:
    return [task async for task in stores.results.live()]


async def _workflows(stores: Stores) -> Sequence[Any]:
    return (await stores.workflows.page(limit=_MOST)).rows


async def _quarantine(stores: Stores) -> Sequence[Any]:
    return [entry async for entry in stores.quarantine.newest(_MOST)]


async def _configuration(stores: Stores) -> Sequence[Any]:
    return [await stores.publication.read(), await stores.leadership.leader()]


async def _figures(stores: Stores) -> Sequence[Any]:
    figures, (handed_on, _) = await stores.measures.figures(), await stores.measures.handed_on()
    return [*figures.active, *figures.counters, *figures.workers, *handed_on]


async def _tenants(stores: Stores) -> Sequence[Any]:
    table = await stores.tenants.table("vo", (), since=timedelta(minutes=5))
    return [*table.items, *await stores.tenants.totals()]


async def _demand(stores: Stores) -> Sequence[Any]:
    return [*await stores.demands.published(), *await stores.demands.look_at_all()]


async def _letters(stores: Stores) -> Sequence[Any]:
    return await (await stores.dead_letters()).list(limit=_MOST)


READERS: Mapping[str, Callable[[Stores], Awaitable[Sequence[Any]]]] = {
    "ceilings": lambda stores: stores.ceilings.loads(),
    "classes": lambda stores: stores.counts.figures(),
    "configuration": _configuration,
    "demand": _demand,
    "events": _events,
    "figures": _figures,
    "filters": lambda stores: stores.filters.all(),
    "groups": lambda stores: stores.groups.list(_MOST),
    "history": _history,
    "limits": lambda stores: stores.limits.all(),
    "locks": lambda stores: stores.locks.contended(_MOST),
    "pauses": lambda stores: stores.controls.load(),
    "pipelines": lambda stores: stores.pipelines.read(),
    "quarantine": _quarantine,
    "schedules": lambda stores: stores.periodic.statuses(),
    "tasks": _tasks,
    "tenants": _tenants,
    "workers": lambda stores: stores.results.workers(),
    "workflows": _workflows,
}
SQL_READERS: Mapping[str, Callable[[Stores], Awaitable[Sequence[Any]]]] = {"letters": _letters}


async def unreadable(stores: Stores, *, has_sql: bool) -> list[Finding]:
    """Read all lists; return a finding for each entry that was skipped, sorted by key."""
    problems = list[Finding]()
    with collecting() as skipped:
        for name, read in {**READERS, **(SQL_READERS if has_sql else {})}.items():
            try:
                await read(stores)
            except NonetError as error:
                hint = "repair or delete the key that the error names"
                problems.append(Finding("key", name, f"cannot be read: {error}", hint))
    of = prefix(stores.namespace)
    return problems + [examine_entry(of, *entry) for entry in sorted(skipped)]
