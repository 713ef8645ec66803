"""Query tasks, and wait for their results: `status`, `explain`, `result`, `list_tasks`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from nonet.base.errors import NotFoundError, ResultUnavailable
from nonet.base.synchronous import sleep
from nonet.client.namespace import InNamespace, OpenNamespace
from nonet.client.results import child_result, value_of
from nonet.rules.findings.remedies import of_task
from nonet.stores.queue.places import BUDGET, LIVE_STATES
from nonet.tasks.handles import (
    ChildResult,
    EndedTask,
    Handle,
    Progress,
    R,
    TaskPage,
    TaskStatus,
    unknown_task,
)

if TYPE_CHECKING:
    from nonet.rules.findings.explanation import Explanation
    from nonet.stores.sql.outbox import Kept

# A worker stores at most one progress of an attempt a second, so none is missed.
_PROGRESS_SECONDS = 0.5


class Reading(InNamespace):
    """Reads the tasks of a namespace."""

    async def status(self, id: str) -> TaskStatus:
        """Return the status of a task.

        A durable task that is still in SQL only is ``delayed``, and its ``blocker`` says so. After
        the end of a task the history adds when it was submitted and started, and by which worker.

        Args:
            id: id or handle of the task.

        Raises:
            NotBoundError: the application is not open.
            NotFoundError: the task is unknown.
            ServerUnreachableError: Redis does not answer, or does not know the task and SQL does
                not answer.

        Example:
            print((await app.status(handle)).state)
        """
        return await self._open(id).routing.find(lambda home: _whole_status(home, id))

    def handle(self, id: str) -> Handle[Any]:
        """Return the handle of a submitted task, for example of an id that you have stored.

        Args:
            id: id of the task; nothing is read before its methods are called.

        Raises:
            NotBoundError: the application is not open.

        Example:
            print(await app.handle("sum-1-2").result(timeout=0, default=None))
        """
        client: Any = self._open()  # a `Client`
        return Handle(id, client, created=False)

    async def explain(self, id: str) -> Explanation:
        """Explain where a task is, or the first thing that keeps it from running.

        Args:
            id: id or handle of the task.

        Raises:
            NotBoundError: the application is not open.
            NotFoundError: the id is unknown, or belongs to a group or a hold.
            ServerUnreachableError: Redis does not answer, or does not know the task and SQL does
                not answer.

        Example:
            print((await app.explain(handle)).text)
        """
        from nonet.client.explaining import explain_by_facts  # 20 ms; workers explain no tasks

        return (await explain_by_facts(self._open(id), id))[0]

    @overload
    async def result(self, id: Handle[R], *, timeout: float | None = None) -> R: ...

    @overload
    async def result(  # type: ignore[overload-cannot-match]  # it is, where R cannot be as wanted
        self, id: Handle[object], *, timeout: float | None = None
    ) -> object: ...

    @overload
    async def result(self, id: str, *, timeout: float | None = None) -> Any: ...

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """Wait for a task to end and return what it returned.

        Args:
            id: id or handle of the task; with a handle the result is typed.
            timeout: seconds; None waits without limit.

        Raises:
            NotBoundError: the application is not open.
            TaskFailed: the task failed for good.
            TaskCancelled: it was cancelled.
            TaskExpired: it did not start before its ``start_by``.
            ResultUnavailable: the task is unknown, or its result was not kept.
            TimeoutError: it has not ended in time.
            DeadlockError: it needs a lock that the waiting code holds.
            ServerUnreachableError: Redis does not answer.

        Example:
            assert await app.result(handle, timeout=30) == 3
        """
        return await result_of(self._open(id), id, timeout)

    async def progress(self, id: str) -> AsyncIterator[Progress]:
        """Yield the progress of a task until it ends, for the framework; see `Handle.progress`."""
        home = self._open(id)
        last: Progress | None = None
        is_known = False
        while True:
            is_live, found = await home.stores.results.progress(id)
            if not is_live:
                try:
                    status = await _status(home, id)
                    is_live, found = status.state in LIVE_STATES, status.progress
                except NotFoundError:
                    if not is_known:
                        home = await home.routing.find(lambda home: _knowing(home, id))
                        is_known = True
                        continue
            is_known = True
            # The last report has another time once the task has ended.
            is_seen = last and found and not is_live and replace(found, at=last.at) == last
            if found is not None and found != last and not is_seen:
                last = found
                yield found
            if not is_live:  # its result may be gone already
                return
            await sleep(_PROGRESS_SECONDS)

    def live(
        self, *, state: str | None = None, task: str | None = None
    ) -> AsyncIterator[TaskStatus]:
        """Iterate over tasks that have not ended, in no order.

        Args:
            state: only tasks in this state: ``queued``, ``delayed``, ``waiting``, ``running`` or
                ``dying``; None: any.
            task: only tasks of this class, by its full or bare name, registered here or not; None:
                any.

        Raises:
            NotBoundError: the application is not open; raised by the call itself.
            ValueError: the state is unknown; raised by the call itself.
            ServerUnreachableError: Redis does not answer.

        Example:
            async for status in app.live(state="waiting"):
                print(status.id, status.name, status.blocker)
        """
        home = self._open()
        _check_state("live", state)
        return home.stores.results.live(state=state, task=task)

    async def history(
        self,
        *,
        states: Collection[str] = (),
        task: str | None = None,
        since: timedelta | None = None,
        limit: int = 100,
    ) -> list[EndedTask]:
        """Return the tasks that ended last, the newest first.

        The history keeps the last ``NONET_HISTORY`` tasks that are done, as many that are
        cancelled, and a tenth of this number each that are dead and expired.

        Args:
            states: only tasks that ended in one of these states: ``done``, ``dead``, ``cancelled``
                or ``expired``; empty: all.
            task: only tasks of this class, by its full or bare name; None: any.
            since: only tasks that ended at most this long ago; None: any.
            limit: number of tasks at most.

        Raises:
            NotBoundError: the application is not open.
            ValueError: a state is unknown.
            ServerUnreachableError: Redis does not answer.

        Example:
            for ended in await app.history(states=["dead"], since=timedelta(hours=1)):
                print(ended.id, ended.name, ended.error)
        """
        history = self._open().stores.history
        return await history.ended(states=states, task=task, since=since, limit=limit)

    async def logs(self, id: str) -> dict[int, str]:
        """Return what the code of a task has logged: the last lines of each attempt, by its number.

        They are kept as long as the result of the task; later its dead letter has some. Those of a
        running attempt are up to two seconds old.

        Args:
            id: id or handle of the task.

        Raises:
            NotBoundError: the application is not open.
            NotFoundError: the task is unknown.
            ServerUnreachableError: Redis does not answer.

        Example:
            for attempt, lines in (await app.logs(handle)).items():
                print(f"attempt {attempt}:", lines, sep="\\n")
        """
        return await self._open(id).routing.find(lambda home: _known_logs(home, id))

    async def list_tasks(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        labels: Mapping[str, Any] | None = None,
        worker: str | None = None,
        lock: str | None = None,
        error: str = "",
        since: timedelta | None = None,
        limit: int = 100,
        budget: int = BUDGET,
        cursor: str = "",
    ) -> TaskPage:
        """Return some of the tasks that have not ended, in the order of a list.

        Running tasks come first (the longest running one first), then waiting, dying and queued
        tasks, each the oldest first, and delayed tasks, the soonest first.

        Args:
            state: only tasks in this state: ``queued``, ``delayed``, ``waiting``, ``running`` or
                ``dying``; None: any.
            task: only tasks of this class, by its full or bare name; None: any.
            labels: only tasks that have all of these labels with these values.
            worker: only tasks of this worker, by its name (``pid@host``) or incarnation.
            lock: only tasks that hold this lock or limiter, or wait for it, in this order: up to
                500 of each. Such a list has no second page.
            error: only tasks whose last attempt failed with an error that contains this text.
            since: only tasks that were submitted at most this long ago.
            limit: the most tasks of the page.
            budget: how many tasks to examine in each place: running, queued, and the set of
                delayed and waiting tasks.
            cursor: `TaskPage.cursor` of the page before; empty: the first page.

        Raises:
            NotBoundError: the application is not open.
            ValueError: the state is unknown, the cursor is invalid, or `limit` or `budget` is below
                1.
            InvalidArgumentsError: `lock` is not the name of a lock.
            ServerUnreachableError: Redis does not answer.

        Example:
            page = await app.list_tasks(state="running")
            for status in page.rows:
                print(status.id, status.name, status.worker, status.started)
        """
        stores = self._open().stores
        _check_state("list_tasks", state)
        for name, value in (("limit", limit), ("budget", budget)):
            if value < 1:
                raise ValueError(f"list_tasks: {name}={value!r} must be at least 1")
        from nonet.stores.namespace.task_queries import TaskQuery, page_of_lock  # 25 ms

        query = TaskQuery(task=task, labels=labels or {}, worker=worker, error=error, since=since)
        selection = await query.live(
            stores.broker, results := stores.results, (state,) if state else ()
        )
        if lock is None:
            return await results.page(selection, limit=limit, budget=budget, cursor=cursor)
        return await page_of_lock(results, stores.locks, lock, selection, limit)

    async def active_tasks(self, name: str) -> int:
        """Return how many tasks of a class have not ended.

        Args:
            name: full name of the class.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        return await self._open().stores.ceilings.active_tasks(name)

    async def group_results(self, group: str) -> list[ChildResult]:
        """Return how the children of a group ended, in the order of spawning.

        Args:
            group: id of the group.
        """
        home = self._open()
        ended = await home.routing.find(lambda home: home.stores.groups.results(group))
        return [child_result(id, end, home.registry) for id, end in ended]


