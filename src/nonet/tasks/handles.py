"""The `Handle` that a submission returns, and the status and results that it gives access to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, overload

from typing_extensions import TypeVar

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import ConflictError, NotBoundError, NotFoundError, ResultError
from nonet.base.messages.message import Usage

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

# The return type of `execute`. It defaults to Any, so that `Handle` means `Handle[Any]`.
R = TypeVar("R", default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is, as its code reported with `TaskContext.progress`.

    As text, it is both in one line: ``40 % page 12 of 30``.

    Attributes:
        fraction: from 0 to 1; None: unknown.
        text: what it was doing.
        at: when it was stored, by the clock of Redis; of a task that has ended: its `finished`.
        data: the mapping that it reported, which `text` shows in a line; None: it reported a text.

    Example:
        async for progress in handle.progress():
            print(progress.fraction, progress.text)
    """

    fraction: float | None
    text: str
    at: datetime
    data: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        share = "" if self.fraction is None else f"{self.fraction * 100:.0f} % "
        return f"{share}{self.text}".strip()


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a task; it does not include the arguments.

    Attributes:
        id: id of the task.
        name: full class name, ``<category>:<Class>``; empty if unknown.
        state: ``queued``, ``delayed``, ``waiting``, ``running`` or ``dying``; after the end
            ``done``, ``dead``, ``cancelled`` or ``expired``.
        stream: ``<priority>:<size>`` of the stream that it is read from.
        attempt: number of attempts, including the running one; after the end, the number of the
            attempt that ended it (0: it never ran).
        submitted: time of the first submission, by the clock of Redis; after the end None, if the
            history (``NONET_HISTORY``) no longer has the task. So are `started`, `stream` and
            `worker`.
        due: when a delayed task will be queued, or the dead letter of a dying one tried again;
            None for other tasks.
        finished: time of the end, by the clock of the worker; None before the end.
        worker: ``pid@host`` of the worker that runs it, or ended it.
        worker_deaths: number of workers that died while running it.
        blocker: why it does not run: the lock that a waiting task waited for last, or the steps
            before it in its workflow; the error of SQL for a dying task; for a durable task that is
            delayed, that it is still in SQL only.
        reason: why it is dead or dying (``retries``, ``expected``, ``crash`` …), otherwise empty.
        error: error of the last failed attempt, or how its process ended.
        group: id of the group that it is a child or callback of, or empty.
        crashes: number of processes that died while running no other task.
        usage: resources used by the last failed or final attempt; None if unknown.
        note: why the result of a done task was not kept, otherwise empty.
        traceback: traceback of `error` and of its causes, at most 4 KiB, with secrets masked and
            without values of variables. Empty if there is none, and in lists.
        progress: how far the running attempt is, or the last one was when the task ended; None if
            it has not reported that.
        started: since when a running task runs, by the clock of Redis; of an ended one, when its
            last attempt began; otherwise None.
        waits_since: since when a queued or waiting task waits for a worker, a lock or the steps
            before it, by the clock of Redis; otherwise None.
        workflow: id of the workflow whose step it is, or empty; empty after the end, too.

    Example:
        status = await handle.status()
        print(status.state, status.attempt, status.error)
    """

    id: str
    name: str
    state: str
    stream: str = ""
    attempt: int = 0
    submitted: datetime | None = None
    due: datetime | None = None
    finished: datetime | None = None
    worker: str = ""
    worker_deaths: int = 0
    blocker: str = ""
    reason: str = ""
    error: str = ""
    group: str = ""
    crashes: int = 0
    usage: Usage | None = None
    note: str = ""
    traceback: str = field(default="", repr=False)
    progress: Progress | None = None
    started: datetime | None = None
    waits_since: datetime | None = None
    workflow: str = ""

    @property
    def doing(self) -> str:
        """One line for lists: why the task does not run, its progress, its worker, or its error."""
        why = self.error if self.state == "dying" else self.blocker
        return why or str(self.progress or "") or self.worker or self.error


@dataclass(frozen=True, slots=True)
class EndedTask:
    """How a task ended, as the history of its namespace keeps it: without arguments and result.

    Attributes:
        id: id of the task.
        name: full class name, ``<category>:<Class>``; empty if unknown.
        state: ``done``, ``dead``, ``cancelled`` or ``expired``.
        stream: ``<priority>:<size>`` of its stream; empty if unknown.
        attempt: number of attempts, including the one that ended it; 0: it never ran.
        submitted: time of the first submission; None if unknown. All times are by the clock of
            Redis.
        started: start of the attempt that ended it; None if it did not run at the end.
        ended: time of the end.
        worker: the worker that ended it, or empty.
        error_type, error: class and text of the last error, cut to 600 bytes; for a cancelled task
            who cancelled it and why, cut to 100 bytes.
        traceback: the end of its traceback, masked, at most 4 KiB.
        reason: why a failed task ended: ``retries``, ``expected``, ``crash`` …

    Example:
        for ended in await app.history(states=["dead"], limit=10):
            print(ended.ended, ended.name, ended.error)
    """

    id: str
    name: str
    state: str
    stream: str
    attempt: int
    submitted: datetime | None
    started: datetime | None
    ended: datetime
    worker: str = ""
    error_type: str = ""
    error: str = ""
    traceback: str = field(default="", repr=False)
    reason: str = ""

    @property
    def waited(self) -> timedelta | None:
        """Time from the first submission to the start of the last attempt; None if unknown."""
        return self.started - self.submitted if self.started and self.submitted else None

    @property
    def ran(self) -> timedelta | None:
        """Duration of the last attempt; None if it did not run at the end."""
        return self.ended - self.started if self.started else None

    @property
    def error_line(self) -> str:
        """The first line of the error, with its class."""
        text = f"{self.error_type}: {self.error}" if self.error_type else self.error
        return text.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some of the live tasks, in the order of a list; see `nonet.Nonet.list_tasks`.

    Attributes:
        rows: the tasks.
        matched: how many tasks match: exact without a filter by class or label, or if `searched` is
            `total`; otherwise the number that was found.
        searched: how many tasks were examined.
        total: how many tasks there are in the places that were searched.
        cursor: continues the list behind these rows; empty at the end.

    Example:
        page = await app.list_tasks(state="queued")
        print(f"{len(page.rows)} of {page.matched}")
    """

    rows: Sequence[TaskStatus]
    matched: int
    searched: int
    total: int
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How one child of a group ended; see `nonet.TaskContext.group_results`.

    Attributes:
        id: id of the child.
        state: its final state, or ``unknown`` if no result was kept.
        value: its result if it is ``done``.
        error: the failure in one line, otherwise empty.

    Example:
        @dataclass
        class Report(BaseTask):
            async def execute(self) -> int:
                return sum(child.value for child in await context().group_results())
    """

    id: str
    state: str
    value: Any = None
    error: str = ""


class TaskClient(Protocol):
    """The methods that a handle calls on the client that submitted the task."""

    async def status(self, id: str) -> TaskStatus:
        """Return the status of a task."""

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """Return the result of a task."""

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks and return the state of each."""

    def progress(self, id: str) -> AsyncIterator[Progress]:
        """Yield the progress of a task until it ends."""


