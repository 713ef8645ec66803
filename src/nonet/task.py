"""The classes that authors subclass, and what one execution knows of itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

from pydantic import BaseModel

from nonet.arguments import Constructible
from nonet.errors import InvalidArgumentsError, LeaseLostError, NotBoundError
from nonet.locks import (
    TASK,
    BaseLock,
    ConcurrencyLimiter,
    MutexLock,
    RateLimiter,
    encode_locks,
)
from nonet.message import encode, pack
from nonet.retry import NoRetry, RetryPolicyBase
from nonet.schedules import TaskScheduleBase


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
                the class for this submission.
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
    """

    _schedule: ClassVar[TaskScheduleBase | None] = None
    default_schedule: ClassVar[TaskScheduleBase | None] = None
    _enabled: ClassVar[bool] = True

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
    vo = getattr(task, "vo", None) or labels.get("vo") or ""
    is_default = type(task).execution_locks is BaseTask.execution_locks
    # These need no line, and most tasks have no others: both sides compute them for every task.
    locks = [] if is_default else declared_locks(task)
    return encode_locks(locks, task=name.rpartition(":")[2], vo=str(vo))


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


GroupReader = Callable[[str], Awaitable[Sequence[Any]]]
"""Reads the children's outcomes of a group, in the order in which they were spawned."""

Saver = Callable[[bytes], Awaitable[bool]]
"""Keeps a checkpoint; False if the attempt no longer owns its task."""


class Prepared(Protocol):
    """A checked submission, not sent yet."""

    @property
    def id(self) -> str:
        """Of the task."""
        ...

    @property
    def envelope(self) -> bytes:
        """What travels."""
        ...


Preparer = Callable[..., Prepared]
"""Checks a submission; takes what `BaseTask.schedule` takes."""

# What is submitted with a settle travels in one script call.
_MOST_AFTER_COMMIT = 500
_MOST_BYTES_AFTER_COMMIT = 1024 * 1024


