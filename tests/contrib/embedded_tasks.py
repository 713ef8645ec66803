"""Tasks that a web program executes in its own process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from nonet import BaseTask, IntervalSeconds, PeriodicBaseTask, Size


@dataclass
class Where(BaseTask):
    """Returns the process that executes it."""

    async def execute(self) -> int:
        return os.getpid()


@dataclass
class Gated(BaseTask):
    """Says that it runs, and waits for a file."""

    place: str
    size = Size.SMALL

    async def execute(self) -> str:
        place = Path(self.place)
        with (place / "runs").open("a") as file:
            file.write(f"{os.getpid()}\n")
        while not (place / "gate").exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.02)
        return "through"


@dataclass
class Blocks(BaseTask):
    """Blocks the event loop beyond its hard timeout, until there is a file."""

    place: str
    size = Size.SMALL
    hard_timeout = 0.2

    async def execute(self) -> None:
        (Path(self.place) / "begun").touch()
        while not (Path(self.place) / "gate").exists():
            pass


class Beat(PeriodicBaseTask):
    """Is due each second."""

    size = Size.SMALL
    _enabled = True
    _schedule = IntervalSeconds(1)

    async def execute(self) -> None:
        """Do nothing."""
