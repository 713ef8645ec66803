"""Tasks that log, each in another place."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import structlog
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
