"""What one execution knows of itself: `context()`, and which locks are held around it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from nonet.base.errors import InvalidArgumentsError, LeaseLostError, TaskTimeoutError
from nonet.messages.message import encode, pack
from nonet.tasks.handles import ChildResult
from nonet.tasks.secrecy import secret_texts
from nonet.tasks.task import BaseTask, Options

GroupReader = Callable[[str], Awaitable[Sequence[ChildResult]]]
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


Preparer = Callable[[BaseTask, Options], Prepared]
"""Checks a submission; takes what `BaseTask.schedule` takes."""

# What is submitted with a settle travels in one script call.
_MOST_AFTER_COMMIT = 500
_MOST_BYTES_AFTER_COMMIT = 1024 * 1024


class TaskContext:
    """What one execution knows of itself; `nonet.context` returns it inside ``execute``.

    Attributes:
        id: the task's id, the same in every attempt.
        name: full task name.
        attempt: number of this attempt, from 1.
        fence: grows with every admission of any task; store it to refuse older writers.
        labels: the labels of the submission.
        group: id of the group whose callback this is, or empty.
        saved: what the last `checkpoint` of an earlier attempt saved; None if there was none.

    Example:
        class Where(BaseTask):
            async def execute(self, running: TaskContext) -> str:  # or context()
                return f"{running.id}, attempt {running.attempt}"
    """

    # Most attempts change none of these: one is made for each task.
    _lost: str | None = None
    _timed_out: TaskTimeoutError | None = None
    _check_lease: Callable[[], None] | None = None
    _spawned = 0
    _read_group: GroupReader | None = None
    _save: Saver | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _prepare: Preparer | None = None
    _after_commit: Sequence[Prepared] = ()
    _workdir: Path | None = None
    _parent_dir: str | None = None
    _made_of: tuple[Mapping[str, Any], type] | None = None
    _secrets: Sequence[str] | None = None

    def __init__(
        self,
        id: str,
        name: str,
        attempt: int,
        fence: int,
        labels: Mapping[str, Any],
        group: str = "",
        saved: Any = None,
    ) -> None:
        self.id = id
        self.name = name
        self.attempt = attempt
        self.fence = fence
        self.labels = labels
        self.group = group
        self.saved = saved

    def __repr__(self) -> str:
        return f"TaskContext({self.name} {self.id}, attempt {self.attempt})"

    @property
    def secrets(self) -> Sequence[str]:
        """What stands in secret arguments, and so in no log line, for the framework."""
        if self._secrets is None:
            self._secrets = secret_texts(*self._made_of) if self._made_of is not None else ()
        return self._secrets

    def is_made_of(self, arguments: Mapping[str, Any], cls: type) -> None:
        """Called by the framework: the packed arguments of the task and its class."""
        self._made_of, self._secrets = (arguments, cls), None

    @property
    def workdir(self) -> Path:
        """A directory of this attempt alone, made on first use and deleted when it has ended.

        Raises:
            OSError: it cannot be made.

        Example:
            (context().workdir / "part-1").write_bytes(data)
        """
        if self._workdir is None:
            self._workdir = Path(tempfile.mkdtemp(prefix="nonet-", dir=self._parent_dir))
        return self._workdir

    def make_workdir_in(self, directory: str) -> None:
        """Called by the framework: where `workdir` is made."""
        self._parent_dir = directory

    def remove_workdir(self) -> None:
        """Called by the framework when the attempt has ended; does not raise."""
        if self._workdir is not None:
            shutil.rmtree(self._workdir, ignore_errors=True)

    @property
    def has_workdir(self) -> bool:
        """Whether there is a directory to remove, for the framework."""
        return self._workdir is not None

    def ensure_lease(self) -> None:
        """Return if this attempt still owns its delivery and locks, and has time left.

        Raises:
            LeaseLostError: it does not; nothing that it writes from now on will be settled.
            TaskTimeoutError: its soft timeout has passed; it has failed, whatever it returns.

        Example:
            context().ensure_lease()  # before what cannot be undone
        """
        self._ensure_owner()
        if self._timed_out is not None:
            raise self._timed_out.with_traceback(None)

    def _ensure_owner(self) -> None:
        if self._lost is None and self._check_lease is not None:
            self._check_lease()
        if self._lost is not None:
            raise LeaseLostError(
                f"task {self.id} ({self.name}, attempt {self.attempt}): {self._lost}"
            )

    def lose_lease(self, reason: str) -> None:
        """Called by the framework when the lease is gone: `ensure_lease` raises from now on."""
        self._lost = self._lost or reason

    def time_out(self, error: TaskTimeoutError) -> None:
        """Called by the framework when it took too long: `ensure_lease` raises from now on."""
        self._timed_out = error

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
        self._ensure_owner()  # who is out of time may still save how far it came
        packed = encode(pack(data))
        if self._save is not None and not await self._save(packed):
            self.lose_lease("its checkpoint was refused, somebody else has the task")
            self._ensure_owner()

    def checkpoint_from_thread(self, data: Any) -> None:
        """`checkpoint` for a plain ``def execute``, which runs in a thread; returns when saved.

        Args:
            data: as of `checkpoint`.

        Raises:
            RuntimeError: it was called in the event loop, which it would block for ever.
        """
        if self._loop is None:
            return
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("checkpoint_from_thread() in an event loop: await checkpoint()")
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
            The id that the task will have, unless another one has its unique key then.

        Raises:
            InvalidArgumentsError: an argument does not fit, the class is durable (submit it with
                ``schedule(transaction=…)``), or it is too much for one step (500 tasks, 1 MiB).
            LookupError: this context cannot submit.

        Example:
            context().after_commit(Add(1, 2), labels={"vo": "lhcb"})
        """
        if self._prepare is None:
            raise LookupError("after_commit() works only inside a running task")
        name = type(task).__name__
        if not isinstance(task, BaseTask):
            raise TypeError(f"after_commit: {task!r:.200} is no task")
        if type(task).durable:
            problem = "a durable task is submitted by schedule(transaction=…), not by after_commit"
            raise InvalidArgumentsError(name, [problem])
        prepared = self._prepare(task, Options(at_time=at_time, id=id, labels=labels))
        size = sum(len(item.envelope) for item in (*self._after_commit, prepared))
        if len(self._after_commit) >= _MOST_AFTER_COMMIT or size > _MOST_BYTES_AFTER_COMMIT:
            problem = (
                f"after_commit() takes {_MOST_AFTER_COMMIT} tasks and {_MOST_BYTES_AFTER_COMMIT} "
                "bytes; submit one task that submits the others, or use spawn_with_callback()"
            )
            raise InvalidArgumentsError(name, [problem])
        self._after_commit = [*self._after_commit, prepared]
        return prepared.id

    async def group_results(self) -> Sequence[ChildResult]:
        """In a callback: one `nonet.ChildResult` per child, in the order of spawning.

        Raises:
            LookupError: this task is no callback of a group.

        Example:
            failed = [child for child in await context().group_results() if child.error]
        """
        if not self.group or self._read_group is None:
            raise LookupError(
                f"task {self.id} ({self.name}) is no callback of a group: only these have results"
            )
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
        """For the framework: ordinal of the next group of this attempt; the same in a re-run."""
        self._spawned += 1
        return self._spawned


_context: ContextVar[TaskContext] = ContextVar("nonet_task_context")


def context() -> TaskContext:
    """The context of the running task.

    Raises:
        LookupError: called outside ``execute``.

    Example:
        print(context().id, context().attempt)
    """
    try:
        return _context.get()
    except LookupError:
        raise LookupError("context() works only inside a running task") from None


def running_context() -> TaskContext | None:
    """The context of the running task, or None outside of one."""
    return _context.get(None)


_subject: ContextVar[TaskContext | None] = ContextVar("nonet_subject", default=None)


def current_subject() -> TaskContext | None:
    """The attempt that the code here is about, the framework's own included, or None.

    It is so before `context()` works, and still when the attempt is settled.
    """
    return _subject.get() or running_context()


def current_secrets() -> tuple[str, ...]:
    """What no log line that is written here may show: a task may call another one."""
    return tuple(
        secret
        for context in (_subject.get(), running_context())
        if context is not None
        for secret in context.secrets
    )


def enter_subject(value: TaskContext) -> None:
    """Called by the framework in the asyncio task of an attempt, for as long as that lasts."""
    _subject.set(value)


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