async def result_of(home: OpenNamespace, id: str, timeout: float | None) -> Any:
    """Wait for the result of a task; see `Reading.result`."""
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"task {id}: timeout={timeout!r:.100} must be a number of seconds, or None")
    try:
        end = await home.ended(id, timeout)
    except TimeoutError:
        after = f" after {timeout:g} s" if timeout else ""
        show = of_task("explain", id)
        raise TimeoutError(f"task {id} has not ended{after}; '{show}' shows why") from None
    if end is None:
        raise ResultUnavailable(unknown_task(id))
    return value_of(id, end, home.registry)


async def _status(home: OpenNamespace, id: str) -> TaskStatus:
    found = await home.stores.results.status(id)
    if found is None and (kept := await home.kept(id)) is not None:
        return _status_of(kept)
    if found is None:  # the relay may have moved it from SQL to Redis in between
        found = await home.stores.results.status(id)
    if found is None:
        raise NotFoundError(unknown_task(id))
    return found


async def _whole_status(home: OpenNamespace, id: str) -> TaskStatus:
    """Return the status of a task, after its end with what the history has."""
    return await home.stores.history.completed(await _status(home, id))


async def logs_of(home: OpenNamespace, id: str) -> dict[int, str]:
    """Return the lines of each attempt that are kept; empty if none are, or the task is unknown."""
    kept = await home.stores.broker.logs(id)
    return {attempt: home.cipher.decrypt_text(text, id, "log") for attempt, text in kept.items()}


async def _known_logs(home: OpenNamespace, id: str) -> dict[int, str]:
    await _status(home, id)
    return await logs_of(home, id)


async def _knowing(home: OpenNamespace, id: str) -> OpenNamespace:
    """Return this namespace if it knows a task.

    Raises:
        NotFoundError: it does not.
    """
    await _status(home, id)
    return home


def _check_state(method: str, state: str | None) -> None:
    if state is not None and state not in LIVE_STATES:
        raise ValueError(f"{method}: state={state!r} must be one of {LIVE_STATES}")


def _status_of(kept: Kept) -> TaskStatus:
    return TaskStatus(
        id=kept.id,
        name=kept.name,
        state="delayed",
        stream=kept.stream,
        submitted=kept.created,
        due=kept.due,
        blocker="kept in SQL: the leading task-scheduler moves it to Redis within a second",
    )
