"""Tasks that report their progress, each from another place."""

from __future__ import annotations

import time
from dataclasses import dataclass

from acceptance.probe_tasks import AtGate, Small, is_open, note, passed, passed_blocking
from pydantic import SecretStr

from nonet import Isolation, context

PASSWORD = SecretStr("hunter2-of-the-test")


@dataclass
class Reports(Small):
    """In a coroutine: reports before its gate, and when it ends."""

    gate: str
    password: SecretStr = PASSWORD

    async def execute(self) -> None:
        self.begin()
        await passed(self.gate)
        self.end()

    def begin(self) -> None:
        context().progress(0.25, "begun")
        context().progress(0.5, f"with {self.password.get_secret_value()}")

    def end(self) -> None:
        context().progress(1, {"files": 3, "key": self.password.get_secret_value()})


@dataclass
class ReportsInThread(Reports):
    """In a thread."""

    def execute(self) -> None:  # type: ignore[override]
        self.begin()
        passed_blocking(self.gate)
        self.end()


@dataclass
class ReportsInChildThread(ReportsInThread):
    """In a thread of a child process."""

    isolation = Isolation.FRESH


@dataclass
class BlocksChild(Reports):
    """In a child process whose event loop it blocks."""

    isolation = Isolation.FRESH

    async def execute(self) -> None:
        context().progress(0.25, "begun")
        while not is_open(self.gate):
            time.sleep(0.01)  # noqa: ASYNC251  # to block the loop is what it is for
            context().progress(0.5, f"with {self.password.get_secret_value()}")
        self.end()


@dataclass
class FailsInChild(Small):
    """Reports twice in a child process, and becomes a dead letter."""

    dlq_eligible = True
    isolation = Isolation.FRESH

    async def execute(self) -> None:
        context().progress(0.25, "begun")
        context().progress(0.5, "half")
        raise ValueError


class Kills(AtGate):
    """Reports, and then runs until its gate is open; to be run as a suspect."""

    async def execute(self) -> None:
        note("start")
        context().progress(0.5, "half")
        await passed(self.gate)
