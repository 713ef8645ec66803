"""Tasks that change the process in which they run."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from acceptance.probe_tasks import AtGate, Small, note, passed

from nonet import Isolation


class Forking(Small):
    """Leaves a copy of its process behind, which sleeps."""

    async def execute(self) -> None:
        if (child := os.fork()) == 0:
            time.sleep(600)  # noqa: ASYNC251  # a process of its own
            os._exit(0)
        note("forked", child=child)


class Elsewhere(Small):
    """Runs in a child process, so that its worker has a fork server from then on."""

    isolation = Isolation.CHILD

    async def execute(self) -> None: ...


def _take_over() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)


CHANGES: dict[str, Callable[[], object]] = {
    "ignored": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "handled": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "taken over": _take_over,
}


@dataclass
class Deaf(Small):
    """Changes what SIGTERM does to its process."""

    change: str

    async def execute(self) -> None:
        CHANGES[self.change]()
        note("changed")


class LowersFiles(AtGate):
    """Lets its process open no more files, and waits."""

    async def execute(self) -> None:
        note("start")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        await passed(self.gate)