@dataclass(slots=True, eq=False)
class TaskContext:
    """What one execution knows of itself; `context()` returns it inside ``execute``.

    Attributes:
        id: the task's id, the same in every attempt.
        name: full task name.
        attempt: number of this attempt, from 1.
        fence: grows with every admission of any task; store it to refuse older writers.
        labels: the labels of the submission.
        group: id of the group whose callback this is, or empty.
        saved: what the last `checkpoint` of an earlier attempt saved; None if there was none.
    """

    id: str
    name: str
    attempt: int
    fence: int
    labels: Mapping[str, Any]
    group: str = ""
    saved: Any = None
    _lost: str | None = field(default=None, init=False, repr=False)
    _check_lease: Callable[[], None] | None = field(default=None, init=False, repr=False)
    _spawned: int = field(default=0, init=False, repr=False)
    _read_group: GroupReader | None = field(default=None, init=False, repr=False)
    _save: Saver | None = field(default=None, init=False, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)
    _prepare: Preparer | None = field(default=None, init=False, repr=False)
    _after_commit: list[Prepared] = field(default_factory=list, init=False, repr=False)

    def ensure_lease(self) -> None:
        """Return if this attempt still owns its delivery and locks.

        Raises:
            LeaseLostError: it does not; nothing that it writes from now on will be settled.
        """
        if self._lost is None and self._check_lease is not None:
            self._check_lease()
        if self._lost is not None:
            raise LeaseLostError(f"task {self.id} (attempt {self.attempt}): {self._lost}")

    def lose_lease(self, reason: str) -> None:
        """Called by the framework when the lease is gone: `ensure_lease` raises from now on."""
        self._lost = self._lost or reason

    def check_lease_with(self, check: Callable[[], None]) -> None:
        """Called by the framework: what calls `lose_lease` if the lease has ended unnoticed."""
        self._check_lease = check

    async def checkpoint(self, data: Any) -> None:
        """Save progress: the next attempt finds it as ``saved``, whatever ends this one.

        Args:
            data: anything that can travel as an argument; it replaces what was saved before, and
                is forgotten when the task has ended. ``task-run call`` saves nothing.

        Raises:
            TypeError: the data cannot travel.
            ValueError: they are longer than a message may be.
            LeaseLostError: this attempt does not own its task any more; nothing was saved.

        Example:
            done = context().saved or 0
            for number in range(done, len(self.files)):
                await copy(self.files[number])
                await context().checkpoint(number + 1)
        """
        self.ensure_lease()
        packed = encode(pack(data))
        if self._save is not None and not await self._save(packed):
            self.lose_lease("its checkpoint was refused, somebody else has the task")
            self.ensure_lease()

    def checkpoint_from_thread(self, data: Any) -> None:
        """`checkpoint` for a plain ``def execute``, which runs in a thread; returns when saved."""
        if self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(self.checkpoint(data), self._loop).result()

    def after_commit(
        self,
        task: BaseTask,
        *,
        at_time: datetime | None = None,
        id: str | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> str:
        """Submit a task in the very step that settles this one as done.

        That is after its dependencies have committed: the task never runs on what was rolled back,
        and is never missing after a crash. An attempt that fails, or is executed again, submits
        nothing of what it asked for.

        Args:
            task, at_time, id, labels: as in `BaseTask.schedule`.

        Returns:
            The id that the task will have.

        Raises:
            InvalidArgumentsError: an argument does not fit, the class is durable (submit it with
                ``schedule(transaction=…)``), or it is too much for one step (500 tasks, 1 MiB).
            LookupError: this context cannot submit.
        """
        if self._prepare is None:
            raise LookupError("after_commit() works only inside a running task")
        name = type(task).__name__
        if type(task).durable:
            problem = "a durable task is submitted by schedule(transaction=…), not by after_commit"
            raise InvalidArgumentsError(name, [problem])
        prepared = self._prepare(task, at_time=at_time, id=id, labels=labels)
        size = sum(len(item.envelope) for item in (*self._after_commit, prepared))
        if len(self._after_commit) >= _MOST_AFTER_COMMIT or size > _MOST_BYTES_AFTER_COMMIT:
            problem = (
                f"after_commit() takes {_MOST_AFTER_COMMIT} tasks and {_MOST_BYTES_AFTER_COMMIT} "
                "bytes; submit one task that submits the others, or use spawn_with_callback()"
            )
            raise InvalidArgumentsError(name, [problem])
        self._after_commit.append(prepared)
        return prepared.id

    async def group_results(self) -> Sequence[Any]:
        """In a callback: one `nonet.ChildResult` per child, in the order of spawning."""
        if not self.group or self._read_group is None:
            raise LookupError(f"task {self.id} is no callback of a group")
        return await self._read_group(self.group)

    def read_group_with(self, reader: GroupReader) -> None:
        """Called by the framework: how `group_results` reads."""
        self._read_group = reader

    def save_with(self, saver: Saver) -> None:
        """Called by the framework in the loop of the attempt: how `checkpoint` saves."""
        self._save, self._loop = saver, asyncio.get_running_loop()

    def submit_with(self, preparer: Preparer) -> None:
        """Called by the framework: what checks the submissions of `after_commit`."""
        self._prepare = preparer

    @property
    def to_submit(self) -> Sequence[Any]:
        """What `after_commit` was given, for the framework."""
        return self._after_commit

    def next_spawn(self) -> int:
        """Ordinal of the next group of this attempt; the same in a re-run."""
        self._spawned += 1
        return self._spawned


_context: ContextVar[TaskContext] = ContextVar("nonet_task_context")


def context() -> TaskContext:
    """The context of the running task.

    Raises:
        LookupError: called outside ``execute``.
    """
    try:
        return _context.get()
    except LookupError:
        raise LookupError("context() works only inside a running task") from None


def running_context() -> TaskContext | None:
    """The context of the running task, or None outside of one."""
    return _context.get(None)


_Hold: TypeAlias = tuple[str, "asyncio.Task[Any] | None"]
_holds: ContextVar[tuple[_Hold, ...]] = ContextVar("nonet_holds", default=())


def current_holders() -> tuple[str, ...]:
    """Ids of the running task and of the holds that are open here: they keep their locks.

    A hold counts only in the asyncio task that opened it: another one that was started in its
    block may well wait for the end of the block.
    """
    running, here = running_context(), asyncio.current_task()
    holds = [id for id, opened_in in _holds.get() if opened_in is here]
    return (*([running.id] if running else []), *holds)


@contextmanager
def holding(id: str) -> Iterator[None]:
    """Called by the framework around the code under a hold."""
    outer = _holds.get()
    _holds.set((*outer, (id, asyncio.current_task())))
    try:
        yield
    finally:
        _holds.set(outer)


def enter_context(value: TaskContext) -> Token[TaskContext]:
    """Called by the framework when an execution starts; the token undoes it."""
    return _context.set(value)


def leave_context(token: Token[TaskContext]) -> None:
    """Called by the framework where the code after an execution goes on in the same task."""
    _context.reset(token)
