"""Tasks that limiters of the configuration hold back, or their class alone; see `probe_tasks`."""

from __future__ import annotations

from typing import Any

from acceptance.probe_tasks import AtGate, Small, note, passed

from nonet import ConcurrencyLimiter, RateLimiter


class Limited(AtGate):
    """Runs until its gate opens, under a limiter that its class does not limit."""

    @property
    def execution_locks(self) -> list[Any]:
        return [ConcurrencyLimiter("job", "busy", "Run")]

    async def execute(self) -> None:
        note("start")
        await passed(self.gate)
        note("end")


class Bulk(Small):
    """Counts for five items at once."""

    dlq_eligible = True

    @property
    def execution_locks(self) -> list[Any]:
        return [RateLimiter("job", "bulk", n_items=5)]

    async def execute(self) -> None:
        note("start")
