"""Tasks of which the middleware of this module keeps a journal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import SecretStr

from nonet import (
    BaseTask,
    CallbackSpawner,
    Depends,
    ExponentialBackoff,
    IntervalSeconds,
    Isolation,
    Middleware,
    OutgoingTask,
    PeriodicBaseTask,
    RunningTask,
    Size,
    carry_context,
    context,
    register_middleware,
)

logger = logging.getLogger("author")

request_id: ContextVar[str] = ContextVar("request_id")
tenant: ContextVar[int | None] = ContextVar("tenant", default=None)
mark: ContextVar[str] = ContextVar("mark", default="none")


def write(**fields: Any) -> None:
    """One line of the journal."""
    with Path(os.environ["AROUND_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps({**fields, "pid": os.getpid()}) + "\n")


class Journal(Middleware):
    """Writes what it sees.

    Args:
        name: in each line.
    """

    def __init__(self, name: str, order: int = 0) -> None:
        self.name = name
        self.order = order  # type: ignore[misc]  # one class, several places

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        told = {"by": self.name, "id": task.id, "task": task.name, "parent": task.parent}
        schedule = repr(task.schedule) if task.schedule else ""
        task.labels["via"] = task.labels.get("via", "") + self.name
        write(event="submitting", schedule=schedule, **told)
        try:
            yield
        except BaseException as error:
            write(event="refused", error=type(error).__name__, **told)
            raise
        write(event="submitted", **told)

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        told = {"by": self.name, "id": task.id, "task": task.name, "attempt": task.attempt}
        mark.set(self.name)
        write(event="begins", arguments=task.arguments, labels=dict(task.labels), **told)
        caught = ""
        try:
            yield
        except BaseException as error:
            assert error is task.error
            caught = repr(error)
            raise
        finally:
            retry_in = task.retry_in.total_seconds() if task.retry_in else None
            write(event="ends", outcome=task.outcome, caught=caught, retry_in=retry_in, **told)

    def around_thread(self, task: RunningTask) -> Iterator[None]:
        write(event="in thread", by=self.name, name=threading.current_thread().name)
        yield
        write(event="out of thread", by=self.name)

    async def close(self) -> None:
        write(event="closed", by=self.name)


class Broken(Middleware):
    """Fails in each way, as an environment variable says."""

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        self._fail("before submit")
        yield
        self._fail("after submit")

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        self._fail("before attempt")
        with suppress(ValueError):  # a failure that it hides is one all the same
            yield
        self._fail("after attempt")

    def _fail(self, where: str) -> None:
        match os.environ.get("AROUND_BROKEN", "").partition(":"):
            case [asked, _, "exit"] if asked == where:
                raise SystemExit(where)
            case [asked, _, "cancel"] if asked == where:
                raise asyncio.CancelledError(where)
            case [asked, *_] if asked == where:
                raise OSError(where)


class Used(Journal):
    """Journal of an application of its own."""


def register() -> None:
    """Register everything, as a module with tasks does when it is imported."""
    carry_context(request_id)
    carry_context(tenant, decode=int)
    register_middleware(Journal("inner", order=1))
    register_middleware(Broken())
    register_middleware(Journal("outer", order=-1))


register()


def dependency() -> Iterator[str]:
    write(event="opened")
    yield mark.get()
    write(event="committed")


@dataclass
class Sees(BaseTask):
    """Tells what is set where it runs."""

    size = Size.SMALL

    async def execute(self, opened: Annotated[str, Depends(dependency)]) -> list[Any]:
        logger.info("seen")
        return [opened, mark.get(), request_id.get("none"), tenant.get()]


@dataclass
class SeesInThread(BaseTask):
    """The same, in a thread."""

    size = Size.SMALL

    def execute(self) -> list[Any]:
        return [mark.get(), request_id.get("none"), tenant.get()]


@dataclass
class SeesInChild(Sees):
    """The same, in a process of its own."""

    isolation = Isolation.FRESH


@dataclass
class Fails(BaseTask):
    """Fails once, or always."""

    password: SecretStr
    times: int = 9

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0.01, max_retries=1)

    async def execute(self) -> list[Any]:
        if context().attempt <= self.times:
            raise ValueError("no")
        return [request_id.get("none"), tenant.get()]


@dataclass
class FailsInChild(Fails):
    """The same, in a process of its own."""

    isolation = Isolation.CHILD


@dataclass
class Dies(BaseTask):
    """Kills its process."""

    size = Size.SMALL
    isolation = Isolation.CHILD
    retry_policy = ExponentialBackoff(base_delay_seconds=0.01, max_retries=1)

    async def execute(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Waits(BaseTask):
    """Until it is cancelled."""

    size = Size.SMALL

    async def execute(self) -> None:
        write(event="waits")
        await asyncio.Event().wait()


@dataclass
class Collect(BaseTask):
    """The callback of a group."""

    size = Size.SMALL

    async def execute(self) -> list[Any]:
        children = [child.value[2:] for child in await context().group_results()]
        return [request_id.get("none"), tenant.get(), *children]


@dataclass
class Spawns(BaseTask):
    """Submits in each way in which a task can."""

    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> list[str]:
        after = context().after_commit(Sees())
        child = await SeesInChild().schedule()
        await spawn([Sees(), SeesInThreadToo()], Collect())
        return [after, child]


@dataclass
class SeesInThreadToo(BaseTask):
    """With as many results as `Sees`."""

    size = Size.SMALL

    def execute(self) -> list[Any]:
        return ["", *SeesInThread().execute()]


class Ticks(PeriodicBaseTask):
    """A submission of the scheduler."""

    size = Size.SMALL
    _schedule = IntervalSeconds(1)

    async def execute(self) -> None:
        write(event="ticked", context=request_id.get("none"))
