"""The parts of an open `System`: workers, scheduler, and the clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nonet.app import Nonet
from nonet.base.clock import ClockWatch, Reading
from nonet.daemon.service import Stop
from nonet.scheduler.scheduler import Scheduler
from nonet.stores.namespace.sandbox import Sandbox
from nonet.testing.submitted import RecordingEnvelopes


@dataclass(frozen=True)
class Running:
    """An open system."""

    app: Nonet
    sandbox: Sandbox
    scheduler: Scheduler
    pace: Pace
    workers: Stop
    services: Sequence[asyncio.Task[Any]]
    envelopes: RecordingEnvelopes

    def check(self) -> None:
        """Raise the error that ended a worker or the scheduler, if one did."""
        for service in self.services:
            if service.done():
                service.result()
                raise RuntimeError(f"the {service.get_name()} ended unexpectedly")

    async def stop(self) -> None:
        """Stop workers and scheduler, and cancel running tasks."""
        self.workers.drain()
        self.pace.drain()
        await asyncio.gather(*self.services, return_exceptions=True)


class Pace(Stop):
    """Lets the scheduler skip the pauses of its loops."""

    def __init__(self) -> None:
        super().__init__()
        self._awake = asyncio.Event()

    def hurry(self) -> None:
        """End all pauses now."""
        self._awake.set()
        self._awake = asyncio.Event()

    def drain(self) -> None:
        super().drain()
        self.hurry()

    async def sleep(self, seconds: float) -> None:
        if self.requested.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._awake.wait()


class MovedClock(ClockWatch):
    """Ignores steps of the clock: the test moves it on purpose."""

    def look(self, reading: Reading) -> timedelta:
        return timedelta(0)

    def latest(self, instant: float) -> int | None:
        return None
