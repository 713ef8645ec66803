"""Tasks that write down what happens to them, outside the framework.

Each event is one line of JSON, appended to the file ``PROBE_JOURNAL`` in one write, so that many
processes may share it and a killed one leaves no half line.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import redis

from nonet import (
    BaseTask,
    CallbackSpawner,
    ConcurrencyLimiter,
    Depends,
    ExponentialBackoff,
    LeaseLostError,
    MutexLock,
    Priority,
    RetryPolicyBase,
    Size,
    StopRetrying,
    UnableToAcquireLockError,
    context,
)

_POLL = 0.01
# Retries at once: what is tested is that there are some, not how long they wait.
SOON = ExponentialBackoff(base_delay_seconds=0, max_retries=2)


def note(event: str, **details: Any) -> None:
    """Append an event of the running task to the journal."""
    own = context()
    line = {"id": own.id, "attempt": own.attempt, "fence": own.fence, "event": event}
    line |= {"task": own.name.rpartition(":")[2], "pid": os.getpid(), "at": time.time()}
    data = json.dumps({**line, **details}) + "\n"
    file = os.open(os.environ["PROBE_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, data.encode())
    finally:
        os.close(file)


def is_open(gate: str) -> bool:
    """Whether the test has made the file `gate`."""
    return Path(gate).exists()


_openings: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Future[None]] = {}


def _look(gate: str, opening: asyncio.Future[None]) -> None:
    if is_open(gate):
        opening.set_result(None)
    else:
        opening.get_loop().call_later(_POLL, _look, gate, opening)


async def passed(gate: str) -> None:
    """Wait until a gate is open. One look serves all tasks of a process: there may be thousands."""
    loop = asyncio.get_running_loop()
    if (gate, loop) not in _openings:
        _openings[gate, loop] = loop.create_future()
        _look(gate, _openings[gate, loop])
    await asyncio.shield(_openings[gate, loop])


def passed_blocking(gate: str) -> None:
    """The same, with the thread (and the event loop in it) blocked."""
    while not is_open(gate):
        time.sleep(_POLL)


class UnderMutex:
    """Needs the one mutex that the tests share."""

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", "shared")]


class Small(BaseTask):
    """Base of tasks that run in the event loop of a small worker."""

    size = Size.SMALL


@dataclass
class AtGate(Small):
    """Base of those that a test lets go on."""

    gate: str


@dataclass
class Quick(Small):
    """Does nothing and says so."""

    value: int = 0

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(0)
        note("end")
        return self.value


@dataclass
class Brief(Small):
    """Takes a moment, so that a worker can be killed while many of them run."""

    value: int = 0

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(0.05)
        note("end")
        return self.value


class Gated(AtGate):
    """Runs until the test opens its gate; returns the process that ran it."""

    async def execute(self) -> int:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        note("end")
        return os.getpid()


@dataclass
class GatedMutex(UnderMutex, Gated):
    """A gated task under a mutex."""


class Alone(UnderMutex, Small):
    """Needs the mutex of the gated tasks."""

    async def execute(self) -> int:
        note("start")
        return os.getpid()


class TwoAtATime(Small):
    """Holds one of two slots while it runs."""

    @property
    def execution_locks(self) -> list[Any]:
        limiter = ConcurrencyLimiter("job", "two")
        limiter.limit = 2
        return [limiter]

    async def execute(self) -> None:
        note("start")
        await asyncio.sleep(0.02)
        note("end")


@dataclass
class Blocking(UnderMutex, Small):
    """Blocks the whole event loop for `seconds`, under a mutex."""

    seconds: float

    async def execute(self) -> int:
        note("start")
        time.sleep(self.seconds)  # noqa: ASYNC251  # to block the loop is what it is for
        context().ensure_lease()
        note("end")
        return os.getpid()


@dataclass
class Backtracking(UnderMutex, AtGate):
    """Holds the interpreter lock for `seconds` of CPU time, unless its gate is open."""

    seconds: float

    async def execute(self) -> None:
        is_quick = is_open(self.gate)
        note("start")
        if is_quick:
            return
        number, took = 16, 0.0
        while took < self.seconds:
            # One more letter doubles the time.
            number += max(1, math.ceil(math.log2(self.seconds / took))) if took else 0
            began = time.thread_time()
            re.match("(a+)+$", "a" * number + "b")
            took = time.thread_time() - began


class BlockingThread(AtGate):
    """A ``def`` task that no cancellation reaches."""

    def execute(self) -> None:
        note("start")
        passed_blocking(self.gate)


class BlockingToThread(AtGate):
    """Waits for a thread of the event loop's own, which no cancellation reaches either."""

    async def execute(self) -> None:
        note("start")
        await asyncio.to_thread(passed_blocking, self.gate)


class VoidedThread(AtGate):
    """A ``def`` task that runs on after it was handed back, and checks its lease."""

    def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            time.sleep(_POLL)
            try:
                context().ensure_lease()
            except LeaseLostError as error:
                note("voided", error=str(error))
                return


class Stubborn(AtGate):
    """Swallows every cancellation."""

    async def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            try:
                await passed(self.gate)
            except asyncio.CancelledError:
                note("cancelled")


