"""What runs in a scheduler and raises: start-up hooks, or hangs, as a file says; a schedule."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from acceptance.probe_tasks import passed, passed_blocking

from nonet import IntervalSecondsSchedule, PeriodicBaseTask, Size, startup_hook


class Own(BaseException):
    """A kind that nobody else knows."""


KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Own)
}


def _file(name: str) -> Path:
    return Path(os.environ["PROBE_JOURNAL"]).with_name(name)


def _next(name: str) -> str:
    """The first line of a file, which is removed; empty if there is none."""
    path = _file(name)
    first, _, rest = (path.read_text() if path.exists() else "").partition("\n")
    path.write_text(rest)
    with _file("hooks").open("a") as file:
        file.write(f"{name} {first}\n")
    return first


@startup_hook
async def awaited() -> None:
    """Raises what the file ``awaited`` says, or waits at the gate ``gate``."""
    said = _next("awaited")
    if said == "hang":
        await passed(str(_file("gate")))
    elif said == "of a future":
        future = asyncio.get_running_loop().create_future()
        future.set_exception(GeneratorExit())
        await future
    elif said:
        raise KINDS[said]


@startup_hook
def in_thread() -> None:
    """The same in a plain function."""
    said = _next("in_thread")
    if said == "hang":
        passed_blocking(str(_file("gate")))
    elif said:
        raise KINDS[said]


class Exits(IntervalSecondsSchedule):
    """A schedule that ends, or seems to cancel, whoever asks it."""

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        raise SystemExit if self.seconds == 1 else asyncio.CancelledError


@dataclass
class Exiting(PeriodicBaseTask):
    """Its schedule raises SystemExit."""

    _schedule = Exits(1)
    size = Size.SMALL

    async def execute(self) -> None:
        raise AssertionError("never planned")


@dataclass
class Cancelling(Exiting):
    """Its schedule raises CancelledError."""

    _schedule = Exits(2)
