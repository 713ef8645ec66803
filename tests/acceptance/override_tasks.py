"""Tasks of which the configuration says something else, and tasks that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from acceptance.probe_tasks import is_open, note, passed, passed_blocking

from nonet import (
    BaseTask,
    Depends,
    ExponentialBackoff,
    IntervalSecondsSchedule,
    MutexLock,
    NonetError,
    PeriodicBaseTask,
    Size,
    context,
)

AGAIN = ExponentialBackoff(base_delay_seconds=0, max_retries=1)


@dataclass
class Failing(BaseTask):
    """Fails; its class does not retry."""

    vo: str = ""
    size = Size.SMALL

    async def execute(self) -> None:
        note("start")
        raise ValueError("as always")


class Tick(PeriodicBaseTask):
    """Comes every second, where it is configured: it leaves a task behind when all is killed."""

    _enabled = False
    _schedule = IntervalSecondsSchedule(1)
    size = Size.SMALL

    async def execute(self) -> None:
        note("start")


def transaction() -> Iterator[None]:
    try:
        yield
    except BaseException:
        note("rolled back")
        raise
    note("committed")


Opened = Annotated[None, Depends(transaction)]


class Limited(BaseTask):
    """Takes too long, and is tried twice, under one mutex with all the others."""

    size = Size.SMALL
    retry_policy = AGAIN

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", "limited")]


@dataclass
class Obeying(Limited):
    """Ends when it is cancelled."""

    gate: str
    soft_timeout = 0.2

    async def execute(self, opened: Opened) -> None:
        note("start")
        await passed(self.gate)


@dataclass
class Saving(Limited):
    """Saves how far it came when it is cancelled; has a second attempt."""

    gate: str
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


@dataclass
class Patient(Limited):
    """The same without a limit of its own."""

    gate: str

    async def execute(self, opened: Opened) -> None:
        note("start")
        await passed(self.gate)


class LimitedWithoutLocks(Limited):
    """Its second attempt does not wait for what is left of the first one."""

    @property
    def execution_locks(self) -> list[Any]:
        return []


@dataclass
class Stubborn(LimitedWithoutLocks):
    """Does not end when it is cancelled, only when its gate is open."""

    gate: str
    soft_timeout = 0.2
    hard_timeout = 0.4

    async def execute(self, opened: Opened) -> None:
        note("start")
        while not is_open(self.gate):
            try:
                await passed(self.gate)
            except asyncio.CancelledError:
                note("cancelled")
        note_whether_it_may()


@dataclass
class Hanging(LimitedWithoutLocks):
    """The same in a thread."""

    gate: str
    hard_timeout = 0.3

    def execute(self, opened: Opened) -> None:
        note("start")
        passed_blocking(self.gate)
        note_whether_it_may()


@dataclass
class Next(Limited):
    """Needs the mutex of the others."""

    soft_timeout = 30

    async def execute(self) -> str:
        note("start")
        return "done"


def note_whether_it_may() -> None:
    """Whether the attempt still owns its task."""
    try:
        context().ensure_lease()
    except NonetError as error:
        note("voided", error=type(error).__name__)
    else:
        note("owns")
