"""The base classes of tasks, and the options of a submission."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Protocol,
    TypedDict,
    Unpack,
    overload,
)

from msgspec import Struct

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import NotBoundError, suggestion
from nonet.base.messages.terms import Delay, StartBy
from nonet.base.plain import is_model
from nonet.base.streams import Priority, Size
from nonet.tasks.arguments import Constructible, prepare
from nonet.tasks.handles import Handle, R, R_co
from nonet.tasks.locks import (
    TASK,
    BaseLock,
    ConcurrencyLimiter,
    MutexLock,
    RateLimiter,
    encode_locks,
)
from nonet.tasks.log_tail import LOG_LINES
from nonet.tasks.periodic_policies import CatchUp, Overlap
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.unique import Unique

if TYPE_CHECKING:
    from nonet.tasks.retry import RetryPolicyBase
    from nonet.tasks.schedules import TaskScheduleBase

# An interpreter that has loaded nothing yet needs this much.
LEAST_MEMORY_LIMIT = 32 * 2**20


class Isolation(StrEnum):
    """Where an attempt runs.

    Attributes:
        LOOP: ``loop``, in the event loop of the worker.
        CHILD: ``child``, in a child process that the worker reuses for other tasks.
        FRESH: ``fresh``, in a new child process.

    Example:
        class ParseInvoice(BaseTask):
            size = Size.SMALL
            isolation = Isolation.CHILD
    """

    LOOP = "loop"
    CHILD = "child"
    FRESH = "fresh"


class FromClass(Enum):
    """The default of an option that a class attribute decides."""

    FROM_CLASS = "as the class says"

    def __repr__(self) -> str:
        return str(self.value)


FROM_CLASS = FromClass.FROM_CLASS


class _SharedOptions(TypedDict, total=False):
    at_time: datetime | None
    delay: Delay | None
    labels: Mapping[str, Any] | None
    start_by: StartBy | FromClass | None
    unique: Unique | FromClass | None


class StepOptions(_SharedOptions, total=False):
    """Options of a step of a workflow; `nonet.Workflow.step` documents them."""


class SubmitManyOptions(_SharedOptions, total=False):
    """Options for many submissions at once; `BaseTask.schedule` documents them."""

    transaction: Any


class TaskOptions(_SharedOptions, total=False):
    """Options of one task among many."""

    id: str | None


class SubmitOptions(TaskOptions, SubmitManyOptions, total=False):
    """Options for one submission."""


class Options(Struct, frozen=True, kw_only=True):
    """The options of `BaseTask.schedule`, as passed inside Nonet.

    Priority and size of one submission are labels.
    """

    at_time: datetime | None = None
    delay: Delay | None = None
    id: str | None = None
    labels: Mapping[str, Any] | None = None
    transaction: Any = None
    start_by: StartBy | FromClass | None = FROM_CLASS
    unique: Unique | FromClass | None = FROM_CLASS

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Options:
        """Build options from keyword arguments.

        Raises:
            TypeError: there is no such option.
        """
        try:
            return cls(**given)
        except TypeError:
            known = SubmitOptions.__optional_keys__
            name = min(given.keys() - known)
            hint = f" Write {_OTHER_OPTIONS[name]}" if name in _OTHER_OPTIONS else ""
            raise TypeError(
                f"there is no option {name!r} of a submission."
                f"{hint or suggestion(name, known) or ' There are ' + ', '.join(sorted(known))}"
            ) from None


# Hints for unknown options.
_OTHER_OPTIONS = {
    "countdown": "delay=…",
    "defer_by": "delay=…",
    "eta": "at_time=…",
    "expires": "start_by=…",
    "task_id": "id=…",
    "job_id": "id=…",
    "priority": 'labels={"priority": "realtime"}',
    "queue": 'labels={"size": "small"}',
    "size": 'labels={"size": "small"}',
}
NO_OPTIONS = Options()
_TIMES = ("at_time", "delay")


class AsyncTask(Protocol[R_co]):
    """For type checkers: a task whose ``async def execute`` returns an `R_co`."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[R_co]:
        """Takes the injected dependencies."""


