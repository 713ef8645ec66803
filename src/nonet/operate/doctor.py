"""``task-run doctor``: proves on a live namespace that nothing is lost, left over or stuck."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from nonet.base.errors import NonetError
from nonet.config.settings import Settings
from nonet.rules.diagnosis import (
    REPAIR_SQL,
    Finding,
    examine,
    examine_outbox,
    examine_server,
    refusals,
)
from nonet.rules.explanation import HANDED_OVER_WITHIN
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.stores import Stores

_LOOK_AGAIN_SECONDS = 1.0
# In leases: a sweep comes after a quarter of one, with jitter.
_SWEPT_WITHIN = 1.3125
# What the rows of the script ``inspect`` are called outside; the other kinds are findings.
_WORDS = {
    "record": "tasks",
    "lease": "locks",
    "waiter": "waiters",
    "group": "groups",
    "worker": "dead workers",
    "member": "consumers",
    "idle": "idle workers",
    "entry": "stream entries",
}

Overdue = Callable[[], Awaitable[tuple[int, float]]]
"""How many durable tasks are not handed over although they should be, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found.

    Attributes:
        problems: what must not be, and stayed so while it was looked at.
        hints: what somebody should know of.
        looked_at: how many things of each kind there were: ``tasks``, ``locks`` (held, each by
            each holder), ``waiters`` (at each lock), ``groups``, ``stream entries`` and so on.
        seconds: how long it took.
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
    lease, sql = settings.lease, await stores.sql_state()

    async def overdue() -> tuple[int, float]:
        return await (await stores.outbox()).overdue(HANDED_OVER_WITHIN)

    return await diagnose(
        Inspection(stores.broker, settings.namespace),
        lease=lease,
        wait_seconds=_SWEPT_WITHIN * lease if wait is None else wait,
        sql=sql,
        overdue=overdue if sql in ("current", "ahead") else None,
    )


async def diagnose(
    inspection: Inspection,
    *,
    lease: float,
    wait_seconds: float,
    sql: str = "",
    overdue: Overdue | None = None,
) -> Diagnosis:
    """Look until nothing is wrong, or something has been so for `wait_seconds`.

    What a dying process leaves behind is no problem: it is mended within a lease and a sweep.
    A user who may not do all that Nonet needs is told so, and nothing is looked at: what is
    hidden from them would look like a fault.

    Args:
        lease: seconds, of this namespace.
        wait_seconds: how long a problem must last.
        sql: what is known of the tables, see `nonet.rules.diagnosis.Server`.
        overdue: asks for durable tasks that are not handed over; None: there are none.
    """
    began = time.monotonic()
    if denied := await inspection.denied():
        problems = [_ask_another(item) for item in refusals({}, denied)]
        return Diagnosis(tuple(problems), (), {}, time.monotonic() - began)
    lasting: dict[tuple[str, str], Finding] | None = None
    while True:
        found, looked_at, dying = await _look(inspection, lease)
        if overdue is not None and (finding := await _outbox(overdue)) is not None:
            found[finding.kind, finding.what] = finding
        lasting = found if lasting is None else {k: v for k, v in found.items() if k in lasting}
        spent = time.monotonic() - began
        if not lasting or spent >= wait_seconds:
            break
        await asyncio.sleep(min(_LOOK_AGAIN_SECONDS, wait_seconds - spent))
    problems, hints = examine_server(await inspection.server(sql, dying=dying))
    return Diagnosis(
        (*lasting.values(), *problems), tuple(hints), looked_at, time.monotonic() - began
    )


def _ask_another(finding: Finding) -> Finding:
    hint = f"ask as the operator of docs/how-to/prepare-redis.md; or {finding.hint}"
    return replace(finding, problem=f"{finding.problem}: nothing was looked at", hint=hint)


async def _look(
    inspection: Inspection, lease: float
) -> tuple[dict[tuple[str, str], Finding], Counter[str], int]:
    """What is wrong, how many things of each kind there are, and how many tasks wait for SQL."""
    found: dict[tuple[str, str], Finding] = {}
    looked_at: Counter[str] = Counter()
    dying = 0
    async for row in inspection.rows():
        if row[0] in _WORDS:
            looked_at[_WORDS[row[0]]] += 1
        dying += row[0] == "record" and row[2] == "dying"
        if (finding := examine(row, lease=lease)) is not None:
            found[finding.kind, finding.what] = finding
    return found, looked_at, dying


async def _outbox(overdue: Overdue) -> Finding | None:
    try:
        return examine_outbox(*await overdue())
    except NonetError as error:
        return Finding("sql", "durable tasks", f"cannot be looked at: {error}", REPAIR_SQL)
