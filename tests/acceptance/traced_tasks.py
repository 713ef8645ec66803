"""Tasks that are traced."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from opentelemetry import trace
from pydantic import SecretStr

from nonet import (
    BaseTask,
    ExponentialBackoff,
    IntervalSeconds,
    Isolation,
    PeriodicBaseTask,
    Size,
    context,
)


@dataclass
class Step(BaseTask):
    """Something small."""

    number: int = 0

    size = Size.SMALL

    async def execute(self) -> int:
        return self.number


@dataclass
class Starts(BaseTask):
    """Submits one task while it runs, one when it is settled."""

    size = Size.SMALL

    async def execute(self) -> str:
        context().after_commit(Step(2))
        return str(await Step(1).schedule())


@dataclass
class Fails(BaseTask):
    """Fails once, or always."""

    password: SecretStr
    times: int

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0.001, max_retries=1)

    async def execute(self) -> None:
        if context().attempt <= self.times:
            raise ValueError(f"{self.password.get_secret_value()} is wrong\nand more")


class Ticks(PeriodicBaseTask):
    """Is planned, and fired at once."""

    size = Size.SMALL
    _schedule = IntervalSeconds(1)

    async def execute(self) -> None:
        """Nothing."""


@dataclass
class Inside(BaseTask):
    """Makes a span of its own, in a process of its own."""

    isolation = Isolation.FRESH
    size = Size.SMALL

    async def execute(self) -> None:
        with trace.get_tracer("author").start_as_current_span("inside"):
            logging.getLogger("author").info("in a span")
            await Step(3).schedule()