class SyncTask(Protocol[R_co]):
    """For type checkers: a task whose ``def execute`` returns an `R_co`."""

    def execute(self, *args: Any, **kwargs: Any) -> R_co:
        """Takes the injected dependencies."""


class TaskOf(Protocol[R_co]):
    """For type checkers: any task whose result is an `R_co`, recognised by its ``schedule``.

    Functions that take a task use this protocol instead of overloads, as `BaseTask.schedule` has:
    after one wrong call of overloads, pyright rejects correct calls too.
    """

    def schedule(self) -> Coroutine[Any, Any, Handle[R_co]]:
        """See `BaseTask.schedule`."""


class Submitter(Protocol):
    """The methods that ``.schedule()`` and ``Workflow.submit()`` call on an open application."""

    async def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """Submit one task and return its handle."""

    async def submit_workflow(self, workflow: Any, *, id: str | None = None) -> Any:
        """Submit all steps of a `nonet.Workflow`, and return its run."""


class SyncSubmitter(Protocol):
    """The methods that ``.schedule_sync()`` and ``.submit_sync()`` call on an open application."""

    def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit one task and return its handle."""

    def submit_workflow(self, workflow: Any, *, id: str | None = None) -> Any:
        """Submit all steps of a `nonet.Workflow`, and return its run."""


class _NoRetry:
    """The default of `BaseTask.retry_policy`: the policy is made, and imported, when it is read.

    Policies are pydantic models. A worker whose tasks need no pydantic reads the default only when
    one of them fails.
    """

    def __get__(self, _: object, cls: type) -> RetryPolicyBase:
        from nonet.tasks.retry import NO_RETRY  # it imports pydantic

        return NO_RETRY


_NO_RETRY = _NoRetry()


def has_default_policy(cls: type[BaseTask]) -> bool:
    """Return whether a class sets no retry policy; the answer does not read the default."""
    return inspect.getattr_static(cls, "retry_policy") is _NO_RETRY


def refusing(instead: str) -> Callable[..., NoReturn]:
    """Make a method for what other systems write; its error says what to write here."""

    def refuse(self: object, *_: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: write {instead}")

    return refuse


_NOT_PIPED = refusing("chain(first, second), not first | second")


class BaseTask(Constructible):
    """Base class of all tasks: subclass it, declare arguments, and define ``execute``.

    ``execute`` may be ``async def``, or ``def``, which runs in a thread. Its parameters are
    injected (see `nonet.Depends`), and its return value is the result of the task.

    Class attributes:
        priority: `Priority`; NORMAL by default.
        size: `Size`, the pool of workers; MEDIUM by default.
        retry_policy: when a failed attempt is repeated; `NoRetry` by default.
        expected: classes of errors that are no bugs. After one of them the policy is asked as
            usual; the log has a line without a traceback, Sentry no event, and a task that ends so
            is counted apart, with reason ``expected``.
        dlq_eligible: store the task in the SQL dead-letter table when it fails for good.
        soft_timeout: seconds until an attempt is cancelled; None: no limit.
        hard_timeout: seconds from the start of an attempt until it is cancelled and, if it goes on,
            abandoned or killed; None: no limit.
        isolation: `Isolation`; None: depends on the size. Small tasks run in LOOP, or in CHILD if
            they have a memory or CPU limit; medium ones in CHILD, large ones in FRESH.
        memory_limit: memory of the process that runs the attempt, in bytes or as ``"512MiB"``;
            None: no limit.
        cpu_limit: seconds of CPU time per attempt; None: no limit.
        start_by: seconds (or a timedelta) from submission until the task must have started;
            otherwise it ends ``expired`` without running. None: no deadline.
        unique: which submissions count as the same task, see `nonet.Unique`; None: only those with
            the same id.
        durable: keep the submission in SQL until the task ends, so that it survives a loss of
            Redis.
        log_lines: how many of the last lines that the code of an attempt logs are kept for
            ``task-run logs``; 200 by default, 0: none. ``NONET_TASK_LOG_BYTES`` bounds them, too.
        min_version: only workers with at least this version (PEP 440) of the class's package run
            new tasks; None: any.
        encrypted: encrypt arguments, results, errors and checkpoints with ``NONET_ENCRYPTION_KEYS``
            in Redis and SQL.

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
    if TYPE_CHECKING:
        retry_policy: ClassVar[RetryPolicyBase]
    else:
        retry_policy: ClassVar[Any] = _NO_RETRY
    expected: ClassVar[tuple[type[BaseException], ...]] = ()
    dlq_eligible: ClassVar[bool] = False
    soft_timeout: ClassVar[float | None] = None
    hard_timeout: ClassVar[float | None] = None
    isolation: ClassVar[Isolation | None] = None
    memory_limit: ClassVar[int | str | None] = None
    cpu_limit: ClassVar[float | None] = None
    start_by: ClassVar[float | timedelta | None] = None
    unique: ClassVar[Unique | None] = None
    durable: ClassVar[bool] = False
    log_lines: ClassVar[int] = LOG_LINES
    min_version: ClassVar[str | None] = None
    encrypted: ClassVar[bool] = False

    @property
    def execution_locks(self) -> Sequence[BaseLock]:
        """The locks that the task holds while it runs; override it as a property or a method.

        By default: a rate limiter and a concurrency limiter on the class, unlimited until the
        configuration sets their limits.

        Example:
            @dataclass
            class ChargeInvoice(BaseTask):
                number: int

                @property
                def execution_locks(self) -> list[BaseLock]:
                    return [*super().execution_locks, MutexLock("job", self.number)]
        """
        name = type(self).__name__
        return [RateLimiter(TASK, name), ConcurrencyLimiter(TASK, name)]

    # For type checkers only: a subclass chooses the parameters and the result.
    if TYPE_CHECKING:

        def execute(self, *args: Any, **kwargs: Any) -> Any:
            """Do the work of the task."""
    else:
        __or__ = _NOT_PIPED

    @overload
    @classmethod
    def given(cls: Callable[..., AsyncTask[R]], *args: Any, **kwargs: Any) -> Given[R]: ...

    @overload
    @classmethod
    def given(cls: Callable[..., SyncTask[R]], *args: Any, **kwargs: Any) -> Given[R]: ...

    @classmethod
    def given(cls: Any, *args: Any, **kwargs: Any) -> Given[Any]:
        """Describe a step of a `nonet.Workflow` whose arguments are results of other steps.

        Args:
            args, kwargs: the arguments of the constructor; a `nonet.Step` in them, also inside a
                list or a mapping, stands for its result.

        Raises:
            TypeError: they do not fit the parameters of the constructor.

        Example:
            workflow = Workflow()
            first = workflow.step(Add(1, 2))
            workflow.step(Add.given(first, b=3))
        """
        return _given(cls, args, kwargs)

    @overload
    async def schedule(self: AsyncTask[R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...

    @overload
    async def schedule(self: SyncTask[R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...

    async def schedule(self: Any, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """Submit this task through the open application.

        Args:
            options: any of the following, by name.
            delay: earliest start, in seconds or as a timedelta from now; 0 or None: now. It counts
                from the submission, by the clock of Redis.
            at_time: earliest start as an aware datetime, instead of `delay`. A naive one is
                refused, because it does not say in which time zone it is.
            id: an id of your own, up to 128 characters. Submitting the same id again returns the
                same task. An id that looks like Nonet's own is refused.
            labels: free data stored with the task. ``priority`` and ``size`` among them override
                the class and the configuration for this submission.
            transaction: for durable classes: an SQLAlchemy ``AsyncConnection`` or ``AsyncSession``
                on the database of ``NONET_DB_URL``. The task exists once you commit, and never if
                you roll back.
            start_by: deadline for the start: seconds or a timedelta from now, or an aware datetime.
                A task that has not started by then ends ``expired`` without running. None: no
                deadline. Default: the class attribute.
            unique: which submissions count as the same task, see `nonet.Unique`; None: only those
                with the same id. Default: the class attribute.

        Returns:
            A `nonet.Handle`, which is the id (a ``str``) with ``status()`` and ``result()``. Its
            ``created`` is False if the task existed before, under the same id or unique key.

        Raises:
            NotBoundError: no application is open in this process.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached.
            BrokerFullError: Redis is out of memory.
            ServerUnreachableError: Redis, or SQL for a durable class, does not answer. The task may
                or may not have been submitted: with an `id` of your own you can safely submit it
                    again.

        Example:
            handle = await Add(1, 2).schedule(delay=0.1, labels={"customer": "acme"})
            assert await handle.result(timeout=30) == 3
        """
        return await current_submitter().submit(self, **options)

    @overload
    def schedule_sync(self: AsyncTask[R], **options: Unpack[SubmitOptions]) -> SyncHandle[R]: ...

    @overload
    def schedule_sync(self: SyncTask[R], **options: Unpack[SubmitOptions]) -> SyncHandle[R]: ...

    def schedule_sync(self: Any, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit this task from a program, a thread or a ``def execute`` without an event loop.

        It works wherever an application is open: a `nonet.SyncNonet`, or a `nonet.Nonet`,
        which opens connections for threads when they are first needed. It blocks until Redis has
        answered. In a coroutine use `schedule`: beside a `nonet.Nonet` this raises `NotBoundError`.

        Args:
            options: as of `schedule`. A ``transaction`` is a ``Connection`` or ``Session`` of
                SQLAlchemy, or the connection of Django, on the database of ``NONET_DB_URL``.

        Returns:
            A `nonet.SyncHandle`, whose methods block.

        Raises:
            NotBoundError, InvalidArgumentsError, AdmissionRejected, BrokerFullError,
                ServerUnreachableError: as `schedule`.

        Example:
            handle = Add(1, 2).schedule_sync(delay=0.1)
            assert handle.result(timeout=30) == 3
        """
        return current_sync_submitter().submit(self, **options)

    @overload
    def with_options(self: AsyncTask[R], **options: Unpack[TaskOptions]) -> TaskWithOptions[R]: ...

    @overload
    def with_options(self: SyncTask[R], **options: Unpack[TaskOptions]) -> TaskWithOptions[R]: ...

    def with_options(self: Any, **options: Unpack[TaskOptions]) -> TaskWithOptions[Any]:
        """Return this task wrapped with its own options, for any call that submits tasks.

        Args:
            options: the options of `BaseTask.schedule` except ``transaction``. They take precedence
                over the options of the call that submits the task. Groups and workflows make the
                ids of their tasks, so they refuse ``id``.

        Example:
            await app.submit_many(
                [Add(1, 2).with_options(id="sum-1-2"), Add(3, 4).with_options(delay=60)],
                labels={"customer": "acme"},
            )
        """
        return TaskWithOptions(self, options)


class TaskWithOptions(Generic[R_co]):
    """A task with options of its own, made by `BaseTask.with_options`.

    Attributes:
        task: the task, or what `BaseTask.given` made.
        options: its options by name.

    Example:
        await app.submit_many(
            Add(1, delay).with_options(delay=delay, id=f"add-{delay}") for delay in range(3)
        )
    """

    __slots__ = ("options", "task")

    def __init__(self, task: Any, options: TaskOptions) -> None:
        Options.from_mapping(options)  # raises TypeError for an unknown name
        if "transaction" in options:
            raise TypeError("with_options() takes no transaction: pass it to submit_many()")
        self.task: Any = task
        self.options: TaskOptions = options

    if not TYPE_CHECKING:
        __or__ = _NOT_PIPED

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r:.100}" for name, value in self.options.items())
        return f"{self.task!r:.200}.with_options({options})"

    async def schedule(self) -> Handle[R_co]:
        """Submit the task with its options through the open application."""
        return await current_submitter().submit(self.task, **self.options)

    def merged_with(self, options: Mapping[str, Any]) -> Options:
        """Combine its options with those of a call, for the framework; its own take precedence."""
        if any(name in self.options for name in _TIMES):
            options = {name: value for name, value in options.items() if name not in _TIMES}
        return Options.from_mapping({**options, **self.options})


class Given(Generic[R_co]):
    """A task whose arguments contain results of other steps; `BaseTask.given` makes it.

    Attributes:
        cls: the task class.
        values: its arguments by name, in which a `Step` stands for its result.

    Example:
        workflow = Workflow()
        added: Given[int] = Add.given(a=workflow.step(Add(1, 2)), b=3)
        workflow.step(added)
    """

    def __init__(self, cls: type[BaseTask], values: Mapping[str, Any]) -> None:
        self.cls = cls
        self.values = values

    def __repr__(self) -> str:
        return f"{self.cls.__name__}.given({', '.join(self.values)})"

    if not TYPE_CHECKING:
        __or__ = _NOT_PIPED

    @property
    def vo(self) -> str | None:
        """For the framework: the VO of the arguments, or else of the class, or None."""
        found = self.values.get("vo", getattr(self.cls, "vo", None))
        return found if isinstance(found, str) else None

    def with_options(self, **options: Unpack[TaskOptions]) -> TaskWithOptions[R_co]:
        """Return it wrapped with its own options, see `BaseTask.with_options`.

        Args:
            options: as there.

        Example:
            chain(Add(1, 2), Add.given(a=PREVIOUS, b=3).with_options(delay=60))
        """
        return TaskWithOptions(self, options)

    async def schedule(self) -> Handle[R_co]:
        """Refuse: only a workflow has the results that it waits for.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self} waits for other steps: add it to a nonet.Workflow")


def _given(cls: type[BaseTask], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given[Any]:
    """Bind arguments that contain steps to the constructor of a class.

    Raises:
        TypeError: they do not fit its parameters.
    """
    prepare(cls)
    try:
        bound = inspect.signature(cls).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.given: {error}") from None
    values = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and values.get(name):
            raise TypeError(f"{cls.__name__}.given: pass arguments by name, not as *{name}")
    return Given(cls, values)


class PeriodicBaseTask(BaseTask):
    """Base class of tasks that the scheduler submits: one per occurrence for the installation.

    Class attributes:
        _schedule (alias ``default_schedule``): when to run; the configuration can override it.
        _enabled: False: do not run unless the configuration enables it.
        _overlap: what to do with an occurrence while the previous one still runs. None:
            `Overlap.SKIP` if the task takes a mutex or a writer lock, otherwise `Overlap.ALLOW`.
        _catch_up: which missed occurrences to submit when they are later than the misfire grace.
        _misfire_grace: seconds; occurrences missed for less are submitted one by one. None:
            ``NONET_MISFIRE_GRACE``, or the interval if that is shorter.
        _catch_up_limit: with `CatchUp.ALL`, how many occurrences to submit at most.
        _jitter: seconds; delay each occurrence by a random time up to this.

    Example:
        class SendReports(PeriodicBaseTask):
            _schedule = CronSchedule("*/10 * * * *")

            async def execute(self) -> None: ...
    """

    if TYPE_CHECKING:
        _schedule: ClassVar[TaskScheduleBase | None] = None
        default_schedule: ClassVar[TaskScheduleBase | None] = None
    else:  # few processes need schedules, but pydantic evaluates these annotations
        _schedule: ClassVar[Any] = None
        default_schedule: ClassVar[Any] = None
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
            ValueError: raise it if the entries contradict each other; administrators see the
                message.

        Example:
            class SendReports(PeriodicBaseTask):
                @staticmethod
                def validate_config(config: list[TaskConfig]) -> None:
                    if len({entry.args.get("customer") for entry in config}) < len(config):
                        raise ValueError("two entries have the same customer")
        """

    @property
    def execution_locks(self) -> Sequence[BaseLock]:
        """A mutex on the class, so that its runs never overlap."""
        return [MutexLock(TASK, type(self).__name__)]


@dataclass(init=False, repr=False, eq=False)  # a pydantic subclass brings its own
class PeriodicVoAwareBaseTask(PeriodicBaseTask):
    """Base class of periodic tasks that run once per VO, as ``cls(vo=vo, **args)``.

    Args:
        vo: the VO that this task works for.
        attributes: the ``args`` of the configuration; each becomes an attribute.

    Example:
        class SyncUsers(PeriodicVoAwareBaseTask):
            _schedule = IntervalSecondsSchedule(3600)

            async def execute(self) -> str:
                return f"users of {self.vo}"
    """

    vo: str

    def __init__(self, vo: str, **attributes: Any) -> None:
        if is_model(type(self)):
            make: Any = pydantic.BaseModel.__init__
            make(self, vo=vo, **attributes)
            return
        self.vo = vo
        for name, value in attributes.items():
            setattr(self, name, value)

    @property
    def execution_locks(self) -> Sequence[BaseLock]:
        """A mutex on the class and the VO."""
        return [MutexLock(TASK, type(self).__name__, self.vo)]


# Do not count this __init__ as one that a subclass wrote.
PeriodicVoAwareBaseTask._body_has_init = False


def task_and_options(
    given: Any, options: Mapping[str, Any], what: str = "", *refused: str
) -> tuple[Any, Options]:
    """Return a task, and the options of a call; the task's own options take precedence.

    Args:
        given: a task, or one with options.
        what: the call, for the message.
        refused: options that it does not take.

    Raises:
        TypeError: there is no such option, or the call does not take it.
    """
    chosen = NO_OPTIONS
    if isinstance(given, TaskWithOptions):
        given, chosen = given.task, given.merged_with(options)
    elif options:
        chosen = Options.from_mapping(options)
    for name in refused:
        if getattr(chosen, name) is not None:
            raise TypeError(f"{what} takes no {name}: {_REFUSED[name]}")
    return given, chosen


_REFUSED = {
    "id": "it makes the ids of its tasks",
    "transaction": "pass it to schedule() or submit_many()",
}


def ensure_task(given: object, what: str) -> None:
    """Raise TypeError if an argument is not a task instance.

    Args:
        what: name of the argument, for the message.
    """
    if isinstance(given, BaseTask):
        return
    if isinstance(given, type) and issubclass(given, BaseTask):
        name = given.__name__
        raise TypeError(f"{what}: {name} is a class: pass an instance, {name}(…)")
    raise TypeError(
        f"{what}: {given!r:.200} is not a task: pass an instance of a subclass of BaseTask"
    )


def declared_locks(task: BaseTask) -> list[BaseLock]:
    """The locks that a task declares, as a property or a method.

    Raises:
        ValueError: `execution_locks` did not return locks.
    """
    declared: Any = task.execution_locks
    if inspect.ismethod(declared):
        declared = declared()
    if isinstance(declared, Iterable):
        locks = list(declared)  # a generator can be read only once
        if all([isinstance(lock, BaseLock) for lock in locks]):  # noqa: C419  # three times as fast
            return locks
    raise ValueError(f"execution_locks must return a list of locks, not {declared!r:.200}")


def task_locks(task: BaseTask, name: str, labels: Mapping[str, Any]) -> str:
    """Encode the locks of a task, the same way for submitter and worker.

    Args:
        name: full task name.
        labels: label ``vo`` counts for a task without a ``vo`` attribute.

    Raises:
        ValueError: `execution_locks` does not return a list of locks, or a lock is invalid.
    """
    vo = vo_of(task, labels)
    is_default = type(task).execution_locks is BaseTask.execution_locks
    if is_default and not vo:  # fast path: default limiters are not encoded; the scripts add them
        return ""
    locks = [] if is_default else declared_locks(task)
    return encode_locks(locks, task=name.rpartition(":")[2], vo=vo)


def vo_of(task: object, labels: Mapping[str, Any]) -> str:
    """The VO of a task: its ``vo`` attribute, its label ``vo``, or empty."""
    return str(getattr(task, "vo", None) or labels.get("vo") or "")


submitters: list[Submitter] = []
"""The submitters that ``.schedule()`` may use in this process; it uses the last one."""
sync_submitters: list[SyncSubmitter] = []
"""The submitters that ``.schedule_sync()`` may use in this process; it uses the last one."""


def current_submitter() -> Submitter:
    """The submitter that was bound last.

    Raises:
        NotBoundError: none is bound.
    """
    if not submitters:
        raise NotBoundError(
            "no application is open: schedule tasks inside `async with Nonet.from_settings():`"
        )
    return submitters[-1]


def current_sync_submitter() -> SyncSubmitter:
    """The submitter for threads that was bound last.

    Raises:
        NotBoundError: none is bound.
    """
    if not sync_submitters:
        raise NotBoundError(
            "no application is open: schedule tasks inside `with nonet.SyncNonet.from_settings():`"
            ", or call its open() when the program starts"
        )
    return sync_submitters[-1]