class NoDefault(Enum):
    """The default of `default` in `Handle.result`: there is none, and errors are raised."""

    NO_DEFAULT = "none: it raises"

    def __repr__(self) -> str:
        return str(self.value)


class BoundId(str):
    """An id, and the client of the application that it came from.

    Attributes:
        created: False if it existed before.
    """

    _client: Any
    created: bool = True

    def __new__(cls, id: str, client: Any, created: bool = True) -> Self:
        self = str.__new__(cls, id)
        self._client = client
        if not created:
            self.created = False
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle the id alone, because the client cannot be moved to another process."""
        return str, (str.__str__(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Validate and serialise as the id; one read from JSON has no client."""
        core_schema = pydantic.core_schema
        return core_schema.no_info_wrap_validator_function(
            lambda value, check: (
                value if isinstance(value, cls) else cls(check(value), cls._unbound())
            ),
            core_schema.str_schema(min_length=1),
            serialization=core_schema.plain_serializer_function_ser_schema(
                str.__str__, return_schema=core_schema.str_schema()
            ),
        )

    @classmethod
    def _unbound(cls) -> object:
        """The client of an id that was read from JSON: every call raises NotBoundError."""
        raise NotImplementedError


class TaskId(BoundId):
    """The id of a submitted task, and the client that submitted it: what handles share."""

    @classmethod
    def _unbound(cls) -> Unbound:
        return Unbound()

    def _cancelled(self, states: Mapping[str, str]) -> str:
        """Return the state after a cancellation, given what the client returned."""
        state = states[self]
        if not state:
            raise NotFoundError(unknown_task(self))
        if state not in ("cancelled", "cancelling"):
            raise ConflictError(f"task {self} is {state} and can no longer be cancelled")
        return state


