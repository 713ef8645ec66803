"""`SyncHandle`: a handle whose methods block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, overload

from nonet.base.errors import ResultError
from nonet.tasks.handles import D, NoDefault, Progress, R_co, TaskId, TaskStatus


class SyncTaskClient(Protocol):
    """The methods that a handle calls on the application that submitted the task."""

    def status(self, id: str) -> TaskStatus:
        """Return the status of a task."""

    def result(self, id: str, *, timeout: float | None = None) -> Any:
        """Return the result of a task."""

    def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks and return the state of each."""

    def progress(self, id: str) -> Iterator[Progress]:
        """Yield the progress of a task until it ends."""


class SyncHandle(TaskId, Generic[R_co]):
    """The id of a submitted task, with methods that block: `nonet.Handle` for sync programs.

    A handle is a ``str``: store, compare and log it like one. It may be used in any thread, and
    after a fork. Its type parameter is the return type of ``execute``.

    Attributes:
        created: False if the task existed before, under the same id or unique key.

    Example:
        handle = Add(1, 2).schedule_sync()
        print(handle, handle.status().state)
        assert handle.result(timeout=30) == 3
    """

    _client: SyncTaskClient

    def status(self) -> TaskStatus:
        """Return the status of the task; raises as `nonet.Handle.status`."""
        return self._client.status(self)

    @overload
    def result(self, timeout: float | None = None) -> R_co: ...

    @overload
    def result(self, timeout: float | None = None, *, default: D) -> R_co | D: ...

    def result(self, timeout: float | None = None, *, default: Any = NoDefault.NO_DEFAULT) -> Any:
        """Wait for the task to end and return what ``execute`` returned.

        Args:
            timeout: seconds; None waits without limit.
            default: returned instead of raising an error, as by `nonet.Handle.result`.

        Raises:
            TaskFailed, TaskCancelled, TaskExpired, ResultUnavailable, TimeoutError, DeadlockError:
                as `nonet.Handle.result`.
        """
        try:
            return self._client.result(self, timeout=timeout)
        except (ResultError, TimeoutError):
            if default is NoDefault.NO_DEFAULT:
                raise
            return default

    def cancel(self, reason: str = "") -> str:
        """Cancel the task in whatever state it is; returns and raises as `nonet.Handle.cancel`.

        Args:
            reason: shown to operators.
        """
        return self._cancelled(self._client.cancel([self], reason=reason))

    def progress(self) -> Iterator[Progress]:
        """Yield each progress that the task reports, and the last one before the end of the task.

        Raises:
            NotFoundError: the task is unknown.
            ServerUnreachableError: Redis does not answer.

        Example:
            for progress in handle.progress():
                print(progress)
        """
        return self._client.progress(self)
