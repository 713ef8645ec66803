"""Tasks whose failures are reported to the Sentry of ``REPORTED_TO``."""

from __future__ import annotations

import json
import logging
import os
import signal
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import sentry_sdk
from pydantic import SecretStr
from sqlalchemy.exc import IntegrityError

from nonet import (
    BaseTask,
    CronSchedule,
    ExponentialBackoff,
    Isolation,
    PeriodicBaseTask,
    Size,
    TaskRetryRequested,
    carry_context,
    context,
)
from nonet.contrib.sentry import install

request_id: ContextVar[str] = ContextVar("sentry_request_id")

if url := os.environ.get("REPORTED_TO"):
    carry_context(request_id, "request_id")
    sentry_sdk.init(dsn=url, environment="test", release="shop@1.2")
    options: dict[str, Any] = json.loads(os.environ.get("REPORT", "{}"))
    install(**options)


@dataclass
class Charges(BaseTask):
    """Fails with its secret in each place."""

    password: SecretStr
    number: int = 4711

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self) -> None:
        hidden = f"it is {self.password.get_secret_value()}"
        logging.getLogger("author").warning("before %s", hidden)
        raise ValueError(hidden)


@dataclass
class ChargesInChild(Charges):
    """The same, in a process that ends with it."""

    isolation = Isolation.FRESH


@dataclass
class Inserts(BaseTask):
    """Fails with an error that quotes the values of its statement."""

    size = Size.SMALL

    async def execute(self) -> None:
        raise IntegrityError("INSERT INTO users", {"name": "Ann" + " Onym"}, OSError("no"))


@dataclass
class Dies(BaseTask):
    """Kills its process."""

    size = Size.SMALL
    isolation = Isolation.CHILD

    async def execute(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class AsksAgain(BaseTask):
    """Is tried again, which is no failure of its own."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self) -> None:
        if context().attempt == 1:
            raise TaskRetryRequested("not yet")


@dataclass
class Declines(BaseTask):
    """Fails twice with an error that is no bug."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)
    expected = (PermissionError,)

    async def execute(self) -> None:
        raise PermissionError("declined")


@dataclass
class Says(BaseTask):
    """Reports something by itself, and succeeds."""

    password: SecretStr
    size = Size.SMALL

    async def execute(self) -> None:
        sentry_sdk.capture_message(f"look at {self.password.get_secret_value()}")


class Daily(PeriodicBaseTask):
    """Its first attempt fails."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)
    _schedule = CronSchedule("@daily", "Europe/Zurich")

    async def execute(self) -> None:
        if context().attempt == 1:
            raise ValueError("try again")
