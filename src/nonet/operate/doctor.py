"""Check that nothing in a live namespace is lost, left over or stuck: ``task-run doctor``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from nonet.base.errors import NonetError
from nonet.config.settings import Settings
from nonet.operate.overview import look, marked
from nonet.operate.readers import unreadable
from nonet.rules.findings import remedies
from nonet.rules.findings.diagnosis import examine
from nonet.rules.findings.explanation import HANDED_OVER_WITHIN
from nonet.rules.findings.finding import Finding
from nonet.rules.findings.overview import waits
from nonet.rules.findings.servers import REPAIR_SQL, examine_outbox, examine_server, refusals
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.stores import Stores

_RECHECK_SECONDS = 1.0
# In leases. A sweep follows the end of a lease by a quarter of a lease, with jitter.
_SWEPT_WITHIN = 1.3125
# Names of the row kinds of the script ``inspect``; rows of other kinds are findings.
_WORDS = {
    "record": "tasks",
    "lease": "locks",
    "waiter": "waiters",
    "group": "groups",
    "flow": "workflows",
    "worker": "dead workers",
    "member": "consumers",
    "idle": "idle workers",
    "entry": "stream entries",
}

Overdue = Callable[[], Awaitable[tuple[int, float]]]
"""Counts durable tasks that are overdue in the outbox; also the age of the oldest in seconds."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a check.

    Attributes:
        problems: findings that lasted as long as the check.
        hints: findings that do no harm now.
        looked_at: the number of objects of each kind: ``tasks``, ``locks`` (one per holder),
            ``waiters`` (one per lock), ``groups``, ``workflows``, ``stream entries`` and so on.
        seconds: the duration of the check.
    """

    problems: tuple[Finding, ...]
    hints: tuple[Finding, ...]
    looked_at: Mapping[str, int]
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


async def look_over(stores: Stores, settings: Settings, wait: float | None = None) -> Diagnosis:
    """Examine a namespace and its servers; see `nonet.Nonet.doctor`."""
    sql = await stores.sql_state()

    async def overdue() -> tuple[int, float]:
        return await (await stores.outbox()).overdue(HANDED_OVER_WITHIN)

    found = await diagnose(
        Inspection(stores.broker, settings.namespace),
        lease=settings.lease,
        wait_seconds=patience(settings) if wait is None else wait,
        sql=sql,
        overdue=overdue if sql in ("current", "ahead") else None,
    )
    if any(item.what == "permissions" for item in found.problems):
        return found
    skipped = await unreadable(stores, has_sql=sql in ("current", "ahead"))
    situation, *_ = await look(stores, settings)
    hints = (*found.hints, *await marked(stores, waits(situation)))
    return replace(found, problems=(*found.problems, *skipped), hints=hints)


def patience(settings: Settings) -> float:
    """Return how many seconds a problem must last to count, if the user does not say."""
    return _SWEPT_WITHIN * settings.lease


async def diagnose(
    inspection: Inspection,
    *,
    lease: float,
    wait_seconds: float,
    sql: str = "",
    overdue: Overdue | None = None,
) -> Diagnosis:
    """Check until there are no problems, or until a problem has lasted `wait_seconds`.

    A dying process leaves inconsistencies that others repair within a lease and a sweep, so only
    lasting problems count. If the Redis user lacks a permission, only that is reported: keys that
    the user cannot read would look like problems.

    Args:
        lease: lease of this namespace in seconds.
        wait_seconds: how long a problem must last to count.
        sql: state of the tables, see `nonet.rules.findings.servers.Server`.
        overdue: counts overdue durable tasks; None if SQL is not in use.
    """
    began = time.monotonic()
    # The check of permissions writes.
    denied = [] if await inspection.refusal() else await inspection.denied()
    if denied:
        problems = [_needs_permission(item) for item in refusals({}, denied)]
        return Diagnosis(tuple(problems), (), {}, time.monotonic() - began)
    lasting: dict[tuple[str, str], Finding] | None = None
    while True:
        found, looked_at = await _inspect(inspection, lease)
        if overdue is not None and (finding := await _outbox(overdue)) is not None:
            found[finding.kind, finding.what] = finding
        lasting = found if lasting is None else {k: v for k, v in found.items() if k in lasting}
        spent = time.monotonic() - began
        if not lasting or spent >= wait_seconds:
            break
        await asyncio.sleep(min(_RECHECK_SECONDS, wait_seconds - spent))
    problems, hints = examine_server(await inspection.server(sql))
    return Diagnosis(
        (*lasting.values(), *problems), tuple(hints), looked_at, time.monotonic() - began
    )


def _needs_permission(finding: Finding) -> Finding:
    hint = f"use the operator account of docs/how-to/prepare-redis.md; or {finding.next_step}"
    return replace(finding, problem=f"{finding.problem}: nothing was checked", hint=hint)


async def _inspect(
    inspection: Inspection, lease: float
) -> tuple[dict[tuple[str, str], Finding], Counter[str]]:
    """Return the findings, and the number of objects of each kind."""
    found: dict[tuple[str, str], Finding] = {}
    looked_at: Counter[str] = Counter()
    async for row in inspection.rows():
        if row[0] in _WORDS:
            looked_at[_WORDS[row[0]]] += 1
        if (finding := examine(row, lease=lease)) is not None:
            found[finding.kind, finding.what] = finding
    return found, looked_at


async def _outbox(overdue: Overdue) -> Finding | None:
    try:
        return examine_outbox(*await overdue())
    except NonetError as error:
        problem = f"cannot be checked: {error}"
        return Finding("sql", "durable tasks", problem, REPAIR_SQL, command=remedies.of_sql())
