"""The context of the running attempt, and the locks that the current code holds."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Unpack, cast

from msgspec.structs import replace

from nonet.base.errors import InvalidArgumentsError, LeaseLostError, TaskTimeoutError
from nonet.base.forks import is_inherited
from nonet.base.messages.message import encode, is_id, pack
from nonet.tasks.handles import ChildResult, R
from nonet.tasks.log_tail import LOG_LINES, LogTail
from nonet.tasks.progress import Said, one_line, stored_progress
from nonet.tasks.secrecy import secret_texts
from nonet.tasks.steps import After, Step
from nonet.tasks.task import (
    BaseTask,
    Given,
    Options,
    StepOptions,
    TaskOf,
    TaskOptions,
    ensure_task,
    task_and_options,
)
from nonet.tasks.workflows import Workflow, step_terms

logger = logging.getLogger(__name__)

InputReader = Callable[[], Awaitable[Sequence[ChildResult]]]
"""Reads how the predecessors of a step ended, in the order of its edges."""

GroupReader = Callable[[str], Awaitable[Sequence[ChildResult]]]
"""Reads the results of the children of a group, in the order in which they were spawned."""

Saver = Callable[[bytes], Awaitable[bool]]
"""Saves a checkpoint; returns False if the attempt no longer owns its task."""

Reporter = Callable[[float | None, Said], None]
"""Takes the progress of the attempt. It is called from any thread and returns at once."""


class Prepared(Protocol):
    """A validated submission that has not been sent yet."""

    @property
    def id(self) -> str:
        """The id of the task."""

    @property
    def envelope(self) -> bytes:
        """The encoded message."""

    def as_step(self, term: str) -> Any:
        """Return a copy with the terms of a step of a workflow."""


class Preparer(Protocol):
    """Validates a submission and encodes its message."""

    def __call__(
        self, task: BaseTask | Given[Any], options: Options, *, is_step: bool = False
    ) -> Prepared:
        """Return the submission of a task, or of a step of a workflow."""


# The tasks of `after_commit` are submitted in the same script call as the settle.
_MOST_AFTER_COMMIT = 500
_MOST_BYTES_AFTER_COMMIT = 1024 * 1024


class TaskContext:
    """The running attempt; `nonet.context` returns it inside ``execute``.

    Attributes:
        id: the id of the task, the same in every attempt.
        name: full task name, ``category:Class``.
        attempt: number of this attempt, from 1.
        fence: a number that grows with every attempt of any task. Store it with your data and
            refuse writes that carry a smaller one.
        labels: the labels of the submission.
        vo: VO of the task: its attribute, else its label ``vo``, else empty.
        group: id of the group whose callback this task is, or empty.
        saved: the data of the last `checkpoint` of an earlier attempt, or None.
        workflow: id of the workflow whose step this task is, or empty.
        is_encrypted: whether the data of the task are encrypted where they are stored; log lines
            then mask its arguments.

    Example:
        class Where(BaseTask):
            async def execute(self, running: TaskContext) -> str:  # or context()
                return f"{running.id}, attempt {running.attempt}"
    """

    # Class attributes, because most attempts change none of them and an instance is made for each.
    _lost: str | None = None
    _timed_out: TaskTimeoutError | None = None
    _check_lease: Callable[[], None] | None = None
    _sure_until: float = 0.0
    _spawned = 0
    _read_group: GroupReader | None = None
    _read_inputs: InputReader | None = None
    _added: Workflow | None = None
    _added_prepared: Sequence[Prepared] = ()
    _save: Saver | None = None
    _report: Reporter | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _prepare: Preparer | None = None
    vo: str = ""
    is_alone: bool = False  # whether its process runs nothing else, for the framework
    namespace: str = ""  # where it runs, for the framework; empty: in no worker
    _after_commit: Sequence[Prepared] = ()
    has_workdir: bool = False  # whether `workdir` was created, for the framework
    _workdir: Path | None = None
    _parent_dir: str | None = None
    _made_of: tuple[Mapping[str, Any], type[Any]] | None = None
    _secrets: Sequence[str] | None = None
    _logged_secrets: Sequence[str] | None = None
    is_encrypted: bool = False
    _log: LogTail | None = None

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
        self.workflow = ""

    def __repr__(self) -> str:
        return f"TaskContext({self.name} {self.id}, attempt {self.attempt})"

    @property
    def secrets(self) -> Sequence[str]:
        """The values of secret arguments, to be masked in log lines, for the framework."""
        if self._secrets is None:
            self._secrets = secret_texts(*self._made_of) if self._made_of is not None else ()
        return self._secrets

    @property
    def logged_secrets(self) -> Sequence[str]:
        """What log lines and spans mask, for the framework: all arguments of an encrypted task."""
        if not self.is_encrypted or self._made_of is None:
            return self.secrets
        if self._logged_secrets is None:
            self._logged_secrets = secret_texts(*self._made_of, everything=True)
        return self._logged_secrets

    @property
    def log(self) -> LogTail | None:
        """The lines that the code has logged, for the framework; None while there are none."""
        return self._log

    def is_made_of(self, arguments: Mapping[str, Any], cls: type) -> None:
        """Called by the framework: set the packed arguments of the task and its class."""
        self._made_of, self._secrets, self._logged_secrets = (arguments, cls), None, None

    def keep_line(self, line: str, most_bytes: int) -> None:
        """Called by the framework, from any thread: keep a line that the code has logged."""
        if self._log is None:
            lines = self._made_of[1].log_lines if self._made_of else LOG_LINES
            if not lines:
                return
            self._log = LogTail(lines, most_bytes)
        self._log.add(line)

    def keep_lines_of_child(self, lines: str) -> None:
        """Called by the framework: take over the lines that a child process has kept."""
        self._log = self._log or LogTail(0, 0)
        self._log.replace(lines)

    @property
    def workdir(self) -> Path:
        """A temporary directory of this attempt, deleted when the attempt ends.

        It is created on first use.

        Raises:
            OSError: the directory cannot be created.

        Example:
            (context().workdir / "part-1").write_bytes(data)
        """
        if self._workdir is None:
            self._workdir = Path(tempfile.mkdtemp(prefix="nonet-", dir=self._parent_dir))
            self.has_workdir = True
        return self._workdir

    def make_workdir_in(self, directory: str) -> None:
        """Called by the framework: set the parent directory of `workdir`."""
        self._parent_dir = directory

    def remove_workdir(self) -> None:
        """Called by the framework when the attempt has ended; never raises."""
        if self._workdir is not None:
            shutil.rmtree(self._workdir, ignore_errors=True)

    def ensure_lease(self) -> None:
        """Return if this attempt still owns its task and locks and has time left; otherwise raise.

        Raises:
            LeaseLostError: it lost the task or a lock. Its result will be discarded.
            TaskTimeoutError: its soft timeout has passed. It fails whatever it returns.

        Example:
            context().ensure_lease()  # before a step that cannot be undone
        """
        if self._check_lease is not None and time.monotonic() >= self._sure_until:
            self._check_lease()
        if self._lost is not None:
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
        """Called by the framework when the lease is lost: `ensure_lease` raises from now on."""
        self._lost = self._lost or reason

    def time_out(self, error: TaskTimeoutError) -> None:
        """Called by the framework at the soft timeout: `ensure_lease` raises from now on."""
        self._timed_out = error

    @property
    def timed_out(self) -> TaskTimeoutError | None:
        """The time limit that this attempt has exceeded, for the framework."""
        return self._timed_out

    def check_lease_with(self, check: Callable[[], None], sure_until: float = 0.0) -> None:
        """Called by the framework: set a function that calls `lose_lease` if the lease expired.

        Args:
            sure_until: the lease cannot expire before this time (monotonic).
        """
        self._check_lease, self._sure_until = check, sure_until

    async def checkpoint(self, data: Any) -> None:
        """Save data for the next attempt, which finds it in ``saved``.

        Args:
            data: anything that can be an argument of a task. It replaces the previous checkpoint
                and is deleted when the task ends. ``task-run call`` saves nothing.

        Raises:
            TypeError: the data cannot be serialised.
            ValueError: the data exceed the message limit.
            LeaseLostError: this attempt no longer owns its task; nothing was saved.

        Example:
            done = context().saved or 0
            for number in range(done, len(self.files)):
                await copy(self.files[number])
                await context().checkpoint(number + 1)
        """
        self._ensure_owner()  # not ensure_lease: an attempt past its timeout may save its data
        packed = encode(pack(data))
        if self._save is not None and not await self._save(packed):
            self.lose_lease("its checkpoint was refused: another attempt owns the task")
            self._ensure_owner()

    def checkpoint_from_thread(self, data: Any) -> None:
        """Call `checkpoint` from a plain ``def execute``, which runs in a thread.

        Args:
            data: as for `checkpoint`.

        Raises:
            RuntimeError: called in the event loop or in a forked copy of the process, where it
                would block forever.
        """
        if self._loop is None:
            return
        if is_inherited(self._loop):
            raise RuntimeError(
                "checkpoint_from_thread() does not work in a forked copy of the process: call it "
                "in the process that forked"
            )
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError(
                "checkpoint_from_thread() would block the event loop: await checkpoint() instead"
            )
        asyncio.run_coroutine_threadsafe(self.checkpoint(data), self._loop).result()

    def progress(self, fraction: float | None = None, text: str | Mapping[str, Any] = "") -> None:
        """Report how far this attempt is, for people and for `Handle.progress`.

        Call it as often as you like, in a coroutine or a thread: it returns at once, and at most
        one report a second is stored, the newest. The next attempt starts without it. If Redis is
        unavailable, the report is lost and the task continues. ``task-run call`` only logs it. No
        report fails the task.

        Args:
            fraction: from 0 to 1, stored with four decimals; anything but a number: unknown. A
                number outside of the range counts as 0 or 1.
            text: what it is doing, cut to 60 bytes of UTF-8; or a mapping of up to 1 KiB of JSON,
                which readers get as `Progress.data` and see as ``files=3 bad=1``. A longer mapping,
                or one that JSON cannot hold, is stored as that text. Secrets are masked.

        Example:
            for number, file in enumerate(self.files, 1):
                await copy(file)
                context().progress(number / len(self.files), f"file {number}")
        """
        fraction, said = stored_progress(fraction, text)
        if self._report is None:
            share = "" if fraction is None else f"{fraction * 100:.0f} % "
            logger.info("progress: %s%s", share, one_line(said))
        elif self._lost is None:
            self._report(fraction, said)

    def after_commit(self, task: TaskOf[Any], **options: Unpack[TaskOptions]) -> str:
        """Submit a task in the same step that settles this one as done.

        By then the dependencies of this attempt have committed. So the new task never works on data
        that was rolled back, and it is never missing after a crash. An attempt that fails or is
        repeated submits nothing.

        Args:
            task: the task.
            options: the options of `BaseTask.schedule` except ``transaction``. A delay, and a
                `start_by` that is a duration, count from the end of this task.

        Returns:
            The id that the task will have, unless another task holds its unique key by then.

        Raises:
            InvalidArgumentsError: an argument is invalid, the class is durable (submit it with
                ``schedule(transaction=…)``), or there are more than 500 tasks or 1 MiB.
            LookupError: this context cannot submit tasks.

        Example:
            context().after_commit(Add(1, 2), labels={"customer": "acme"})
        """
        if self._prepare is None:
            raise LookupError("after_commit() works only inside a running task")
        given, chosen = task_and_options(task, options, "after_commit()", "transaction")
        ensure_task(given, "after_commit")
        if type(given).durable:
            problem = "the class is durable: submit it with schedule(transaction=…)"
            raise InvalidArgumentsError(type(given).__name__, [problem])
        prepared = self._prepare(given, chosen)
        mend = "submit one task that submits the others, or use spawn_with_callback()"
        self._check_room(prepared, "after_commit", mend)
        self._after_commit = [*self._after_commit, prepared]
        return prepared.id

    async def group_results(self) -> Sequence[ChildResult]:
        """In a callback: the `nonet.ChildResult` of each child, in the order of spawning.

        Raises:
            LookupError: this task is not the callback of a group.

        Example:
            failed = [child for child in await context().group_results() if child.error]
        """
        if not self.group or self._read_group is None:
            raise LookupError(
                f"task {self.id} ({self.name}) is not the callback of a group: only a callback "
                "has group results"
            )
        return await self._read_group(self.group)

    async def inputs(self) -> Sequence[ChildResult]:
        """In a step of a workflow: how its predecessors ended, in the order of ``after=``.

        Raises:
            LookupError: this task is not a step of a workflow.

        Example:
            errors = [step.error for step in await context().inputs() if step.error]
        """
        if not self.workflow or self._read_inputs is None:
            raise LookupError(
                f"task {self.id} ({self.name}) is not a step of a workflow: only a step has inputs"
            )
        return await self._read_inputs()

    def add_step(
        self, task: TaskOf[R], *, after: After = (), **options: Unpack[StepOptions]
    ) -> Step[R]:
        """Add a step to the workflow of this one; steps after this one wait for it, too.

        The steps are added when this attempt is settled as done, in the same step. An attempt that
        fails or is repeated adds nothing, and each is added once.

        Args:
            task: a task, or ``SomeTask.given(…)`` with results of steps that this one adds.
            after: steps that this one adds, as in `Workflow.step`.
            options: as in `Workflow.step`.

        Raises:
            InvalidArgumentsError: an argument is invalid, or there are more than 500 steps or
                1 MiB.
            LookupError: this task is not a step of a workflow.

        Example:
            @dataclass
            class HashAll(BaseTask):
                paths: list[str]

                async def execute(self) -> None:
                    for path in self.paths:
                        context().add_step(Hash(path))
        """
        if not self.workflow or self._prepare is None:
            raise LookupError(f"task {self.id} ({self.name}) is not a step of a workflow")
        if self._added is None:
            self._added = Workflow.below(self.id.rpartition(":")[2])
        added = self._added
        step = added.step(task, after=after, **options)
        id = f"{self.workflow}:{step.place}"
        try:
            if not is_id(id):
                problem = (
                    f"add_step(): {step.place.count('.')} steps have added each other, one inside "
                    "the other, so that the id would be too long: submit a new workflow instead"
                )
                raise InvalidArgumentsError(self.name, [problem])
            chosen = replace(step.options, id=id, delay=None)  # the terms have the delay
            prepared = self._prepare(cast("Any", step.task), chosen, is_step=True)
            self._check_room(prepared, "add_step", "let a step that it adds add the others")
        except BaseException:
            added.steps.pop()
            raise
        self._added_prepared = [*self._added_prepared, prepared]
        return step

    def _check_room(self, prepared: Prepared, call: str, mend: str) -> None:
        """Refuse more tasks than the script that settles can submit."""
        before = [*self._after_commit, *self._added_prepared]
        size = sum(len(item.envelope) for item in (*before, prepared))
        if len(before) >= _MOST_AFTER_COMMIT or size > _MOST_BYTES_AFTER_COMMIT:
            problem = (
                f"{call}() takes at most {_MOST_AFTER_COMMIT} tasks and "
                f"{_MOST_BYTES_AFTER_COMMIT} bytes in one attempt; {mend}"
            )
            raise InvalidArgumentsError(self.name, [problem])

    def read_inputs_with(self, reader: InputReader) -> None:
        """Called by the framework: set the reader for `inputs`."""
        self._read_inputs = reader

    def read_group_with(self, reader: GroupReader) -> None:
        """Called by the framework: set the reader for `group_results`."""
        self._read_group = reader

    def save_with(self, saver: Saver) -> None:
        """Called by the framework in the loop of the attempt: set the saver for `checkpoint`."""
        self._save, self._loop = saver, asyncio.get_running_loop()

    def submit_with(self, preparer: Preparer) -> None:
        """Called by the framework: prepares the submissions of `after_commit`."""
        self._prepare = preparer

    @property
    def to_submit(self) -> Sequence[Any]:
        """The submissions of `after_commit` and `add_step`, for the framework."""
        if self._added is None:
            return self._after_commit
        terms = step_terms(self.workflow, self._added.steps)
        steps = [one.as_step(term) for one, term in zip(self._added_prepared, terms, strict=True)]
        return [*self._after_commit, *steps]

    def next_spawn(self) -> int:
        """For the framework: number of the next group; a repeated attempt counts the same."""
        self._spawned += 1
        return self._spawned


_context: ContextVar[TaskContext] = ContextVar("nonet_task_context")


def context() -> TaskContext:
    """Return the context of the running task.

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
    """The context of the running task, or None outside a task."""
    return _context.get(None)


