"""Cancel tasks: by id, by group, or by class and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nonet.base.actor import who
from nonet.base.errors import UnknownTaskError
from nonet.client.namespace import InNamespace
from nonet.stores.queue.places import UNFINISHED, TaskFilter
from nonet.tasks.registry import Registry
from nonet.tasks.task import BaseTask


class Cancelling(InNamespace):
    """Cancels tasks of a namespace."""

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks in whatever state they are; workers end running ones within seconds.

        A running coroutine gets ``asyncio.CancelledError``; a plain function notices at its next
        `TaskContext.ensure_lease`. Code that still runs after ``NONET_CANCEL_GRACE`` is killed with
        its child process, or abandoned. A cancelled task never runs again, even if its worker dies
        meanwhile. Code that awaits the result gets `TaskCancelled`, and a group counts the child as
        failed. The event stream gets one event per call. Calling it again is safe.

        Args:
            ids: ids or handles of the tasks.
            reason: shown to operators.

        Returns:
            The state of each task by its id. It is ``cancelled``, also if it was cancelled before;
            ``cancelling`` for a running task, which can still finish before its worker gets the
            order; the state in which it stays (``dying`` or how it ended); or empty if unknown.

        Raises:
            NotBoundError: the application is not open.
            ServerUnreachableError: Redis does not answer, or does not know a task and SQL does not
                answer. Some may be cancelled.

        Example:
            states = await app.cancel([handle], reason="the campaign is over")
        """
        named = [ids] if isinstance(ids, str) else ids  # a single handle is a str
        home = self._open(*named)
        states = await home.cancellation.cancel(named, who(), reason, running=True)
        unknown = [id for id, state in states.items() if not state]
        for other in await home.routing.others() if unknown else ():
            found = await other.cancellation.cancel(unknown, who(), reason, running=True)
            states |= {id: state for id, state in found.items() if state}
        return states

    async def cancel_group(self, group: str, *, reason: str = "") -> dict[str, str]:
        """Cancel the children of a group that have not ended; returns what `cancel` returns.

        Cancelled children count as failed, and the group ends according to its policy. If the
        parent is still submitting children (state ``building``), later ones are not cancelled.

        Args:
            group: id of the group.
            reason: shown to operators.

        Raises:
            NotFoundError: the group is unknown or has been deleted.
            ServerUnreachableError: Redis does not answer. Some may be cancelled.
        """
        pending = await self._open().routing.find(lambda home: home.stores.groups.pending(group))
        return await self.cancel(pending, reason=reason)

    async def cancel_not_running(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks that are queued, delayed (also for a retry) or waiting; leave others alone.

        Code that awaits the result gets `TaskCancelled`, a group counts the child as failed, and
        the event stream records the call. Calling it again is safe.

        Args:
            ids: ids or handles of the tasks.
            reason: shown to operators.

        Returns:
            The state of each task by its id. It is ``cancelled``, also if it was cancelled before;
            the state in which it stays (``running``, ``dying`` or how it ended); or empty if
            unknown.

        Raises:
            ServerUnreachableError: Redis does not answer, or does not know a task and SQL does not
                answer. Some may be cancelled.
        """
        return await self._open().cancellation.cancel(ids, who(), reason)

    async def cancel_many(
        self,
        *,
        task: type[BaseTask] | str | None = None,
        labels: Mapping[str, Any] | None = None,
        states: Sequence[str] = UNFINISHED,
        reason: str = "",
    ) -> int:
        """Cancel all tasks of a class or with certain labels, as `cancel` does; return how many.

        The number includes durable tasks that are still in SQL only. Tasks submitted meanwhile may
        be missed. Calling it again is safe, for example in a start-up hook.

        Args:
            task: the class, or its full or bare name.
            labels: a task must have all of these labels with these values.
            states: some of ``queued``, ``delayed``, ``waiting`` and ``running``.
            reason: shown to operators.

        Raises:
            ValueError: neither `task` nor `labels` is given, or a state is unknown.
            TypeError: `task` is neither a class nor a name.
            RegistrationError: the class is not registered.
            UnknownTaskError: no registered class and no task has this name.
            ServerUnreachableError: Redis does not answer. Some may be cancelled.

        Example:
            await client.cancel_many(task=SendMail, labels={"campaign": "2026-07"})
        """
        if task is None and not labels:
            raise ValueError(
                "cancel_many: pass a task class or labels, or it would cancel all tasks"
            )
        if wrong := set(states) - set(UNFINISHED):
            raise ValueError(f"cancel_many: states {sorted(wrong)} must be among {UNFINISHED}")
        home = self._open()
        name = _name_of(home.registry, task)
        selection = TaskFilter(name, labels or {}, states)
        found = await home.cancellation.cancel_all(selection, who(), reason)
        if name and not found.number:
            _ensure_known(home.registry, name)
        return found.number


def _name_of(registry: Registry, task: type[BaseTask] | str | None) -> str:
    """Return the class name for `cancel_many`; empty: any class."""
    if task is None or isinstance(task, str):
        return task or ""
    if not isinstance(task, type):
        raise TypeError(f"cancel_many: task={task!r:.200} must be a task class or its name")
    return registry.of_class(task).name


def _ensure_known(registry: Registry, name: str) -> None:
    """Reject an unknown class name, unless this process has loaded no classes."""
    known = [item.name for item in registry]
    if known and name not in {*known, *(full.rpartition(":")[2] for full in known)}:
        raise UnknownTaskError(name, known)
