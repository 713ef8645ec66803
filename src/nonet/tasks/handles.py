"""What a submission gives back: the `Handle` of a task, and what can be known through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypeVar

from nonet.base.errors import ConflictError, NotBoundError, NotFoundError
from nonet.messages.message import Usage

# What `execute` returns. Any, where nobody says: `Handle` alone is `Handle[Any]`.
R = TypeVar("R", default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as authors and operators see it; arguments are not part of it.

    Attributes:
        id: of the task, the same for its whole life.
        name: full class name, ``<category>:<Class>``; empty if nothing is kept of it.
        state: ``queued``, ``delayed``, ``waiting``, ``running``, ``dying``; ended: ``done``,
            ``dead``, ``cancelled``, ``expired``. ``damaged``: somebody has changed its record, and
            it cannot be read; a worker puts it into the quarantine.
        stream: ``<priority>:<size>`` in which it is read; empty of one that has ended.
        attempt: attempts used, plus the running one; of one that ended, which one ended it (0: none
            ran).
        submitted: when it was submitted first, by the clock of Redis; None of one that has ended.
        due: when a delayed task will be queued.
        finished: when it ended, by the clock of its worker; None: it has not.
        worker: ``pid@host`` of who runs it.
        worker_deaths: how many workers died while they ran it.
        blocker: what a waiting task waited for last; of a dying one that waits, why SQL refused it;
            of a durable one that is delayed, that it is in SQL only.
        reason: why it is dead, or dies (``retries``, ``crash``, ``capacity`` …), else empty.
        error: of the last failed attempt; how its process ended, if it died with it.
        group: id of the group whose child or callback it is, or empty.
        crashes: how many processes died in which it was the only suspect.
        usage: what the attempt took that failed last, or that ended it; None: nobody knows.
        note: why no result is kept of one that is done, although it returned one; else empty.

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


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How one child of a group ended; see `nonet.TaskContext.group_results`.

    Attributes:
        id: of the child.
        state: its terminal state, or ``unknown`` if no result is kept.
        value: its result if it is ``done``.
        error: one line about the failure, else empty.

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


class Asked(Protocol):
    """What a handle asks: the client that submitted the task."""

    async def status(self, id: str) -> TaskStatus:
        """Where the task is."""
        ...

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """What it returned."""
        ...

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks: the state of each."""
        ...


class Handle(str, Generic[R_co]):
    """The id of a submitted task, able to ask for its status and result.

    It is a ``str``: it can be stored, compared and logged as one, and a copy that goes to another
    process is one. For type checkers it is generic in what ``execute`` returns: that of an
    ``async def execute(self) -> int`` is a ``Handle[int]``.

    Attributes:
        created: False if the task was there before: the submission had its id, or its unique key.

    Example:
        handle = await Add(1, 2).schedule()
        print(handle, (await handle.status()).state)
        assert await handle.result(timeout=30) == 3
    """

    created: bool = True
    _client: Asked

    def __new__(cls, id: str, client: Asked, created: bool = True) -> Handle[R_co]:
        self = str.__new__(cls, id)
        self._client = client
        if not created:
            self.created = False
        return self

    def __copy__(self) -> Handle[R_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle[R_co]:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """In another process it is the id alone: the client cannot go there."""
        return str, (str.__str__(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """For pydantic it is the id; of a mere id nobody can be asked."""
        return core_schema.no_info_wrap_validator_function(
            lambda value, check: value if isinstance(value, cls) else cls(check(value), _Nobody()),
            core_schema.str_schema(min_length=1),
            serialization=core_schema.plain_serializer_function_ser_schema(
                str.__str__, return_schema=core_schema.str_schema()
            ),
        )

    async def status(self) -> TaskStatus:
        """Where the task is.

        Raises:
            NotFoundError: it is unknown.
            ServerUnreachableError: Redis does not answer.
        """
        return await self._client.status(self)

    async def cancel(self, reason: str = "") -> str:
        """End the task, wherever it is: it is not executed (further).

        Args:
            reason: why, for people.

        Returns:
            ``cancelled``; or ``cancelling`` if it runs, and its worker ends it within seconds.

        Raises:
            ConflictError: it has ended otherwise, or has failed and waits for SQL.
            NotFoundError: it is unknown.
        """
        state = (await self._client.cancel([self], reason=reason))[self]
        if not state:
            raise NotFoundError(unknown_task(self))
        if state not in ("cancelled", "cancelling"):
            raise ConflictError(f"task {self} is {state}: it cannot be cancelled any more")
        return state

    async def result(self, timeout: float | None = None) -> R_co:
        """What ``execute`` returned; waits for the end.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            TaskFailed: the task ended dead.
            TaskCancelled: it was cancelled.
            TaskExpired: it was not started by its ``start_by``.
            ResultUnavailable: unknown task, or no result is kept. A durable task whose
                transaction was committed is known.
            TimeoutError: it has not ended in time.
            DeadlockError: it needs a lock that is held where its result is awaited.
        """
        value: R_co = await self._client.result(self, timeout=timeout)
        return value


class _Nobody:
    """What a handle asks that was read from JSON: it belongs to no application."""

    async def status(self, id: str) -> NoReturn:
        raise NotBoundError(
            f"the handle of task {id} was read from text, which knows no application: ask "
            f"app.status({id!r}), app.result({id!r}) or app.cancel([{id!r}])"
        )

    async def result(self, id: str, *, timeout: float | None = None) -> NoReturn:
        await self.status(id)

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> NoReturn:
        await self.status(ids[0])


def unknown_task(id: str) -> str:
    """What to say of an id that nobody knows."""
    return (
        f"task {id} is unknown: never submitted here, its result has expired "
        "(NONET_RESULT_TTL), or Redis has lost it"
    )
