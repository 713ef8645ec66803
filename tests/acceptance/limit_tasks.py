"""Tasks that limiters of the configuration hold back, or their class alone; see `probe_tasks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acceptance.probe_tasks import note, passed

from nonet import BaseTask, ConcurrencyLimiter, RateLimiter, Size


@dataclass
class Limited(BaseTask):
    """Runs until its gate opens, under a limiter that its class does not limit."""

    gate: str
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [ConcurrencyLimiter("job", "busy", "Run")]

    async def execute(self) -> None:
        note("start")
        await passed(self.gate)
        note("end")


@dataclass
class Bulk(BaseTask):
    """Counts for five items at once."""

    size = Size.SMALL
    dlq_eligible = True

    @property
    def execution_locks(self) -> list[Any]:
        return [RateLimiter("job", "bulk", n_items=5)]

    async def execute(self) -> None:
        note("start")
