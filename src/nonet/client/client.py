"""The client of an open application: submit tasks, query them, wait for results, open groups."""

from __future__ import annotations

import math
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from nonet.base.actor import who
from nonet.base.errors import (
    AdmissionRejected,
    ConfigurationError,
    InvalidArgumentsError,
    NotBoundError,
    NotFoundError,
    ResultUnavailable,
    UnknownTaskError,
)
from nonet.base.synchronous import Gate, sleep, timeout as time_limit
from nonet.client import workflows
from nonet.client.envelopes import Envelopes
from nonet.client.groups import Policy, Spawned, open_group
from nonet.client.live import LiveConfig
from nonet.client.outcomes import child_result, value_of
from nonet.client.routing import Routing
from nonet.client.workflows import submit_workflows
from nonet.messages.encryption import Cipher
from nonet.messages.message import is_id
from nonet.messages.repetition import Known
from nonet.messages.terms import unix_microseconds
from nonet.stores.namespace.cancellation import Cancellation
from nonet.stores.namespace.hints import Hints
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.places import BUDGET, LIVE_STATES, UNFINISHED, TaskFilter
from nonet.stores.queue.results import Ended, Results
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.stores.queue.workflows import Workflows
from nonet.tasks.execution import current_holders
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
from nonet.tasks.middleware import Middlewares
from nonet.tasks.registry import Registry
from nonet.tasks.runs import StepStatus, WorkflowRun, WorkflowStatus
from nonet.tasks.task import (
    PLAIN,
    BaseTask,
    Options,
    SubmitManyOptions,
    SubmitOptions,
    TaskOf,
    TaskWithOptions,
    ensure_task,
    with_said,
)
from nonet.tasks.workflows import Workflow
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.config.settings import Settings
    from nonet.rules.findings.explanation import Explanation, Facts
    from nonet.stores.sql.outbox import Kept
    from nonet.stores.stores import Stores

# Seconds between two queries of a task that is in SQL only; the relay runs once a second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
# Query SQL at least once, for up to this long, even with `timeout=0`.
_QUERY_SECONDS = 0.5
# A worker stores at most one progress of an attempt a second, so none is missed.
_PROGRESS_SECONDS = 0.5
# Many tasks can wait for results at once. Without a bound they would exhaust the connection pool,
# and submissions of durable tasks would time out behind them.
_CONCURRENT_SQL_QUERIES = 4


P = ParamSpec("P")
_Answer = TypeVar("_Answer")

ResumeRow = Callable[[str, str, datetime | None], Awaitable[None]]
"""Takes the name of a pipeline, the key of a row, and when it is due (None: now)."""