class Handle(TaskId, Generic[R_co]):
    """The id of a submitted task, with methods to ask for its status and result.

    A handle is a ``str``: store, compare and log it like one. Pickled or copied to another process
    it becomes a plain ``str``. Its type parameter is the return type of ``execute``: a task that
    returns an int has a ``Handle[int]``.

    Attributes:
        created: False if the task existed before, under the same id or unique key.

    Example:
        handle = await Add(1, 2).schedule()
        print(handle, (await handle.status()).state)
        assert await handle.result(timeout=30) == 3
    """

    _client: TaskClient

    async def status(self) -> TaskStatus:
        """Return the status of the task.

        Raises:
            NotFoundError: the task is unknown.
            ServerUnreachableError: Redis does not answer.
        """
        return await self._client.status(self)

    async def cancel(self, reason: str = "") -> str:
        """Cancel the task in whatever state it is; it does not run (any further).

        Args:
            reason: shown to operators.

        Returns:
            ``cancelled``, or ``cancelling`` if it runs and its worker will end it within seconds.

        Raises:
            ConflictError: it has already ended, or it failed and waits to be stored in SQL.
            NotFoundError: the task is unknown.
        """
        return self._cancelled(await self._client.cancel([self], reason=reason))

    def progress(self) -> AsyncIterator[Progress]:
        """Yield each progress that the task reports, and the last one before the end of the task.

        The newest one, if there is one, comes first. A task that is repeated reports again from
        the beginning. Redis is asked twice a second.

        Raises:
            NotFoundError: the task is unknown.
            ServerUnreachableError: Redis does not answer.

        Example:
            async for progress in handle.progress():
                print(progress)
        """
        return self._client.progress(self)

    @overload
    async def result(self, timeout: float | None = None) -> R_co: ...

    @overload
    async def result(self, timeout: float | None = None, *, default: D) -> R_co | D: ...

    async def result(
        self, timeout: float | None = None, *, default: Any = NoDefault.NO_DEFAULT
    ) -> Any:
        """Wait for the task to end and return what ``execute`` returned.

        Args:
            timeout: seconds; None waits without limit.
            default: returned instead of raising an error below, except DeadlockError; with
                ``timeout=0`` also while the task has not ended.

        Raises:
            TaskFailed: the task failed for good.
            TaskCancelled: it was cancelled.
            TaskExpired: it had not started by its ``start_by``.
            ResultUnavailable: the task is unknown, or its result was not kept. A durable task is
                known as soon as its transaction is committed.
            TimeoutError: it has not ended in time.
            DeadlockError: it needs a lock that the waiting code holds.
        """
        try:
            return await self._client.result(self, timeout=timeout)
        except (ResultError, TimeoutError):
            if default is NoDefault.NO_DEFAULT:
                raise
            return default


class Unbound:
    """The client of a handle that was read from JSON: every call raises NotBoundError."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def refuse(ids: str | Sequence[str], **_: Any) -> NoReturn:
            raise unbound_error(ids if isinstance(ids, str) else ids[0])

        return refuse


def unbound_error(id: str) -> NotBoundError:
    """The error of a handle that has no client."""
    return NotBoundError(
        f"the handle of task {id} has no application, as it was read from text or comes from "
        f"run_inline: use app.status({id!r}), app.result({id!r}) or app.cancel([{id!r}])"
    )


def unknown_task(id: str) -> str:
    """The message for an id that is neither in Redis nor in SQL."""
    return (
        f"task {id} is unknown: never submitted here, its result has expired "
        "(NONET_RESULT_TTL), or Redis has lost it"
    )
