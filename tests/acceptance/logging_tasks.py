"""Tasks that log, each in another place."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass

import structlog
from acceptance.probe_tasks import passed, passed_blocking
from pydantic import SecretStr

from nonet import BaseTask, Isolation, Size

PASSWORD = 'hunter"2\\x'


@dataclass
class Says(BaseTask):
    """In a coroutine."""

    size = Size.SMALL

    async def execute(self) -> None:
        logging.getLogger("author").info("said %s", "by logging", extra={"pages": 3})
        structlog.get_logger("author").info("said by structlog", pages=4)


@dataclass
class SaysInThread(BaseTask):
    """In a thread."""

    size = Size.SMALL

    def execute(self) -> None:
        logging.getLogger("author").info("said in a thread")


@dataclass
class SaysInChild(BaseTask):
    """In a process of its own."""

    size = Size.SMALL
    isolation = Isolation.FRESH

    async def execute(self) -> None:
        logging.getLogger("author").info("said in a child")


@dataclass
class LogsIn(BaseTask):
    """Tells everybody its password."""

    password: SecretStr

    size = Size.SMALL

    async def execute(self) -> None:
        password = self.password.get_secret_value()
        log = logging.getLogger("author")
        log.info("login with %s at https://me:s3cret-url@db.example/x", password)
        try:
            raise ValueError(password)
        except ValueError:
            log.exception("refused")
        log.info("%d", "no number")
        raise ValueError(f"{password} is wrong")


@dataclass
class LogsInFromChild(LogsIn):
    """The same in a process of its own, whose end its worker reports."""

    isolation = Isolation.FRESH


@dataclass
class SaysSecretly(BaseTask):
    """As a class whose data are encrypted."""

    size = Size.SMALL
    encrypted = True

    async def execute(self) -> None:
        await asyncio.to_thread(logging.getLogger("author").info, "said secretly")


@dataclass
class SaysNothing(Says):
    """None of its lines is kept."""

    log_lines = 0


@dataclass
class DiesTalking(BaseTask):
    """Its process is killed once the gate is open."""

    gate: str

    size = Size.SMALL
    isolation = Isolation.CHILD
    dlq_eligible = True

    def execute(self) -> None:
        for number in range(201):
            logging.getLogger("author").info("step %d", number)
        passed_blocking(self.gate)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class SaysAtGate(BaseTask):
    """In a coroutine, before and after its gate is open."""

    gate: str

    size = Size.SMALL

    async def execute(self) -> None:
        logging.getLogger("author").info("before, in process %d", os.getpid())
        await passed(self.gate)
        logging.getLogger("author").info("after, in process %d", os.getpid())
