"""The classes that authors subclass."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict, Unpack, overload

from pydantic import BaseModel

from nonet.base.errors import NotBoundError
from nonet.base.streams import Priority, Size
from nonet.messages.terms import StartBy
from nonet.tasks.arguments import Constructible
from nonet.tasks.handles import Handle, R, R_co
from nonet.tasks.locks import (
    TASK,
    BaseLock,
    ConcurrencyLimiter,
    MutexLock,
    RateLimiter,
    encode_locks,
)
from nonet.tasks.retry import NoRetry, RetryPolicyBase
from nonet.tasks.schedules import CatchUp, Overlap, TaskScheduleBase
from nonet.tasks.unique import Unique

# A lower limit of memory would be that of an interpreter that has loaded nothing yet.
LEAST_MEMORY_LIMIT = 32 * 2**20


class Isolation(StrEnum):
    """Where an attempt runs.

    Attributes:
        LOOP: ``loop``: in the worker's own process.
        CHILD: ``child``: in a child process, which runs others after it.
        FRESH: ``fresh``: in a child process of its own.

    Example:
        class Parse(BaseTask):
            size = Size.SMALL
            isolation = Isolation.CHILD
    """

    LOOP = "loop"
    CHILD = "child"
    FRESH = "fresh"


class FromClass(Enum):
    """That an option of a submission is not given: what the class says holds."""

    FROM_CLASS = "as the class says"

    def __repr__(self) -> str:
        return str(self.value)


FROM_CLASS = FromClass.FROM_CLASS


class SubmitManyOptions(TypedDict, total=False):
    """What may be said of many submissions at once; `BaseTask.schedule` tells what it means."""

    at_time: datetime | None
    labels: Mapping[str, Any] | None
    transaction: Any
    start_by: StartBy | FromClass | None
    unique: Unique | FromClass | None


class SubmitOptions(SubmitManyOptions, total=False):
    """What may be said of one submission."""

    id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is said of a submission: the options of `BaseTask.schedule`."""

    at_time: datetime | None = None
    id: str | None = None
    labels: Mapping[str, Any] | None = None
    transaction: Any = None
    start_by: StartBy | FromClass | None = FROM_CLASS
    unique: Unique | FromClass | None = FROM_CLASS


PLAIN = Options()


