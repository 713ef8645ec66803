"""Tasks that fork themselves, and return the exit code of the copy."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from acceptance.probe_tasks import AtGate, is_open, passed
from copying import KINDS, blocking

from nonet import BaseTask, context


@dataclass
class Forks(BaseTask):
    """A coroutine that forks, itself or in what it starts."""

    kind: str
    way: str

    async def execute(self) -> int | None:
        return await KINDS[self.kind](self.way)


@dataclass
class ForksInDef(BaseTask):
    """A function that forks."""

    way: str

    def execute(self) -> int | None:
        return blocking(self.way)


@dataclass
class SavesInCopy(BaseTask):
    """A function whose copy calls what needs the event loop."""

    def execute(self) -> int:
        if (pid := os.fork()) == 0:
            context().checkpoint_from_thread(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Deafens(AtGate):
    """Takes from every epoll set of its process what wakes the loop, unless its gate is open."""

    async def execute(self) -> None:
        if is_open(self.gate):
            return
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the list itself
                if os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventpoll]":
                    _empty(int(number))
        await passed(self.gate)


def _empty(number: int) -> None:
    lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
    with select.epoll.fromfd(os.dup(number)) as epoll:
        for line in lines:
            if line.startswith("tfd:"):
                epoll.unregister(int(line.split()[1]))