class Client:
    """Submits tasks to one namespace and reads their state; `Nonet.client` is one.

    Args:
        stores: the open stores of the namespace.
        registry: the task classes of this process.
        settings: the settings of the namespace.
        middlewares: runs around submissions and attempts; None: nothing does.
        handles: makes the handle of a task, given its id, the client and whether it was created.
        beside: returns the open client of another namespace; None: this program has no others.
        resume_row: makes the row of a dead letter due again; None: this program has no pipelines.

    Attributes:
        namespace: its namespace.
        envelopes: creates and reads messages.
        live_config: the published configuration, which overrides attributes of classes.
        middlewares: runs around submissions and attempts.
        cipher: encrypts and decrypts the data of tasks.
        routing: sends tasks to the namespaces of their tenants, and finds them there.

    Example:
        client = app.client  # programs get it from an open application
        handle = await client.submit(Add(1, 2))
    """

    def __init__(
        self,
        stores: Stores,
        registry: Registry,
        settings: Settings,
        *,
        middlewares: Middlewares | None = None,
        handles: Callable[..., Any] = Handle,
        beside: Callable[[str], Client] | None = None,
        resume_row: ResumeRow | None = None,
    ) -> None:
        self.stores = stores
        self.broker: Broker = stores.broker
        self.registry = registry
        self.settings = settings
        self.namespace: str = settings.namespace
        self.cipher: Cipher = stores.cipher
        self.live_config: LiveConfig = LiveConfig(stores.publication, registry)
        self.middlewares: Middlewares = Middlewares() if middlewares is None else middlewares
        self.envelopes: Envelopes = Envelopes(
            *(registry, self.live_config, settings.signer()),
            message_limit=settings.message_limit,
            middlewares=self.middlewares,
            cipher=stores.cipher,
        )
        self.groups: Groups = stores.groups
        self.workflows: Workflows = stores.workflows
        self.results: Results = stores.results
        self.hints: Hints = Hints(stores.broker.client, settings.namespace)
        self._sql_queries = Gate(_CONCURRENT_SQL_QUERIES)
        self._resume_row = resume_row
        self._handles: Callable[..., Handle[Any]] = handles
        self.cancellation: Cancellation = Cancellation(
            stores.broker, stores.outbox, settings.may_have_sql
        )
        self.routing: Routing = Routing(self, beside, settings.resealed)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Client({self.namespace!r})"

    async def aclose(self) -> None:
        """Close the connections that this client opened; it cannot be used afterwards."""
        self._is_closed = True
        await self.hints.aclose()

    def _ensure_open(self, *ids: str) -> None:
        """Raise NotBoundError after `aclose`, because nothing would close a new connection."""
        if self._is_closed:
            what = f"task {ids[0]}: the application that submitted it" if ids else "the application"
            raise NotBoundError(
                f"{what} is closed; open one with `async with Nonet.from_settings() as app`"
                + (" and use app.status(id), app.result(id) or app.cancel([id])" if ids else "")
            )

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task.

        Args:
            task: an instance of a registered class.
            options: ``delay``, ``at_time``, ``id``, ``labels``, ``transaction``, ``start_by`` and
                ``unique``; see `BaseTask.schedule`.

        Returns:
            A `Handle`, which is the id (a ``str``). Its ``created`` is False if the task existed
            before, under the same id or unique key.

        Raises:
            NotBoundError: the application is not open.
            TypeError: `task` is not a task instance.
            RegistrationError: its class is not registered.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached.
            BrokerFullError: Redis is out of memory.
            ServerUnreachableError: Redis, or SQL for a durable class, does not answer. The task may
                or may not have been submitted: with an `id` of your own you can safely submit it
                    again.

        Example:
            handle = await app.submit(Add(1, 2), id="sum-1-2", labels={"customer": "acme"})
            assert await handle.result(timeout=30) == 3
        """
        given, said = with_said(task, options)
        self._ensure_open()
        durable = is_durable(given, said.transaction, self.registry)
        if self.live_config.is_due:
            await self.live_config.refresh()
        with sending() as trace:
            submission = self.envelopes.prepare(given, said, trace=trace)
            if trace:
                describe_sent([submission])
            if said.transaction is not None:
                return (await self._send_within(said.transaction, [submission]))[0]
            if durable:
                return await self.send(submission, durable=True, id_is_new=said.id is None)
            (accepted,) = await self.accept([submission])
            return self._handle(accepted)

    async def submit_many(
        self, tasks: Iterable[TaskOf[R]], **options: Unpack[SubmitManyOptions]
    ) -> list[Handle[R]]:
        """Submit many tasks in few round trips; return their handles in the same order.

        All tasks are validated before the first is submitted. They are sent in batches of up to 500
        tasks and 1 MiB; each batch is submitted completely or not at all.

        Args:
            tasks: any number, of any classes. `BaseTask.with_options` gives one options of its own.
            options: those of `Nonet.submit` except ``id``, for all tasks. With a ``transaction``
                all classes must be durable; the tasks exist once it is committed.

        Raises:
            NotBoundError: the application is not open.
            TypeError: an item is not a task instance; nothing was submitted.
            RegistrationError: a class is not registered; nothing was submitted.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling refused a batch, and later batches were not sent. Its
                ``accepted`` is the number of tasks submitted before. Durable tasks come first.
            BrokerFullError: Redis is out of memory; earlier batches may be submitted.
            ServerUnreachableError: Redis or SQL does not answer; any of the tasks may be submitted.

        Example:
            handles = await app.submit_many(Add(n, n) for n in range(3))
            assert [await handle.result(timeout=30) for handle in handles] == [0, 2, 4]
            await app.submit_many(Add(n, n).with_options(delay=n) for n in range(3))
        """
        shared = Options.named(options) if options else PLAIN
        self._ensure_open()
        if self.live_config.is_due:
            await self.live_config.refresh()
        prepared: list[Submission] = []
        durable: list[bool] = []
        ids_are_new = True
        with sending() as trace:
            task: Any
            for task in tasks:
                said = shared
                if isinstance(task, TaskWithOptions):
                    task, said = task.task, task.over(options)
                    ids_are_new = ids_are_new and said.id is None
                durable.append(is_durable(task, shared.transaction, self.registry))
                prepared.append(self.envelopes.prepare(task, said, trace=trace))
            if trace:
                describe_sent(prepared)
            if shared.transaction is not None:
                return await self._send_within(shared.transaction, prepared)
            return await self.send_many(prepared, durable, ids_are_new=ids_are_new)

    async def send_many(
        self, prepared: Sequence[Submission], durable: Sequence[bool], *, ids_are_new: bool = False
    ) -> list[Handle[Any]]:
        """Submit prepared submissions in few round trips, for the framework.

        Args:
            prepared: the validated tasks.
            durable: whether to keep each in SQL; those are submitted first.
            ids_are_new: the ids of durable tasks were generated for these submissions.

        Raises:
            NonetError: as `submit_many`.
        """
        kept = [item for item, is_kept in zip(prepared, durable, strict=True) if is_kept]
        others = [item for item, is_kept in zip(prepared, durable, strict=True) if not is_kept]
        stored = iter(await self._store(kept, ids_are_new=ids_are_new) if kept else ())
        try:
            accepted = iter(await self.accept(others))
        except AdmissionRejected as error:
            raise error.after(len(kept)) from None
        return [self._handle(next(stored if is_kept else accepted)) for is_kept in durable]

    async def send(
        self, submission: Submission, *, durable: bool, id_is_new: bool = False
    ) -> Handle[Any]:
        """Submit a prepared submission, for the framework.

        Args:
            submission: the validated task.
            durable: keep it in SQL.
            id_is_new: its id was generated for this submission.
        """
        if durable:
            (accepted,) = await self._store([submission], ids_are_new=id_is_new)
        else:
            (accepted,) = await self.accept([submission])
        return self._handle(accepted)

    async def accept(self, submissions: Sequence[Submission]) -> Sequence[Accepted]:
        """Submit prepared tasks that are not durable, for the framework; see `Routing.accept`."""
        return await self.routing.accept(submissions, _accept)

    def _handle(self, accepted: Accepted) -> Handle[Any]:
        client = self.routing.client(accepted.namespace)
        return self._handles(accepted.id, client, accepted.created)

    async def _store(
        self, submissions: Sequence[Submission], *, ids_are_new: bool
    ) -> Sequence[Accepted]:
        """Submit durable tasks."""

        async def store(client: Client, some: Sequence[Submission]) -> list[Accepted]:
            made = await (await client.stores.outbox()).submit(some, ids_are_new=ids_are_new)
            return [Accepted(item.id, is_new) for item, is_new in zip(some, made, strict=True)]

        return await self.routing.accept(submissions, store)

    async def _send_within(
        self, transaction: Any, submissions: Sequence[Submission]
    ) -> list[Handle[Any]]:
        """Submit durable tasks in a transaction of the caller."""

        async def store(client: Client, some: Sequence[Submission]) -> list[Accepted]:
            await (await client.stores.outbox()).submit_within(transaction, some)
            return [Accepted(item.id, True) for item in some]

        return [self._handle(item) for item in await self.routing.accept(submissions, store)]

    async def active_tasks(self, name: str) -> int:
        """Return how many tasks of a class have not ended.

        Args:
            name: full name of the class.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        return await self.stores.ceilings.active_tasks(name)

    async def resume_row(self, pipeline: str, key: str, at_time: datetime | None) -> None:
        """Make the row of a dead letter due again.

        Args:
            pipeline: name of its pipeline.
            key: its primary key, as text.
            at_time: when it is due; None: now.

        Raises:
            NotFoundError: the pipeline is unknown here, or the row does not exist.
            ServerUnreachableError: its database does not answer.
        """
        if self._resume_row is None:
            raise NotFoundError(f"this program cannot reach the rows of pipeline {pipeline}")
        await self._resume_row(pipeline, key, at_time)

    async def status(self, id: str) -> TaskStatus:
        """Return the status of a task.

        A durable task that is still in SQL only is ``delayed``, and its ``blocker`` says so.

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
        self._ensure_open(id)
        return await self.routing.find(lambda client: client._status(id))

    async def _status(self, id: str) -> TaskStatus:
        found = await self.results.status(id)
        if found is None and (kept := await self._kept(id)) is not None:
            return _status_of(kept)
        if found is None:  # the relay may have moved it from SQL to Redis in between
            found = await self.results.status(id)
        if found is None:
            raise NotFoundError(unknown_task(id))
        return found

    async def progress(self, id: str) -> AsyncIterator[Progress]:
        """Yield the progress of a task until it ends, for the framework; see `Handle.progress`."""
        self._ensure_open(id)
        last: Progress | None = None
        is_known, client = False, self
        while True:
            is_live, found = await client.results.progress(id)
            if not is_live:
                try:
                    status = await client._status(id)
                    is_live, found = status.state in LIVE_STATES, status.progress
                except NotFoundError:
                    if not is_known:
                        client = await self.routing.find(lambda client: client._knowing(id))
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

    async def _knowing(self, id: str) -> Client:
        """Return this client if it knows a task.

        Raises:
            NotFoundError: it does not.
        """
        await self._status(id)
        return self

    async def recognise(self, id: str) -> Known | None:
        """Return the state of a task and the dead letter that it repeats, for the framework."""
        found = await self._recognise(id)
        for other in await self.routing.others() if found is None else ():
            found = found or await other._recognise(id)
        return found

    async def _recognise(self, id: str) -> Known | None:
        found = await self.results.recognise(id)
        if found is None and (kept := await self._kept(id)) is not None:
            return Known("delayed", kept.mark)
        # The relay may have moved it from SQL to Redis in between.
        return found or await self.results.recognise(id)

    async def _kept(self, id: str) -> Kept | None:
        """Return the row of a durable task that is only in SQL, or None.

        Query Redis before this call. If it returns None, query Redis again, because the relay may
        have moved the task there in between.
        """
        if not self.settings.may_have_sql() or not is_id(id):
            return None
        async with self._sql_queries:
            try:
                return await (await self.stores.outbox()).find(id)
            except ConfigurationError:  # no tables or no driver, so no durable task was submitted
                return None

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
        return (await self.explain_by_facts(id))[0]

    async def explain_by_facts(self, id: str) -> tuple[Explanation, Facts | None]:
        """As `explain`, with the facts, for the framework; None: SQL alone knows the task."""
        self._ensure_open(id)
        return await self.routing.find(lambda client: client._explain(id))

    async def _explain(self, id: str) -> tuple[Explanation, Facts | None]:
        from nonet.rules.findings.explanation import explain
        from nonet.stores.namespace.explaining import TaskFacts  # workers explain no tasks

        broker = self.broker
        source = TaskFacts(
            *(broker.client, self.namespace, broker.crash_limit, broker.lock_ttl_ms),
            cipher=self.cipher,
        )
        try:
            facts = await source.read(id)
        except NotFoundError:
            kept = await self._kept(id)
            if kept is not None:
                return await self._explain_kept(id, kept), None
            # The relay may have moved it from SQL to Redis in between.
            facts = await source.read(id)
        return explain(facts), facts

    async def _explain_kept(self, id: str, kept: Kept) -> Explanation:
        from nonet.rules.findings.explanation import explain_kept

        return explain_kept(
            id,
            seconds=(datetime.now(UTC) - kept.created).total_seconds(),
            is_led=await self.stores.leader() is not None,
            due=kept.due,
        )

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
        self._ensure_open(id)
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(
                f"task {id}: timeout={timeout!r:.100} must be a number of seconds, or None"
            )
        try:
            ended = await self.ended(id, timeout)
        except TimeoutError:
            after = f" after {timeout:g} s" if timeout else ""
            from nonet.rules.findings.remedies import of_task

            show = of_task("explain", id)
            raise TimeoutError(f"task {id} has not ended{after}; '{show}' shows why") from None
        if ended is None:
            raise ResultUnavailable(unknown_task(id))
        return value_of(id, ended, self.registry)

    async def ended(self, id: str, timeout: float | None) -> Ended | None:
        """Wait for the end of a task, wherever it is; None if it is unknown. For the framework.

        Raises:
            TimeoutError: it has not ended after so many seconds.
        """
        ended = await self._end_of(id, timeout)
        for other in await self.routing.others() if ended is None else ():
            ended = ended or await other._end_of(id, timeout)
        return ended

    async def _end_of(self, id: str, timeout: float | None) -> Ended | None:
        """Wait for the end of a task; None if it is unknown.

        Until the relay moves a durable task to Redis, this polls SQL.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause, is_kept, holders = _FIRST_PAUSE, True, current_holders()
        while True:
            left = deadline - time.monotonic()
            ended = await self.results.wait(id, None if timeout is None else left, holders)
            if ended is not None or not is_kept:
                return ended
            left = deadline - time.monotonic()
            async with time_limit(None if timeout is None else max(left, _QUERY_SECONDS)):
                is_kept = await self._kept(id) is not None
            if not is_kept:
                continue  # the relay may have moved it to Redis in between: ask Redis once more
            if left <= 0:
                raise TimeoutError
            await sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

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
        self._ensure_open()
        _check_state("live", state)
        return self.results.live(state=state, task=task)

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
        self._ensure_open()
        return await self.stores.history.ended(states=states, task=task, since=since, limit=limit)

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
            worker: only tasks that this worker has; its name (``pid@host``) or its incarnation.
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
        self._ensure_open()
        _check_state("list_tasks", state)
        for name, value in (("limit", limit), ("budget", budget)):
            if value < 1:
                raise ValueError(f"list_tasks: {name}={value!r} must be at least 1")
        from nonet.stores.namespace.task_queries import TaskQuery, page_of_lock

        query = TaskQuery(task=task, labels=labels or {}, worker=worker, error=error, since=since)
        selection = await query.live(self.broker, self.results, (state,) if state else ())
        if lock is None:
            return await self.results.page(selection, limit=limit, budget=budget, cursor=cursor)
        return await page_of_lock(self.results, self.stores.locks, lock, selection, limit)

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
        self._ensure_open(*named)
        states = await self.cancellation.cancel(named, who(), reason, running=True)
        unknown = [id for id, state in states.items() if not state]
        for other in await self.routing.others() if unknown else ():
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
        pending = await self.routing.find(lambda client: client.groups.pending(group))
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
        return await self.cancellation.cancel(ids, who(), reason)

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
        self._ensure_open()
        name = self._name_of(task)
        selection = TaskFilter(name, labels or {}, states)
        found = await self.cancellation.cancel_all(selection, who(), reason)
        if name and not found.number:
            self._ensure_known(name)
        return found.number

    def _name_of(self, task: type[BaseTask] | str | None) -> str:
        """Return the class name for `cancel_many`; empty: any class."""
        if task is None or isinstance(task, str):
            return task or ""
        if not isinstance(task, type):
            raise TypeError(f"cancel_many: task={task!r:.200} must be a task class or its name")
        return self.registry.of_class(task).name

    def _ensure_known(self, name: str) -> None:
        """Reject an unknown class name, unless this process has loaded no classes."""
        known = [item.name for item in self.registry]
        if known and name not in {*known, *(full.rpartition(":")[2] for full in known)}:
            raise UnknownTaskError(name, known)

    async def spawn_with_callback(
        self,
        children: Sequence[TaskOf[Any]],
        callback: TaskOf[Any],
        *,
        on_failure: TaskOf[Any] | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        """Submit children and, once all have ended, either the callback or `on_failure`.

        Exactly one of the two is submitted, once. A parent task that runs again finds its group and
        children, and submits nothing twice.

        Args:
            children: any number of tasks; with none the callback is submitted at once. Like the
                callback and `on_failure`, each may have options: `BaseTask.with_options`.
            callback: submitted if all children are done (``all_success``) or have ended
                (``all_done``). It reads ``context().group_results()``.
            on_failure: submitted instead if a child failed; None: the group only shows as failed.
            policy: ``all_success`` or ``all_done``.
            ttl_seconds: how long to keep the results after the group has ended, at most ten years.

        Returns:
            The id of the group.

        Raises:
            TypeError: a child, the callback or `on_failure` is not a task, or has an id of its own.
            ValueError: `policy` or `ttl_seconds` is invalid.
            InvalidArgumentsError: an argument of a task is invalid; nothing was submitted.
            ServerUnreachableError: Redis does not answer. A parent task that runs again continues
                this group; otherwise some children may have been submitted.
            NonetError: Redis lost the group while the children were submitted.

        Example:
            group = await client.spawn_with_callback([Hash(part) for part in parts], Report())
        """
        self._ensure_open()
        spawned = Spawned.of(children, callback, on_failure, policy, ttl_seconds)
        return await open_group(self, spawned)

    async def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> WorkflowRun:
        """Submit all steps of a workflow; see `Workflow.submit`.

        Args:
            workflow: the workflow.

        Example:
            run = await app.submit_workflow(chain(Add(1, 2), Add(3, 4)), id="nightly-2026-11-25")
        """
        self._ensure_open()
        (run,) = await submit_workflows(self, [(id, workflow)])
        return run

    async def submit_workflows(
        self, workflows: Iterable[Workflow] | Mapping[str, Workflow]
    ) -> list[WorkflowRun]:
        """Submit many workflows in few round trips; return their runs in the same order.

        All are validated before the first is submitted. A call takes up to 500 steps and edges.

        Args:
            workflows: any number. A mapping gives each an id of its own, see `Workflow.submit`.

        Raises:
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached; nothing was submitted.
            ConflictError: a task has the id of a workflow or of a step, and those behind it in the
                same namespace were not submitted.
            ServerUnreachableError: Redis does not answer; any of them may have been submitted.

        Example:
            days = {f"import-{day}": chain(Add(1, day), Add(3, 4)) for day in range(7)}
            runs = await app.submit_workflows(days)
            print([run for run in runs if not run.created])
        """
        self._ensure_open()
        if isinstance(workflows, Mapping):
            return await submit_workflows(self, [*workflows.items()])
        return await submit_workflows(self, [(None, workflow) for workflow in workflows])

    async def workflow_status(self, id: str) -> WorkflowStatus:
        """Return the state of a workflow; see `WorkflowRun.status`.

        Args:
            id: id of the workflow.
        """
        self._ensure_open()
        return await self.routing.find(lambda client: client.workflows.status(id))

    async def workflow_steps(self, id: str) -> list[StepStatus]:
        """Return the steps of a workflow; see `WorkflowRun.steps`.

        Args:
            id: id of the workflow.
        """
        self._ensure_open()
        return await self.routing.find(lambda client: workflows.steps_of(client, id))

    async def workflow_ended(self, id: str, timeout: float | None = None) -> WorkflowStatus:
        """Wait for the end of a workflow; see `WorkflowRun.wait`.

        Args:
            id: id of the workflow.
        """
        self._ensure_open()
        return await self.routing.find(lambda client: workflows.wait_for(client, id, timeout))

    async def step_result(self, id: str, place: str, timeout: float | None = None) -> Any:
        """Wait for the result of a step; see `WorkflowRun.result`.

        Args:
            id: id of the workflow.
            place: place of the step in it.
        """
        self._ensure_open()
        return await workflows.step_result(self, id, place, timeout)

    async def cancel_workflow(self, id: str, reason: str = "") -> str:
        """Cancel a workflow; see `WorkflowRun.cancel`.

        Args:
            id: id of the workflow.
        """
        self._ensure_open()
        return await self.routing.find(lambda client: workflows.cancel(client, id, reason))

    async def resume_workflow(self, id: str) -> int:
        """Run the failed steps of a workflow again; see `WorkflowRun.resume`.

        Args:
            id: id of the workflow.
        """
        self._ensure_open()
        return await self.routing.find(lambda client: workflows.resume(client, id))

    async def with_results(self, id: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace references in the arguments of a step by results, for the framework."""
        return await workflows.with_results(self, id, arguments)

    async def step_inputs(self, id: str) -> list[ChildResult]:
        """Return how the predecessors of a step ended, for the framework."""
        return await workflows.step_inputs(self, id)

    async def withdraw_letters(self, ids: Sequence[str], since: datetime) -> None:
        """Delete the dead letters of tasks that run again, for the framework.

        Args:
            since: when these tasks were submitted; letters of earlier tasks with these ids stay.

        Raises:
            ConflictError: one was submitted again; none was deleted.
        """
        if self.settings.may_have_sql():
            await (await self.stores.dead_letters()).withdraw(ids, unix_microseconds(since))

    async def cancel_steps(self, ids: Sequence[str], who: str, reason: str) -> None:
        """Cancel steps of a workflow that is being cancelled, for the framework."""
        await self.cancellation.cancel(ids, who, reason, running=True, is_logged=False)

    async def log_event(self, kind: str, text: str) -> None:
        """Record a change by the user of this process, for the framework."""
        await self.broker.scripts.run("log_event", kind, who(), text)

    def signed(self, reason: str) -> str:
        """Return a reason with the author of the change, for the framework."""
        return ": ".join(filter(None, (f"by {who()}", reason)))

    async def group_results(self, group: str) -> list[ChildResult]:
        """Return how the children of a group ended, in the order of spawning.

        Args:
            group: id of the group.
        """
        ended = await self.routing.find(lambda client: client.groups.results(group))
        return [child_result(id, end, self.registry) for id, end in ended]


class _HasClient(Protocol):
    @property
    def client(self) -> Client:
        """The client that it calls."""


def of_client(
    method: Callable[Concatenate[Client, P], _Answer],
) -> Callable[[object], Callable[Concatenate[_HasClient, P], _Answer]]:
    """Make the method of something with a client that calls a method of this client."""

    def call(self: _HasClient, /, *args: P.args, **options: P.kwargs) -> _Answer:
        return method(self.client, *args, **options)

    update_wrapper(call, method)
    return lambda _: call


async def _accept(client: Client, submissions: Sequence[Submission]) -> list[Accepted]:
    return await client.broker.accept(submissions)


def is_durable(task: BaseTask, transaction: Any, registry: Registry) -> bool:
    """Return whether the class of a task is durable.

    Raises:
        TypeError: `task` is not a task.
        InvalidArgumentsError: a transaction is given, but the class is not durable.
    """
    if not isinstance(task, BaseTask):
        ensure_task(task, "submit")
    durable = type(task).durable
    if transaction is not None and not durable:
        problem = "transaction: the class is not durable: set durable = True in the class"
        raise InvalidArgumentsError(registry.of(task).name, [problem])
    return durable


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