class AsyncTask(Protocol[R_co]):
    """For type checkers: a task whose ``async def execute`` returns an `R_co`."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[R_co]:
        """Whatever is injected into it."""
        ...


class PlainTask(Protocol[R_co]):
    """For type checkers: a task whose ``def execute`` returns an `R_co`."""

    def execute(self, *args: Any, **kwargs: Any) -> R_co:
        """Whatever is injected into it."""
        ...


class TaskOf(Protocol[R_co]):
    """For type checkers: any task whose result is an `R_co`, by what its ``schedule`` gives.

    Functions that take a task have this instead of overloads as `BaseTask.schedule` has: after one
    call of these with a wrong type pyright would refuse right ones.
    """

    def schedule(self) -> Coroutine[Any, Any, Handle[R_co]]:
        """See `BaseTask.schedule`."""
        ...


class Submitter(Protocol):
    """What ``.schedule()`` needs of an open application."""

    async def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> Handle[Any]:
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
        isolation: `Isolation`; None: by the size: LOOP if small (CHILD if it has a limit of memory
            or CPU time), CHILD if medium, FRESH if large.
        memory_limit: memory that the process of an attempt may have, in bytes or as ``"512MiB"``;
            None: any.
        cpu_limit: seconds of CPU time that an attempt may use; None: any.
        start_by: seconds, or a timedelta, after its submission by which a task must have been
            started: else it never runs and ends ``expired``; None: as late as it may be.
        unique: which submissions are the same task, see `nonet.Unique`; None: only those of one id.
        durable: keep what was submitted in SQL until it has ended, so that a loss of Redis
            does not lose it.
        min_version: which version of the distribution that provides the class a worker must have
            at least to run what is submitted from now on (PEP 440); None: any.

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
    isolation: ClassVar[Isolation | None] = None
    memory_limit: ClassVar[int | str | None] = None
    cpu_limit: ClassVar[float | None] = None
    start_by: ClassVar[float | timedelta | None] = None
    unique: ClassVar[Unique | None] = None
    durable: ClassVar[bool] = False
    min_version: ClassVar[str | None] = None

    @property
    def execution_locks(self) -> list[BaseLock]:
        """The locks that this task needs while it runs; a property or a method.

        The default is a rate and a concurrency limiter on the class, both without a limit.

        Example:
            @dataclass
            class RemoveFile(BaseTask):
                lfn: str

                @property
                def execution_locks(self) -> list[BaseLock]:
                    return [*super().execution_locks, MutexLock("job", self.lfn)]
        """
        name = type(self).__name__
        return [RateLimiter(TASK, name), ConcurrencyLimiter(TASK, name)]

    # For type checkers: a subclass has one with parameters and a result of its own.
    if TYPE_CHECKING:

        def execute(self, *args: Any, **kwargs: Any) -> Any:
            """What the task does."""

    @overload
    async def schedule(self: AsyncTask[R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...

    @overload
    async def schedule(self: PlainTask[R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...

    async def schedule(self: Any, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """Submit this task through the open application.

        Args:
            options: each of those that follow, by its name; none must be given.
            at_time: when to run it at the earliest; aware, or naive in UTC. None: now.
            id: your own id, at most 128 characters. Submitting an id again is the same task.
            labels: free data that travels along; ``priority`` and ``size`` among them override
                the class and the configuration for this submission.
            transaction: of a durable class only: an SQLAlchemy ``AsyncConnection`` or
                ``AsyncSession`` on the database of ``NONET_DB_URL``. The task exists once your
                transaction is committed, and never if it is rolled back.
            start_by: when it must have been started, else it never runs and ends ``expired``:
                seconds or a timedelta from now, or an instant as `at_time`; None: as late as it
                may be. By default as the class says.
            unique: which submissions are the same task, see `nonet.Unique`; None: none. By default
                as the class says.

        Returns:
            `nonet.Handle`, a ``str`` (the id) with ``status()`` and ``result()``; its ``created``
            is False if the task was there before, by its id or its unique key.

        Raises:
            NotBoundError: no application is open in this process.
            InvalidArgumentsError: an argument does not fit; nothing was submitted.
            AdmissionRejected: there are as many tasks as the configuration allows.
            BrokerFullError: Redis has no memory for another task.
            ServerUnreachableError: Redis does not answer, or SQL of a durable class. Whether it was
                submitted is not known: submitted again with its own `id` it stays the same task.

        Example:
            handle = await Add(1, 2).schedule(
                at_time=datetime.now(UTC) + timedelta(seconds=0.1), labels={"vo": "lhcb"}
            )
            assert await handle.result(timeout=30) == 3
        """
        return await current_submitter().submit(self, **options)


class PeriodicBaseTask(BaseTask):
    """Base of tasks that the scheduler submits, once per installation.

    Class attributes:
        _schedule (alias ``default_schedule``): when; configuration may override it.
        _enabled: False keeps it from being planned unless configured.
        _overlap: what an occurrence does while the one before still runs. None: `Overlap.SKIP` if
            the task takes a mutex or is a writer, else `Overlap.ALLOW`.
        _catch_up: which occurrences missed for longer than the misfire grace are submitted.
        _misfire_grace: seconds; those missed for less are submitted one by one. None:
            ``NONET_MISFIRE_GRACE``, or the interval if that is shorter.
        _catch_up_limit: with `CatchUp.ALL`, how many of them at most.
        _jitter: seconds; each occurrence is late by up to so much.

    Example:
        class SubmitPilots(PeriodicBaseTask):
            _schedule = CronSchedule("*/10 * * * *")

            async def execute(self) -> None: ...
    """

    _schedule: ClassVar[TaskScheduleBase | None] = None
    default_schedule: ClassVar[TaskScheduleBase | None] = None
    _enabled: ClassVar[bool] = True
    _overlap: ClassVar[Overlap | None] = None
    _catch_up: ClassVar[CatchUp] = CatchUp.ONE
    _catch_up_limit: ClassVar[int] = 100
    _jitter: ClassVar[float] = 0
    _misfire_grace: ClassVar[float | None] = None

    @staticmethod
    def validate_config(config: list[Any]) -> None:
        """Check the configured entries of this class together.

        Args:
            config: the `nonet.config.TaskConfig` entries of one VO or of the installation.

        Raises:
            ValueError: they make no sense; the message is shown to the administrator.

        Example:
            class SubmitPilots(PeriodicBaseTask):
                @staticmethod
                def validate_config(config: list[TaskConfig]) -> None:
                    if len({entry.args.get("ce_regex") for entry in config}) < len(config):
                        raise ValueError("two entries have the same ce_regex")
        """

    @property
    def execution_locks(self) -> list[BaseLock]:
        """A mutex on the class: sweeps of one kind never overlap."""
        return [MutexLock(TASK, type(self).__name__)]


@dataclass(init=False, repr=False, eq=False)  # those of a pydantic model count
class PeriodicVoAwareBaseTask(PeriodicBaseTask):
    """Base of periodic tasks that run once per VO, as ``cls(vo=vo, **args)``.

    Args:
        vo: the VO that this task works for.
        attributes: what the configuration gives as ``args``; each becomes an attribute.

    Example:
        class SyncUsers(PeriodicVoAwareBaseTask):
            _schedule = IntervalSecondsSchedule(3600)

            async def execute(self) -> str:
                return f"users of {self.vo}"
    """

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


def ensure_task(given: object, what: str) -> None:
    """Refuse what is no task.

    Args:
        what: of what this is an argument, for the message.

    Raises:
        TypeError: it is none, or a class.
    """
    if isinstance(given, BaseTask):
        return
    if isinstance(given, type) and issubclass(given, BaseTask):
        name = given.__name__
        raise TypeError(f"{what}: {name} is a class: give an instance, {name}(…)")
    raise TypeError(
        f"{what}: {given!r:.200} is no task: give an instance of a class with BaseTask as its base"
    )


def declared_locks(task: BaseTask) -> list[BaseLock]:
    """The locks a task declares, whether `execution_locks` is a property or a method.

    Raises:
        ValueError: what it gives is no list of locks.
    """
    declared: Any = task.execution_locks
    if inspect.ismethod(declared):
        declared = declared()
    if isinstance(declared, Iterable):
        locks = list(declared)  # a generator gives them once
        if all([isinstance(lock, BaseLock) for lock in locks]):  # noqa: C419  # three times as fast
            return locks
    raise ValueError(f"it must give a list of locks, not {declared!r:.200}")


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
    if is_default and not vo:  # these need no line, and most tasks have no others
        return ""
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
