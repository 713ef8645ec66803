"""Tasks that hurt the process in which they run, and tasks that must not notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from acceptance.probe_tasks import Small, UnderMutex, is_open, note, passed

from nonet import (
    BaseTask,
    Depends,
    ExponentialBackoff,
    MutexLock,
    RetryPolicyBase,
    Size,
    TaskCrashed,
    context,
)

# More than the crash limit, and at once.
OFTEN = ExponentialBackoff(base_delay_seconds=0, max_retries=20)
HARD_SECONDS = 0.5
MEMORY = 256 * 1024 * 1024
_kept: list[Any] = []


@dataclass
class Neighbour(BaseTask):
    """Works for a moment and says in which process."""

    number: int = 0

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(0.2)
        note("end")
        return self.number


class Culprit(BaseTask):
    """Base of those that end badly."""

    retry_policy = OFTEN
    dlq_eligible = True
    hard_timeout = HARD_SECONDS
    memory_limit = MEMORY

    async def execute(self) -> None:
        note("start")
        await self.end()

    async def end(self) -> None:
        raise NotImplementedError


@dataclass
class Exits(Culprit):
    async def end(self) -> None:
        os._exit(1)


@dataclass
class Segfaults(Culprit):
    async def end(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)
        await asyncio.sleep(60)


@dataclass
class Hogs(Culprit):
    hard_timeout = 20.0

    async def end(self) -> None:
        while True:
            _kept.append(b"x" * 1_000_000)


@dataclass
class HoldsGil(Culprit):
    async def end(self) -> None:
        while True:
            sum(range(10_000_000))  # in C, which nobody interrupts


@dataclass
class Swallows(Culprit):
    async def end(self) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException:
                continue


@dataclass
class Burns(Culprit):
    hard_timeout = 20.0
    cpu_limit = 0.3

    def execute(self) -> None:
        note("start")
        while True:
            pass


CULPRITS = (Exits, Segfaults, Hogs, HoldsGil, Swallows, Burns)


@dataclass
class GatedChild(UnderMutex, BaseTask):
    """Holds a mutex in a child process until the test opens its gate."""

    gate: str

    async def execute(self) -> int:
        note("start")
        await passed(self.gate)
        note("end")
        return os.getpid()


@dataclass
class Beats(UnderMutex, BaseTask):
    """Holds a mutex and says 50 times a second that it lives; it blocks its loop."""

    gate: str

    async def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            note("beat")
            time.sleep(0.02)  # noqa: ASYNC251  # nobody shall be able to stop it from inside


@dataclass
class Stubborn(BaseTask):
    """Swallows what cancels it, and says so."""

    gate: str

    async def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                note("cancelled")


@dataclass
class Asks(BaseTask):
    """Asks in a child what its policy is asked, then dies."""

    class Policy(RetryPolicyBase):
        def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
            told = [type(exception).__name__, str(exception), os.getpid()]
            if isinstance(exception, TaskCrashed):
                told.append(exception.signal)
            with open(os.environ["PROBE_JOURNAL"] + ".policy", "a") as file:
                print(json.dumps(told), file=file)
            return datetime.now(UTC) if attempt < 2 else None

    retry_policy = Policy()

    async def execute(self) -> None:
        note("start")
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)


def session() -> Iterator[str]:
    note("opened")
    yield "session"
    note("committed")


@dataclass
class Whole(BaseTask):
    """Uses all that a task has."""

    text: str

    async def execute(self, opened: Annotated[str, Depends(session)]) -> dict[str, Any]:
        own = context()
        before = own.saved
        await own.checkpoint(before or 1)
        own.ensure_lease()
        own.after_commit(Neighbour(7), id=f"{own.id}-next")
        (own.workdir / "file").write_text(self.text)
        handle = await Neighbour(3).schedule(id=f"{own.id}-child")
        return {
            "text": self.text,
            "opened": opened,
            "attempt": own.attempt,
            "labels": dict(own.labels),
            "workdir": str(own.workdir),
            "child": str(handle),
            "parent": os.getppid(),
            "pid": os.getpid(),
            "group": os.getpgrp(),
        }


@dataclass
class Roomy(BaseTask):
    """Says where its temporary files go, and leaves one there."""

    size = Size.LARGE

    def execute(self) -> list[str]:
        note("start")
        Path(tempfile.gettempdir(), "left").write_text("x")
        return [tempfile.gettempdir(), str(context().workdir)]


class Endless(Small):
    """A small task that never gives the loop back, with a hard timeout."""

    retry_policy = OFTEN
    dlq_eligible = True
    hard_timeout = HARD_SECONDS

    async def execute(self) -> None:
        note("start")
        while True:
            pass


class EndlessOutside(Small):
    """Base of small tasks that never give the loop back, but not in ``execute``."""

    hard_timeout = HARD_SECONDS

    async def execute(self) -> None:
        raise ValueError("asks the policy")


@dataclass
class EndlessConstructor(EndlessOutside):
    def __post_init__(self) -> None:
        hang_in_worker()


@dataclass
class EndlessLocks(EndlessOutside):
    @property
    def execution_locks(self) -> list[MutexLock]:
        hang_in_worker()
        return []


class EndlessRetries(RetryPolicyBase):
    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        hang_in_worker()
        return None


@dataclass
class EndlessPolicy(EndlessOutside):
    retry_policy = EndlessRetries()


def hang_in_worker() -> None:
    """Not in the process of the test, which submits."""
    while "PROBE_JOURNAL" in os.environ:
        pass


@dataclass
class Leaves(BaseTask):
    """Leaves a process behind, and says which."""

    how: str
    gate: str
    size = Size.LARGE

    async def execute(self) -> None:
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        if self.how == "other environment":
            left = subprocess.Popen(sleeper, env={}, start_new_session=True).pid  # noqa: ASYNC220
        else:
            left = _orphan(is_double=self.how == "double fork")
        note("start", left=left)
        await passed(self.gate)


def _orphan(*, is_double: bool) -> int:
    """A copy of this process in a session of its own; of a double fork the parent has ended."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if is_double and os.fork() != 0:
            os._exit(0)
        os.write(write, str(os.getpid()).encode())
        time.sleep(600)
        os._exit(0)
    if is_double:
        os.waitpid(child, 0)
    return int(os.read(read, 20))


