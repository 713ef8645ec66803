"""Tasks that run until they are cancelled, and write down how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from acceptance.probe_tasks import SOON, AtGate, note, passed

from nonet import Depends, Size

_POLL = 0.01


async def rolled_back() -> AsyncIterator[None]:
    """Tells how the block around it ended."""
    try:
        yield
    except BaseException:
        note("rolled back")
        raise
    note("committed")


class Endless(AtGate):
    """Waits at a gate; is retried unless it was cancelled."""

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


class RaisesWhenCancelled(AtGate):
    """Fails in its own way instead of ending as it should."""

    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            raise ValueError("I was not ready") from None