async def blocks_loop_at_close() -> AsyncIterator[None]:
    """Blocks the event loop between the check of the lease and the settle, until the gate opens."""
    yield
    note("closing")
    passed_blocking(os.environ["PROBE_GATE"])


class SettlesLate(UnderMutex, Small):
    """Its lease is checked, then nothing can stop its settle."""

    async def execute(self, late: Annotated[None, Depends(blocks_loop_at_close)]) -> int:
        note("start")
        return os.getpid()


class Refused(Exception):
    """An error that carries data, which only the real object can show."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


class Inspecting(RetryPolicyBase):
    """Writes down what it is asked about; gives up at code 3."""

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        code = getattr(exception, "code", None)
        frames = exception.__traceback__ is not None
        file = os.environ["PROBE_JOURNAL"] + ".policy"
        with open(file, "a") as journal:
            kind = isinstance(exception, Refused)
            journal.write(json.dumps([attempt, kind, code, frames]) + "\n")
        return None if code == 3 else datetime.now(UTC)


class Fails(Small):
    """Fails in every attempt."""

    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        raise ValueError("as always")


class FailsInspected(Small):
    """Fails with its attempt number as the code."""

    retry_policy = Inspecting()

    async def execute(self) -> None:
        note("start")
        raise Refused(context().attempt)


class LacksLock(AtGate):
    """Cannot get a lock of its own until the gate is open."""

    async def execute(self) -> int:
        note("start")
        if not is_open(self.gate):
            raise UnableToAcquireLockError("somebody else has it")
        return context().attempt


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Buried(UnderMutex, Small):
    """Fails once, for good, and is kept in SQL."""

    dlq_eligible = True

    async def execute(self) -> None:
        note("start")
        raise Refused(42)


@dataclass
class Report(Small):
    """A callback: writes down how the children ended."""

    name: str
    priority = Priority.REALTIME

    async def execute(self) -> list[Any]:
        found = [(child.state, child.value) for child in await context().group_results()]
        note("start", name=self.name, children=json.loads(json.dumps(found, default=repr)))
        return found


@dataclass
class MayFail(Small):
    """A child that ends dead on request."""

    value: int
    fails: bool = False

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(0.02)
        if self.fails:
            raise ValueError("the one that fails")
        return self.value


@dataclass
class Parent(Small):
    """Spawns a group; returns its id.

    Attributes:
        failing: index of the child that fails, -1 for none.
        fail_first: its first attempt fails after it has spawned.
    """

    children: int
    failing: int = -1
    with_failure: bool = False
    fail_first: bool = False
    retry_policy = SOON

    async def execute(self, spawn: CallbackSpawner) -> str:
        note("start")
        group = await spawn(
            [MayFail(n, n == self.failing) for n in range(self.children)],
            Report("callback"),
            on_failure=Report("failure") if self.with_failure else None,
        )
        if self.fail_first and context().attempt == 1:
            raise ValueError("after spawning")
        return group


def holder_of_the_lock() -> bool:
    """Whether this very attempt holds the mutex now, by Redis."""
    own = context()
    with redis.Redis.from_url(os.environ["PROBE_REDIS"], decode_responses=True) as client:
        found = client.get("{acceptance}:lock:mutex:job:shared")
    parts = str(found).partition("|")[0].split("/")
    return parts[0] == own.id and parts[-1] == str(own.fence)


@dataclass
class Session:
    """Stands for an SQL transaction."""

    fail_commit: bool = False
    written: list[str] = field(default_factory=list)


async def session() -> AsyncIterator[Session]:
    """Commits on success, rolls back on failure; says whether the lock was held then."""
    opened = Session()
    note("opened", held=holder_of_the_lock())
    try:
        yield opened
    except BaseException as error:
        note("rolled back", held=holder_of_the_lock(), error=type(error).__name__)
        raise
    if opened.fail_commit:
        note("commit failed", held=holder_of_the_lock())
        raise OSError("disk full")
    note("committed", held=holder_of_the_lock())


@dataclass
class Transactional(UnderMutex, Small):
    """Uses a session; ``mode``: ``good``, ``fails``, ``commit fails``, ``waits for GATE``,
    ``blocks until GATE``."""

    mode: str
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self, db: Annotated[Session, Depends(session)]) -> str:
        note("executed", held=holder_of_the_lock())
        db.fail_commit = self.mode == "commit fails"
        if self.mode == "fails":
            raise ValueError("no")
        if self.mode.startswith("waits for "):
            await passed(self.mode.removeprefix("waits for "))
        if self.mode.startswith("blocks until "):
            passed_blocking(self.mode.removeprefix("blocks until "))
        return "ok"


class RetriedLater(Small):
    """Fails once, is retried after a delay, and returns the number of its attempt."""

    retry_policy = ExponentialBackoff(base_delay_seconds=0.3, max_retries=1)

    async def execute(self) -> int:
        if context().attempt == 1:
            raise ValueError("once")
        return context().attempt


class BuriedFreely(Small):
    """Fails for good without any lock, under a policy that would retry for ever; kept in SQL."""

    dlq_eligible = True
    retry_policy = ExponentialBackoff(max_retries=sys.maxsize)

    async def execute(self) -> None:
        note("start")
        raise StopRetrying("hopeless")
