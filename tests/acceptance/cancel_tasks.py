"""Tasks that run until they are cancelled, and write down how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from acceptance.probe_tasks import SOON, note, passed

from nonet import BaseTask, Depends, Size

_POLL = 0.01


async def rolled_back() -> AsyncIterator[None]:
    """Tells how the block around it ended."""
    try:
        yield
    except BaseException:
        note("rolled back")
        raise
    note("committed")


@dataclass
class Endless(BaseTask):
    """Waits at a gate; is retried unless it was cancelled."""

    gate: str
    size = Size.SMALL
    retry_policy = SOON

    async def execute(self, transaction: Annotated[None, Depends(rolled_back)]) -> str:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            note("told")
            raise
        return "passed"


@dataclass
class EndlessChild(Endless):
    """In a child process."""

    size = Size.MEDIUM


@dataclass
class RaisesWhenCancelled(BaseTask):
    """Fails in its own way instead of ending as it should."""

    gate: str
    size = Size.SMALL
    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            raise ValueError("I was not ready") from None
