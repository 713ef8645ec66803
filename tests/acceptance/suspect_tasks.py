"""Tasks with which processes die, and innocent ones that are near."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from acceptance.probe_tasks import AtGate, Small, note, passed, passed_blocking

from nonet import BaseTask, ExponentialBackoff, Size

SOON = ExponentialBackoff(base_delay_seconds=0, max_retries=20)


@dataclass
class Waits(Small):
    """Runs until its gate is open, then for a moment."""

    gate: str
    number: int = 0
    seconds: float = 0.0

    async def execute(self) -> int:
        note("start")
        await passed(self.gate)
        await asyncio.sleep(self.seconds)
        note("end")
        return self.number


@dataclass
class WaitsInThread(Waits):
    """The same as a plain function."""

    def execute(self) -> int:  # type: ignore[override]
        note("start")
        passed_blocking(self.gate)
        return self.number


class Dies(AtGate):
    """Kills its process in a moment; once its gate is open, in an ordinary worker only."""

    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        await passed(self.gate)
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class KillsItsWorker(BaseTask):
    """Kills the worker above its process, and then that."""

    size = Size.MEDIUM
    retry_policy = SOON
    dlq_eligible = False

    def execute(self) -> None:
        note("start")
        server = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(server.rpartition(")")[2].split()[1]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
