"""Tasks for the tests of ``task-run``: category ``errands``.

What must be seen from outside is written to files that the arguments name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import pydantic

from nonet import (
    BaseTask,
    CallbackSpawner,
    ConcurrencyLimiter,
    Depends,
    ExponentialBackoff,
    LeaseLostError,
    MutexLock,
    PeriodicBaseTask,
    Priority,
    RateLimiter,
    SharedRWLock,
    Size,
    context,
)
from nonet.tasks.schedules import CronSchedule

_POLL = 0.01
_KEY = pydantic.SecretStr("s3cret-key")


@dataclass
class Add(BaseTask):
    """Needs nothing."""

    a: int
    b: int = 0
    size = Size.SMALL
    retry_policy = ExponentialBackoff(max_retries=2)

    async def execute(self) -> int:
        return self.a + self.b


class Works(BaseTask):
    """Leaves a file in its directory."""

    async def execute(self) -> str:
        (context().workdir / "part").write_text("of the work")
        return str(context().workdir)


@dataclass
class Describe(BaseTask):
    """Returns what JSON does not have."""

    size = Size.SMALL
    priority = Priority.REALTIME

    async def execute(self) -> dict[str, object]:
        return {"at": datetime(2026, 7, 1, tzinfo=UTC), "name": b"\xff", "sizes": (1, 2.5)}


@dataclass
class Fail(BaseTask):
    """Fails if told to; its secrets travel with it."""

    path: Path
    key: pydantic.SecretStr = _KEY
    login: dict[str, str] = field(default_factory=lambda: {"user": "me", "password": "s3cret-pw"})
    size = Size.SMALL
    dlq_eligible = True

    async def execute(self) -> str:
        if not self.path.exists():
            raise FileNotFoundError(f"\x1b[31mno {self.path}\nat all")
        with self.path.open("a") as file:
            file.write(f"{context().id}\n")
        return "fine"


@dataclass
class Refuse(BaseTask):
    """Fails, and gets no dead letter."""

    text: str
    size = Size.SMALL

    async def execute(self) -> None:
        raise ValueError("told to")


@dataclass
class Guarded(BaseTask):
    """Holds a mutex and a reader's lock until `gate` exists, or fails, or spins."""

    report: Path
    gate: Path | None = None
    fail: bool = False

    @property
    def execution_locks(self) -> list[object]:
        return [
            MutexLock("job", 7),
            SharedRWLock("job", 7),
            Limiter("job", 7),
            RateLimiter("job", 7, limit=1, window_seconds=3600),
        ]

    async def execute(self) -> int:
        self.report.write_text(str(context().fence))
        while self.gate is not None and not self.gate.exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.2)  # asyncio may report a signal that arrives as a timer ends
        if self.fail:
            raise ValueError("told to")
        context().ensure_lease()
        return context().fence


class Limiter(ConcurrencyLimiter):
    """One at a time, for those who are not at a terminal."""

    limit = 1


@dataclass
class GuardedThread(BaseTask):
    """Blocks a thread under a mutex, whatever happens."""

    report: Path

    @property
    def execution_locks(self) -> list[object]:
        return [MutexLock("job", 8)]

    def execute(self) -> None:
        self.report.write_text("started")
        while True:
            time.sleep(_POLL)


def session() -> Iterator[str]:
    """A dependency with a teardown."""
    yield "session"


@dataclass
class Inject(BaseTask):
    """A plain function with a dependency."""

    def execute(self, db: Annotated[str, Depends(session)]) -> str:
        return f"{context().name} with {db}"


@dataclass
class Unprovided(BaseTask):
    """Asks for what nobody provides."""

    async def execute(self, db: Path) -> None: ...


@dataclass
class Spawn(BaseTask):
    """Submits others while it runs."""

    group: bool = False

    async def execute(self, spawn: CallbackSpawner) -> str:
        if self.group:
            return await spawn([Add(1), Add(2)], Add(3))
        return str(await Add(1).schedule())


@dataclass
class Picky(BaseTask):
    """A constructor that refuses."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is negative")

    async def execute(self) -> None: ...


class Nightly(PeriodicBaseTask):
    """Periodic."""

    _schedule = CronSchedule("0 3 * * *")

    async def execute(self) -> None: ...


@dataclass
class Sleeper(BaseTask):
    """Runs until somebody cancels it."""

    report: Path
    size = Size.SMALL

    async def execute(self) -> None:
        self.report.write_text("started")
        await asyncio.Event().wait()


@dataclass
class OfVo(BaseTask):
    """Has its tenant as an attribute."""

    vo: str
    size = Size.SMALL

    async def execute(self) -> None:
        return None


@dataclass
class Prints(Sleeper):
    """The same, and reports how far it is."""

    async def execute(self) -> None:
        context().progress(0.4, "page 12\x1b of 30")
        await super().execute()


@dataclass
class Obstinate(BaseTask):
    """Runs until `gate` exists, also if somebody cancels it."""

    report: Path
    gate: Path
    size = Size.SMALL

    async def execute(self) -> str:
        self.report.write_text("started")
        while not self.gate.exists():
            try:
                await asyncio.sleep(_POLL)
            except asyncio.CancelledError:
                self.report.write_text("told")
        return "fine"


@dataclass
class Blabs(BaseTask):
    """Says its secrets in a log line, in another task's thread and in its error."""

    pin: pydantic.SecretStr
    login: dict[str, str] = field(default_factory=lambda: {"user": "me", "password": "s3cret-pw"})
    kind: str = "Exception"

    async def execute(self) -> None:
        said = f"pin {self.pin.get_secret_value()}, password {self.login['password']}"
        logging.getLogger("errands").warning("log: %s", said)
        logging.getLogger("errands").warning("at redis://me:s3cret-url@db.example/0")
        await asyncio.to_thread(logging.getLogger("errands").warning, "thread: %s", said)
        kinds: dict[str, type[BaseException]] = {"Exception": ValueError, "BaseException": Odd}
        raise kinds.get(self.kind, LeaseLostError)(f"error: {said}")


@dataclass
class Unstorable(BaseTask):
    """Returns what no result can hold."""

    kind: str
    size = Size.SMALL

    async def execute(self) -> object:
        return "x" * 300_000 if self.kind == "large" else object()


class Odd(BaseException):
    """No `Exception`."""


@dataclass
class BlabsWhenMade(BaseTask):
    """A constructor whose refusal quotes a secret."""

    token: str

    def __post_init__(self) -> None:
        raise ValueError(f"bad token {self.token}")

    async def execute(self) -> None: ...