_subject: ContextVar[TaskContext | None] = ContextVar("nonet_subject", default=None)


def current_subject() -> TaskContext | None:
    """The attempt that the current code works for, framework code included, or None.

    It is set before `context()` works and until the attempt is settled.
    """
    return _subject.get() or running_context()


def current_secrets() -> tuple[str, ...]:
    """The secrets that log lines of the current code must mask, also of enclosing tasks."""
    return tuple(
        secret
        for context in (_subject.get(), running_context())
        if context is not None
        for secret in context.logged_secrets
    )


enter_subject: Callable[[TaskContext], object] = _subject.set
"""Called by the framework at the start of the asyncio task that handles an attempt."""


_Hold: TypeAlias = tuple[str, "asyncio.Task[Any] | None"]
_holds: ContextVar[tuple[_Hold, ...]] = ContextVar("nonet_holds", default=())


def current_holders() -> tuple[str, ...]:
    """Ids of the running task and of the open ``hold`` blocks, whose locks the current code holds.

    A hold counts only in the asyncio task that opened it. Another asyncio task started inside the
    block may legitimately wait for the block to end.
    """
    running, here = running_context(), _current_task()
    holds = [id for id, opened_in in _holds.get() if opened_in is here]
    return (*([running.id] if running else []), *holds)


def _current_task() -> asyncio.Task[Any] | None:
    """The running asyncio task; None in a thread without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@contextmanager
def holding(id: str) -> Iterator[None]:
    """Called by the framework around the code inside a ``hold`` block."""
    outer = _holds.get()
    _holds.set((*outer, (id, asyncio.current_task())))
    try:
        yield
    finally:
        _holds.set(outer)


enter_context: Callable[[TaskContext], Token[TaskContext]] = _context.set
"""Called by the framework when an execution starts; pass the token to `leave_context`."""

leave_context: Callable[[Token[TaskContext]], None] = _context.reset
"""Called by the framework when the same asyncio task continues after the execution."""
