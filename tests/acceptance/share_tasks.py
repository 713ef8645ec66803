"""Tasks of the tests of fair shares: each notes its tenant when it begins."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from acceptance.probe_tasks import SOON, Small, note

from nonet import MutexLock, context
from nonet.tasks.locks import BaseLock


@dataclass
class Mine(Small):
    """Takes `seconds`, with the mutex `key` if it has one, and fails its first `fails` attempts."""

    tenant: str
    seconds: float = 0.0
    key: str = ""
    fails: int = 0
    retry_policy = SOON

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock("job", self.key)] if self.key else []

    async def execute(self) -> None:
        note("begun", tenant=self.tenant)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if context().attempt <= self.fails:
            raise ValueError("as the test wants")
