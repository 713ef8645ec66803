"""Tasks whose code ignores that it was cancelled, and holds a lock meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from acceptance.lock_tasks import lock_of
from acceptance.probe_tasks import Small, is_open, note, passed_blocking

from nonet import BaseTask, ExponentialBackoff
from nonet.tasks.locks import BaseLock


@dataclass
class _Stubborn(Small):
    gate: str
    locks: list[str]

    retry_policy = ExponentialBackoff(base_delay_seconds=0.05, max_retries=1)

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [lock_of(text) for text in self.locks]


class StubbornLoop(_Stubborn):
    """Swallows each cancellation in the event loop until its gate is open."""

    async def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                note("cancelled")
        note("end")


class StubbornThread(_Stubborn):
    """Waits in a thread, which nothing can cancel, until its gate is open."""

    def execute(self) -> None:
        note("start")
        passed_blocking(self.gate)
        note("end")


class LimitedThread(StubbornThread):
    """A thread beyond its hard timeout."""

    hard_timeout = 0.3


KINDS: dict[str, Callable[[str, list[str]], BaseTask]] = {
    "loop": StubbornLoop,
    "thread": StubbornThread,
    "limited thread": LimitedThread,
}
