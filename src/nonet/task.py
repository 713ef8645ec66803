"""The classes that authors subclass."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from nonet.arguments import Constructible
from nonet.errors import NotBoundError
from nonet.locks import (
    TASK,
    BaseLock,
    ConcurrencyLimiter,
    MutexLock,
    RateLimiter,
    encode_locks,
)
from nonet.retry import NoRetry, RetryPolicyBase
from nonet.schedules import CatchUp, Overlap, TaskScheduleBase


class Priority(StrEnum):
    """Which stream is read first. Strict: no background task starts while a normal one waits."""

    REALTIME = "realtime"
    NORMAL = "normal"
    BACKGROUND = "background"


class Size(StrEnum):
    """Which pool of workers runs a task."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Submitter(Protocol):
    """What ``.schedule()`` needs of an open application."""

    async def submit(
        self,
        task: BaseTask,
        *,
        at_time: datetime | None = None,
        id: str | None = None,
        labels: Mapping[str, Any] | None = None,
        transaction: Any = None,
    ) -> str:
        """Submit one task and return its handle."""
        ...


class BaseTask(Constructible):
    """Base of all tasks: a plain class with arguments and an ``execute`` method.

    Class attributes:
        priority: `Priority`, NORMAL by default.
        size: `Size`, MEDIUM by default.
        retry_policy: what happens after a failed attempt; `NoRetry` by default.
        dlq_eligible: keep the task in SQL when it has failed for good.
        soft_timeout: seconds after which an attempt is cancelled; None: never.
        hard_timeout: seconds after which one is given up that did not end when cancelled.
        durable: keep what was submitted in SQL until it has ended, so that a loss of Redis
            does not lose it.

    ``execute`` may be ``async def`` or ``def`` (then it runs in a thread); its parameters are
    injected, see `nonet.Depends`. What it returns is the task's result.

    Example:
        @dataclass
        class Add(BaseTask):
            a: int
            b: int
            size = Size.SMALL

            async def execute(self) -> int:
                return self.a + self.b

        handle = await Add(1, 2).schedule()
        assert await handle.result(timeout=10) == 3
    """

    priority: ClassVar[Priority] = Priority.NORMAL
    size: ClassVar[Size] = Size.MEDIUM
    retry_policy: ClassVar[RetryPolicyBase] = NoRetry()
    dlq_eligible: ClassVar[bool] = False
    soft_timeout: ClassVar[float | None] = None
    hard_timeout: ClassVar[float | None] = None
    durable: ClassVar[bool] = False

    @property
    def execution_locks(self) -> list[BaseLock]:
        """The locks that this task needs while it runs; a property or a method.

        The default is a rate and a concurrency limiter on the class, both without a limit.
        """
        name = type(self).__name__
        return [RateLimiter(TASK, name), ConcurrencyLimiter(TASK, name)]

    async def schedule(
        self,
        *,
        at_time: datetime | None = None,
        id: str | None = None,
        labels: Mapping[str, Any] | None = None,
        transaction: Any = None,
    ) -> Any:
        """Submit this task through the open application.

        Args:
            at_time: when to run it at the earliest; aware, or naive in UTC. None: now.
            id: your own id, at most 128 characters. Submitting an id again is the same task.
            labels: free data that travels along; ``priority`` and ``size`` among them override
                the class and the configuration for this submission.
            transaction: of a durable class only: an SQLAlchemy ``AsyncConnection`` or
                ``AsyncSession`` on the database of ``NONET_DB_URL``. The task exists once your
                transaction is committed, and never if it is rolled back.

        Returns:
            `nonet.Handle`, a ``str`` (the id) with ``status()`` and ``result()``.

        Raises:
            NotBoundError: no application is open in this process.
            InvalidArgumentsError: an argument does not fit; nothing was submitted.
        """
        return await current_submitter().submit(
            self, at_time=at_time, id=id, labels=labels, transaction=transaction
        )