@dataclass
class Litters(BaseTask):
    """Leaves processes without a parent behind that end at once."""

    count: int
    size = Size.MEDIUM

    async def execute(self) -> int:
        script = "for each in $(seq $0); do (: &); done"
        shell = await asyncio.create_subprocess_exec("sh", "-c", script, str(self.count))
        await shell.wait()
        return os.getpid()


@dataclass
class KillsItsServer(BaseTask):
    """Kills the fork server that has forked its process."""

    retry_policy = OFTEN
    dlq_eligible = True

    async def execute(self) -> None:
        note("start")
        os.kill(os.getppid(), signal.SIGKILL)
        await asyncio.sleep(60)


@dataclass
class Slow(BaseTask):
    """Takes a second."""

    number: int

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(1)
        return self.number


@dataclass
class GoesOnInThread(UnderMutex, BaseTask):
    """Holds a mutex; its thread, which its soft timeout does not reach, says that it runs on."""

    soft_timeout = 0.3

    async def execute(self) -> None:
        note("start")
        await asyncio.to_thread(self._beat)

    def _beat(self) -> None:
        while True:
            note("beat")
            time.sleep(0.01)


@dataclass
class Copies(BaseTask):
    """Forks, and both copies run on."""

    async def execute(self) -> str:
        os.fork()
        return "once"


async def lingering() -> AsyncIterator[None]:
    """A dependency of the process whose end takes long, and writes."""
    yield
    while True:
        line = {"id": "process", "attempt": 0, "fence": 0, "event": "lingers", "task": ""}
        with open(os.environ["PROBE_JOURNAL"], "a") as file:  # noqa: ASYNC230  # short
            print(json.dumps({**line, "pid": os.getpid(), "at": time.time()}), file=file)
        await asyncio.sleep(0.02)


@dataclass
class Lingers(UnderMutex, BaseTask):
    """Holds a mutex, and has a process that does not end with it."""

    size = Size.LARGE

    async def execute(self, opened: Annotated[None, Depends(lingering, scope="process")]) -> None:
        note("start")


@dataclass
class HogsAtItsEnd(BaseTask):
    """Exceeds its limit of memory at the very end."""

    memory_limit = MEMORY

    async def execute(self) -> None:
        _kept.append(b"x" * (MEMORY - 16_000_000))


@dataclass
class Forgets(BaseTask):
    """Runs after it in the same process, without any limit."""

    async def execute(self) -> None:
        _kept.clear()


class _NoFlush:
    """A stdout that cannot be flushed."""

    def __init__(self, of: Any) -> None:
        self.write = of.write


if os.environ.get("ISOLATED_STDOUT"):
    sys.stdout = _NoFlush(sys.stdout)
if os.environ.get("ISOLATED_SIGNALS"):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@dataclass
class Long(BaseTask):
    """Returns more than a message may have."""

    async def execute(self) -> str:
        return "x" * 300_000
