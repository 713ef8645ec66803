"""Tasks of which the configuration says something else, and tasks that take too long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from acceptance.cancel_tasks import rolled_back
from acceptance.probe_tasks import AtGate, Small, note, passed, passed_blocking

from nonet import Depends, ExponentialBackoff, NonetError, context

AGAIN = ExponentialBackoff(base_delay_seconds=0, max_retries=1)


@dataclass
class Failing(Small):
    """Fails; its class does not retry."""

    vo: str = ""

    async def execute(self) -> None:
        note("start")
        raise ValueError("as always")


Opened = Annotated[None, Depends(rolled_back)]


class Limited(AtGate):
    """Takes too long, and is tried twice."""

    retry_policy = AGAIN


class Saving(Limited):
    """Saves how far it came when it is cancelled; has a second attempt."""

    soft_timeout = 0.2

    async def execute(self) -> str:
        if context().saved:
            return str(context().saved)
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            await context().checkpoint("half of it")
            raise
        return "all of it"


class Hanging(Limited):
    """The same in a thread."""

    hard_timeout = 0.3

    def execute(self, opened: Opened) -> None:
        note("start")
        passed_blocking(self.gate)
        note_whether_it_may()


def note_whether_it_may() -> None:
    """Whether the attempt still owns its task."""
    try:
        context().ensure_lease()
    except NonetError as error:
        note("voided", error=type(error).__name__)
    else:
        note("owns")
