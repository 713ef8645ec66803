"""The application: everything wired from settings, opened and closed as one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from nonet.base.errors import (
    ConflictError,
    NonetError,
    NotBoundError,
    masked,
)
from nonet.base.streams import Size
from nonet.client.client import CallbackSpawner, Client
from nonet.client.parts import Parts
from nonet.config.loading import load_registry
from nonet.config.settings import Settings, load_settings
from nonet.daemon.service import who
from nonet.rules.explanation import Explanation
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import Stores, open_stores
from nonet.tasks.execution import TaskContext
from nonet.tasks.handles import Handle, R, TaskStatus
from nonet.tasks.injection import Injector
from nonet.tasks.locks import BaseLock, encode_locks
from nonet.tasks.registry import Registry
from nonet.tasks.task import (
    Isolation,
    SubmitManyOptions,
    SubmitOptions,
    TaskOf,
    bind_submitter,
    unbind_submitter,
)
from nonet.telemetry.masking import keep_secret

# A submitter needs neither a worker nor a scheduler, and their imports take longer than its own.
if TYPE_CHECKING:
    from nonet.operate.doctor import Diagnosis
    from nonet.operate.interactive import Debugger
    from nonet.scheduler.scheduler import Scheduler
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus
    from nonet.stores.sql.dead_letters import DeadLetters
    from nonet.tasks.hooks import Hook
    from nonet.worker.worker import Worker

logger = logging.getLogger(__name__)


class Nonet:
    """One open application: registry, broker and client of a namespace.

    Inside ``async with`` it binds ``.schedule()`` process-wide.

    Args:
        settings: the process settings.
        load_tasks: False leaves the registry empty: enough to look at tasks, whatever is wrong
            with the modules that define them.

    Attributes:
        settings: the process settings.
        registry: task classes by name.
        dependency_overrides: ``{dependency: replacement}``, honoured at any depth; what they give
            may be of any type. Child processes know nothing of it: see `nonet.override_dependency`.

    Example:
        async with Nonet.from_settings() as app:
            handle = await RemoveFile("CERN-DST", "/lhcb/a").schedule()
            print(await handle.result(timeout=30))
    """

    def __init__(self, settings: Settings, *, load_tasks: bool = True) -> None:
        if not isinstance(settings, Settings):
            shown = repr(masked(settings)) if isinstance(settings, str) else f"{settings!r:.100}"
            raise TypeError(
                f"Nonet: {shown} is no nonet.Settings: write Nonet.from_settings(redis_url=…), "
                "whose options are the settings"
            )
        self.settings = settings
        keep_secret(settings.secrets())
        self.registry: Registry = load_registry(settings) if load_tasks else Registry()
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._parts: Parts | None = None
        self._closing = AsyncExitStack()
        self._is_open = False
        # False in a child process: its worker has done so.
        self.prepares_sqlite = True

    @classmethod
    def from_settings(cls, **options: Any) -> Self:
        """An application of the environment; keyword options win over it.

        Args:
            options: fields of `nonet.Settings`, e.g. ``namespace="test"`` or
                ``tasks=("mypackage.tasks",)``.

        Raises:
            ConfigurationError: a setting does not fit.
            RegistrationError: a task class cannot be registered.

        Example:
            app = Nonet.from_settings(namespace="test", tasks=("mypackage.tasks",))
        """
        return cls(load_settings(**options))

    def __repr__(self) -> str:
        state = "closed" if self._parts is None else "open"
        url = masked(self.settings.redis_url.get_secret_value())
        return f"Nonet({self.settings.namespace!r} on {url}, {state})"

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise ConflictError(
                "this Nonet is open already: use it as it is, or make another one with "
                "Nonet.from_settings()"
            )
        self._is_open = True
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open(self) -> None:
        settings = self.settings
        stores = await open_stores(settings, self._closing)
        broker = stores.broker
        client = Client(
            broker,
            self.registry,
            settings.namespace,
            message_limit=settings.message_limit,
            signer=settings.signer(),
            outbox=stores.outbox,
            may_have_sql=settings.may_have_sql,
            who=who,
        )
        self._closing.push_async_callback(client.aclose)
        bind_submitter(client)
        self._closing.callback(unbind_submitter, client)
        self._parts = Parts(settings, self.registry, stores, client)
        if self.prepares_sqlite:
            await self._prepare_sqlite()

    async def _prepare_sqlite(self) -> None:
        """Make the table of durable tasks: a transaction that has begun would keep us from it."""
        sql_url = self.settings.sql_url()
        if sql_url.startswith("sqlite") and any(item.cls.durable for item in self.registry):
            try:
                await (await self.stores.outbox()).prepare()
            except NonetError as error:  # who only looks at tasks needs no table
                logger.warning("durable tasks cannot be submitted: %s", error)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._parts = None
        try:
            await self._closing.aclose()
        finally:
            self._is_open = False

    @property
    def client(self) -> Client:
        """The open client.

        Raises:
            NotBoundError: outside ``async with``.
        """
        return self._opened().client

    @property
    def stores(self) -> Stores:
        """What the namespace keeps, for commands. Raises `NotBoundError` outside ``async with``."""
        return self._opened().stores

    @property
    def broker(self) -> Broker:
        """The open broker. Raises `NotBoundError` outside ``async with``."""
        return self._opened().stores.broker

    def _opened(self) -> Parts:
        if self._parts is None:
            raise NotBoundError("the application is not open: use `async with Nonet…`")
        return self._parts

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task.

        Args:
            task: an instance of a registered class.
            options: ``at_time``, ``id``, ``labels``, ``transaction``, ``start_by`` and ``unique``,
                see `BaseTask.schedule`.

        Returns:
            A `Handle`, which is a ``str`` (the id). Its ``created`` is False if the task was there
            before, by its id or its unique key.

        Raises:
            NotBoundError: the application is not open.
            TypeError: `task` is no task, but its class for example.
            RegistrationError: its class is not registered.
            InvalidArgumentsError: an argument, or an option, does not fit; nothing was submitted.
            AdmissionRejected: there are as many tasks as the configuration allows.
            BrokerFullError: Redis has no memory for another task.
            ServerUnreachableError: Redis does not answer, or SQL of a durable class. Whether it was
                submitted is not known: submitted again with its own `id` it stays the same task.

        Example:
            handle = await app.submit(Add(1, 2), id="sum-1-2", labels={"vo": "lhcb"})
            assert await handle.result(timeout=30) == 3
        """
        return await self.client.submit(task, **options)

    async def submit_many(
        self, tasks: Iterable[TaskOf[R]], **options: Unpack[SubmitManyOptions]
    ) -> list[Handle[R]]:
        """Submit many tasks in few round trips; handles in the same order.

        All tasks are checked before the first one is submitted. They are submitted in steps of at
        most 500 tasks, and 1 MiB: each of them wholly or not at all.

        Args:
            tasks: any number, of any classes.
            options: those of `Nonet.submit` but ``id``, for all of them. With a ``transaction`` all
                are of durable classes, and exist once it is committed.

        Raises:
            NotBoundError: the application is not open.
            TypeError: one is no task; nothing was submitted.
            RegistrationError: the class of one is not registered; nothing was submitted.
            InvalidArgumentsError: one does not fit; nothing was submitted.
            AdmissionRejected: a step was refused, and those after it were not tried; its
                ``accepted`` says how many tasks were submitted before. Durable tasks come first.
            BrokerFullError: Redis has no memory for more; the first ones may be submitted.
            ServerUnreachableError: no answer; which ones are submitted is not known.

        Example:
            handles = await app.submit_many(Add(n, n) for n in range(3))
            assert [await handle.result(timeout=30) for handle in handles] == [0, 2, 4]
        """
        return await self.client.submit_many(tasks, **options)

    async def status(self, id: str) -> TaskStatus:
        """One task. A durable one that is not in Redis yet is ``delayed``, see its ``blocker``.

        Args:
            id: of the task, or its handle.

        Raises:
            NotBoundError: the application is not open.
            NotFoundError: unknown id.
            ServerUnreachableError: Redis does not answer, or does not know it and SQL does not.

        Example:
            print((await app.status(handle)).state)
        """
        return await self.client.status(id)

    async def explain(self, id: str) -> Explanation:
        """Where a task is, or the first thing that keeps it from running, in words.

        Args:
            id: of the task, or its handle.

        Raises:
            NotBoundError: the application is not open.
            NotFoundError: unknown id, or one of a group or a hold.
            ServerUnreachableError: Redis does not answer, or does not know it and SQL does not.

        Example:
            print((await app.explain(handle)).text)
        """
        return await self.client.explain(id)

    @overload
    async def result(self, id: Handle[R], *, timeout: float | None = None) -> R: ...

    # Else a handle of another type than is wanted would be taken for a text, and give Any.
    @overload
    async def result(  # type: ignore[overload-cannot-match]  # it is, where R cannot be as wanted
        self, id: Handle[object], *, timeout: float | None = None
    ) -> object: ...

    @overload
    async def result(self, id: str, *, timeout: float | None = None) -> Any: ...

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """What a task returned; waits for its end.

        Args:
            id: of the task, or its handle: then the result has the type of that.
            timeout: seconds; None waits as long as it takes.

        Raises:
            NotBoundError: the application is not open.
            TaskFailed: the task ended dead.
            TaskCancelled: it was cancelled.
            TaskExpired: it was not started by its ``start_by``.
            ResultUnavailable: unknown task, or no result is kept.
            TimeoutError: it has not ended in time.
            DeadlockError: it needs a lock that is held where its result is awaited.
            ServerUnreachableError: Redis does not answer.

        Example:
            assert await app.result(handle, timeout=30) == 3
        """
        return await self.client.result(id, timeout=timeout)

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks, wherever they are; what runs is ended by its worker within seconds.

        A coroutine gets ``asyncio.CancelledError``; a plain function is told by
        `TaskContext.ensure_lease`; what goes on nevertheless is killed, or left alone, after
        ``NONET_CANCEL_GRACE``. Nothing of it is executed again, also if its worker dies meanwhile.
        Who awaits the result gets `TaskCancelled`; a group counts the child as failed. One event
        tells of all. Safe to repeat.

        Args:
            ids: of the tasks, or their handles.
            reason: why, for people.

        Returns:
            The state of each task now, by its id. ``cancelled``, also if it was before;
            ``cancelling`` if it runs, and ends so unless it is done before its worker hears of it;
            that in which it stays (``dying``, or how it has ended); empty if it is unknown.

        Raises:
            NotBoundError: the application is not open.
            ServerUnreachableError: Redis does not answer, or does not know a task and SQL does
                not. Some may be cancelled.

        Example:
            states = await app.cancel([handle], reason="the campaign is over")
        """
        return await self.client.cancel(ids, reason=reason)

    def live(
        self, *, state: str | None = None, task: str | None = None
    ) -> AsyncIterator[TaskStatus]:
        """Tasks that have not ended, in no order.

        Args:
            state: only of this one: ``queued``, ``delayed``, ``waiting``, ``running`` or ``dying``;
                None: of any.
            task: only of the class of this name, full or bare, whether it is registered here or
                not; None: of any.

        Raises:
            NotBoundError: at once, if the application is not open.
            ValueError: at once, if there is no such state.
            ServerUnreachableError: Redis does not answer.

        Example:
            async for status in app.live(state="waiting"):
                print(status.id, status.name, status.blocker)
        """
        return self.client.live(state=state, task=task)

    async def call(
        self, task: TaskOf[R], *, wait_locks: float = 0.0, debugger: Debugger = "none"
    ) -> R:
        """What ``execute`` returns, run here, once, without a worker.

        It runs under the structural locks of the task; limiters are skipped, as a person at a
        terminal is no load to be shaped. A task without such a lock needs no Redis.

        Args:
            task: an instance of a registered class.
            wait_locks: how many seconds to wait for locks that others hold.
            debugger: ``before`` opens pdb before ``execute``, ``exception`` after it has failed.

        Raises:
            TypeError, ValueError: at once, if what is given is no task, or an option does not fit.
            TaskFailed: it raised something, which is the cause of this error.
            UnableToAcquireLockError: another holder kept a lock for all that time.
            DeadlockError: the task or the hold around this call has one of the locks.
            LeaseLostError: a lock was lost meanwhile; the task was cancelled.
            ServerUnreachableError: locks are declared, and Redis does not answer.
            DependencyError: a parameter of ``execute`` cannot be provided.

        Example:
            assert await app.call(Add(1, 2)) == 3
        """
        from nonet.operate.interactive import call, check_call

        check_call(task, wait_locks, debugger)
        async with self.injector() as injector:
            given: Any = task  # a `BaseTask`
            answer: R = await call(
                given,
                self.client,
                injector,
                self.settings,
                wait_seconds=wait_locks,
                debugger=debugger,
            )
            return answer

    def hold(self, *locks: BaseLock, wait: float = 0.0) -> AbstractAsyncContextManager[int]:
        """Hold locks and limiters, all or none, in code that is no task; gives their fence.

        Args:
            locks: one by one; a lock that is named twice is taken once.
            wait: how many seconds to try while others hold them.

        Raises:
            TypeError, ValueError: at once, if there is no lock, or what is given is none.
            UnableToAcquireLockError: it did not get all of them in that time.
            DeadlockError: the task or the hold around this one has one of them.
            LimitImpossible: a limiter never allows as much as is asked of it.
            LeaseLostError: one was lost meanwhile; the block was cancelled.

        Example:
            async with app.hold(MutexLock(LockedObjectType.JOB, 7), wait=5):
                ...
        """
        from nonet.operate.interactive import hold

        for lock in locks:
            if not isinstance(lock, BaseLock):
                raise TypeError(
                    f"hold: {lock!r:.200} is no lock; pass locks one by one: hold(first, second)"
                )
        if not locks:
            raise ValueError("hold: no lock is given, so nothing would be protected")
        if not wait >= 0:  # nan, too
            raise ValueError(f"hold: wait={wait!r} must be 0 seconds or more")
        return hold(self.broker, self.settings, encode_locks(locks), wait_seconds=wait)

    async def doctor(self, *, wait: float | None = None) -> Diagnosis:
        """Whether each task is in one place, nothing is left over, and the server is fit.

        Args:
            wait: seconds for which something must be wrong to count; None: a lease and a sweep,
                in which the others mend what a killed process leaves behind.

        Returns:
            What was found. It has ``is_healthy``, its ``problems`` and ``hints``, how many things
            of each kind there were (``looked_at``), and how long it took, in ``seconds``.

        Raises:
            ValueError: `wait` is below 0.
            ServerUnreachableError: Redis does not answer.

        Example:
            found = await app.doctor(wait=1)
            print(found.is_healthy, *found.problems)
        """
        if wait is not None and not wait >= 0:  # nan, too
            raise ValueError(f"doctor: wait={wait!r} must be 0 seconds or more, or None")
        from nonet.operate.doctor import look_over

        return await look_over(self.stores, self.settings, wait)

    def injector(self) -> Injector:
        """A new injector over `dependency_overrides`; close it when the process ends.

        Example:
            async with app.injector() as injector:
                assert app.dependency_problems(injector) == []
        """
        return Injector(self.dependency_overrides)

    def dependency_problems(self, injector: Injector) -> list[str]:
        """What the registered tasks ask for and nobody provides, one sentence each.

        Args:
            injector: what `injector` gave.
        """
        values = (TaskContext, CallbackSpawner)
        return [
            f"{task_class.name}: {problem}"
            for task_class in self.registry
            for problem in injector.check(task_class.cls.execute, values)
        ]

    def worker(
        self,
        size: Size,
        injector: Injector,
        *,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
    ) -> Worker:
        """A worker of this application; call its ``run``.

        Args:
            size: whose streams it reads.
            injector: what `injector` gave.
            concurrency: tasks at a time; None: as the settings or its size say.
            isolation: where all tasks run, whatever their classes say: ``LOOP`` for classes that
                only this process knows. None: as they say. Child processes load the task modules
                of the settings, and know nothing of `dependency_overrides`.
        """
        from nonet.worker.assembly import assemble

        return assemble(self._opened(), injector, size, concurrency, isolation)

    def scheduler(
        self, injector: Injector, *, hooks: Mapping[str, Hook] | None = None
    ) -> Scheduler:
        """A scheduler of this application; call its ``run``.

        Args:
            injector: what `injector` gave; start-up hooks get their dependencies from it.
            hooks: the start-up hooks by name; None: those that are installed or were imported.
        """
        from nonet.scheduler.assembly import assemble

        return assemble(self._opened(), injector, hooks)

    async def leader(self) -> Leader | None:
        """Which scheduler leads now (``owner``, ``term``, ``expiry``); None if none does."""
        return await self.stores.leader()

    async def run_entry(self, entry: EntryStatus) -> Handle[Any]:
        """Submit the task of a periodic entry now, beside its schedule.

        Args:
            entry: one of those that ``await app.stores.periodic.statuses()`` gives.

        Raises:
            UnknownTaskError: its class is not registered here.
            InvalidArgumentsError: its arguments do not fit any more.
        """
        task = self.registry.get(entry.task).arguments.build(entry.args)
        handle = await self.client.submit(task, labels={"entry": entry.entry})
        await self.stores.events.log("schedule-run", who(), f"{entry.entry}: {handle}")
        return handle

    async def dead_letters(self) -> DeadLetters:
        """The SQL store of dead letters, opened on first use and closed with the application."""
        return await self.stores.dead_letters()

    async def resubmit(self, row_id: int, *, again: bool = False) -> Handle[Any]:
        """Submit a dead letter again, once, whoever else tries to.

        Args:
            row_id: its row in SQL.
            again: once more if that was done before, and the task has ended otherwise than done,
                or nothing is known of it (Redis has lost it, or its result has expired); or if
                another task has its id.

        Raises:
            NotFoundError: this namespace has no such row.
            ConflictError: it was submitted again already, another task has its id, or it is no
                task at all. It stays as it is.
            UnknownTaskError: its class is not registered here; the row stays as it is.
            InvalidArgumentsError: its class refuses its arguments now; the row stays as it is.

        Example:
            for letter in await (await app.dead_letters()).list(limit=10):
                await app.resubmit(letter.id)
        """
        from nonet.operate.dead_letters import resubmit

        letters = await self.dead_letters()
        return await resubmit(row_id, self.client, letters, again=again)
