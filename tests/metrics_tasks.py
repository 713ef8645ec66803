"""Tasks that end in each way, for the tests of metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from nonet import (
    BaseTask,
    ExponentialBackoff,
    Isolation,
    LockedObjectType,
    Middleware,
    MutexLock,
    Size,
    context,
    register_middleware,
)
from nonet.base.errors import UnableToAcquireLockError


class Idle(Middleware):
    """Does nothing, and is counted."""


class Broken(logging.Handler):
    """Raises at each line, and is counted."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the server of the logs is away")


register_middleware(Idle())
logger = logging.getLogger(__name__)
logger.addHandler(Broken())


@dataclass
class Succeeds(BaseTask):
    size = Size.SMALL

    async def execute(self) -> int:
        logger.warning("it succeeds")
        return 1


@dataclass
class Fails(BaseTask):
    """Tried twice, then dead."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)
    dlq_eligible = True

    async def execute(self) -> None:
        raise ValueError("it fails")


@dataclass
class Crashes(BaseTask):
    """Its process dies at the first attempt."""

    size = Size.SMALL
    isolation = Isolation.FRESH
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self) -> None:
        if context().attempt == 1:
            os._exit(7)


@dataclass
class GivesBack(BaseTask):
    """Handed back as long as its file is not there; it makes it."""

    path: str
    size = Size.SMALL

    async def execute(self) -> None:
        if not Path(self.path).exists():  # noqa: ASYNC240  # of a test
            Path(self.path).touch()  # noqa: ASYNC240
            raise UnableToAcquireLockError("not yet")


@dataclass
class Holds(BaseTask):
    """Holds a lock until its file is there."""

    path: str
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[MutexLock]:
        return [MutexLock(LockedObjectType.JOB, 1)]

    async def execute(self) -> None:
        while not Path(self.path).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


@dataclass
class Blocks(BaseTask):
    """Sleeps in the event loop."""

    seconds: float
    size = Size.SMALL

    async def execute(self) -> None:
        time.sleep(self.seconds)  # noqa: ASYNC251  # what this is about


@dataclass
class Heavy(BaseTask):
    """Of a size that no worker of the test takes."""

    size = Size.MEDIUM

    async def execute(self) -> None:
        pass