class PeriodicBaseTask(BaseTask):
    """Base of tasks that the scheduler submits, once per installation.

    Class attributes:
        _schedule (alias ``default_schedule``): when; configuration may override it.
        _enabled: False keeps it from being planned unless configured.
        _overlap: what an occurrence does while the one before still runs. None: `Overlap.SKIP` if
            the task takes a mutex or is a writer, else `Overlap.ALLOW`.
        _catch_up: which occurrences missed for longer than ``NONET_MISFIRE_GRACE`` are submitted.
        _catch_up_limit: with `CatchUp.ALL`, how many of them at most.
        _jitter: seconds; each occurrence is late by up to so much.
    """

    _schedule: ClassVar[TaskScheduleBase | None] = None
    default_schedule: ClassVar[TaskScheduleBase | None] = None
    _enabled: ClassVar[bool] = True
    _overlap: ClassVar[Overlap | None] = None
    _catch_up: ClassVar[CatchUp] = CatchUp.ONE
    _catch_up_limit: ClassVar[int] = 100
    _jitter: ClassVar[float] = 0

    @staticmethod
    def validate_config(config: list[Any]) -> None:
        """Check the configured entries of this class together.

        Args:
            config: the `nonet.config.TaskConfig` entries of one VO or of the installation.

        Raises:
            ValueError: they make no sense; the message is shown to the administrator.
        """

    @property
    def execution_locks(self) -> list[BaseLock]:
        """A mutex on the class: sweeps of one kind never overlap."""
        return [MutexLock(TASK, type(self).__name__)]


@dataclass(init=False, repr=False, eq=False)  # those of a pydantic model count
class PeriodicVoAwareBaseTask(PeriodicBaseTask):
    """Base of periodic tasks that run once per VO, as ``cls(vo=vo, **args)``."""

    vo: str

    def __init__(self, vo: str, **attributes: Any) -> None:
        if isinstance(self, BaseModel):
            BaseModel.__init__(self, vo=vo, **attributes)
            return
        self.vo = vo
        for name, value in attributes.items():
            setattr(self, name, value)

    @property
    def execution_locks(self) -> list[BaseLock]:
        """A mutex on the class and the VO."""
        return [MutexLock(TASK, type(self).__name__, self.vo)]


# The bases' own constructors do not make a subclass one "with an own __init__".
PeriodicVoAwareBaseTask._body_has_init = False


def declared_locks(task: BaseTask) -> list[BaseLock]:
    """The locks a task declares, whether `execution_locks` is a property or a method.

    Raises:
        ValueError: what it gives is no list of locks.
    """
    declared: Any = task.execution_locks
    if inspect.ismethod(declared):
        declared = declared()
    if not isinstance(declared, Iterable) or not all(isinstance(x, BaseLock) for x in declared):
        raise ValueError(f"it must give a list of locks, not {declared!r:.200}")
    return list(declared)


def task_locks(task: BaseTask, name: str, labels: Mapping[str, Any]) -> str:
    """The encoded locks of a task, as submitter and worker compute them.

    Args:
        name: full task name.
        labels: ``vo`` among them counts for tasks without a ``vo`` of their own.

    Raises:
        ValueError: `execution_locks` gives no list of locks, or a lock does not fit.
    """
    vo = vo_of(task, labels)
    is_default = type(task).execution_locks is BaseTask.execution_locks
    # These need no line, and most tasks have no others: both sides compute them for every task.
    locks = [] if is_default else declared_locks(task)
    return encode_locks(locks, task=name.rpartition(":")[2], vo=vo)


def vo_of(task: BaseTask, labels: Mapping[str, Any]) -> str:
    """The VO of a task: its ``vo``, else label ``vo``, else none, which is empty."""
    return str(getattr(task, "vo", None) or labels.get("vo") or "")


_submitters: list[Submitter] = []


def bind_submitter(submitter: Submitter) -> None:
    """Make ``.schedule()`` use `submitter`, process-wide, until `unbind_submitter`."""
    _submitters.append(submitter)


def unbind_submitter(submitter: Submitter) -> None:
    """Undo `bind_submitter`."""
    _submitters.remove(submitter)


def current_submitter() -> Submitter:
    """The submitter bound last.

    Raises:
        NotBoundError: none is bound.
    """
    if not _submitters:
        raise NotBoundError(
            "no application is open: schedule tasks inside `async with Nonet.from_settings():`"
        )
    return _submitters[-1]
