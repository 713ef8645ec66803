"""`Nonet`, the application: opens and closes everything that one process needs."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

from nonet.base.errors import ConflictError, NotBoundError, masked
from nonet.base.streams import Size
from nonet.client.application import Application
from nonet.client.client import Client
from nonet.client.namespace import OpenNamespace
from nonet.client.shortcuts import CallbackSpawner
from nonet.config.settings import Settings
from nonet.operate.operations import Operations
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import Stores, open_stores, stores_beside
from nonet.tasks.entry_points import entries
from nonet.tasks.execution import TaskContext
from nonet.tasks.handles import R
from nonet.tasks.injection import Injector
from nonet.tasks.middleware import Middleware, registered_middleware
from nonet.tasks.task import BaseTask, Isolation, SubmitOptions, TaskOf, submitters, sync_submitters
from nonet.tasks.workflows import Workflow
from nonet.telemetry.running_middleware import close_middleware

# Worker, scheduler and tools are imported where they are used: a program that only submits would
# otherwise take twice as long to start.
if TYPE_CHECKING:
    from datetime import datetime

    from nonet.daemon.embedding import RunningDaemons
    from nonet.operate.interactive import Debugger
    from nonet.pipelines.host import PipelineHost
    from nonet.pipelines.loading import Pipelines
    from nonet.scheduler.scheduler import Scheduler
    from nonet.sync import Nonet as SyncNonet
    from nonet.tasks.hooks import Hook
    from nonet.tasks.sync_handles import Handle as SyncHandle
    from nonet.tasks.sync_runs import WorkflowRun as SyncWorkflowRun
    from nonet.worker.worker import Worker


logger = logging.getLogger(__name__)

P = ParamSpec("P")
_Answer = TypeVar("_Answer")


class Nonet(Application, Operations):
    """An application: the task classes, the broker and the client of one namespace.

    Inside ``async with`` it is open, and ``.schedule()`` uses it process-wide.

    Args:
        settings: the settings of this process.
        load_tasks: False: leave the registry empty, to inspect tasks although modules that define
            them cannot be imported.

    Attributes:
        settings: the settings of this process.
        registry: task classes by name.
        dependency_overrides: replacements, ``{dependency: replacement}``, which apply at any depth.
            A replacement may return a value of any type. Child processes do not see them; use
            `nonet.override_dependency` there.
        middlewares: the middlewares of this application, outermost first, for the framework; see
        `use`.

    Example:
        async with Nonet.from_settings() as app:
            handle = await SendInvoice(4711, "me@example.org").schedule()
            print(await handle.result(timeout=30))
    """

    def __init__(self, settings: Settings, *, load_tasks: bool = True) -> None:
        super().__init__(settings, load_tasks=load_tasks)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._client: Client | None = None
        self._others: dict[str, Client] = {}
        self._pipelines: Pipelines | None = None
        self._sync: SyncNonet | None = None
        self._closing = AsyncExitStack()
        self._is_open = False
        # False in a child process, because its worker has prepared the database.
        self.prepares_sqlite = True
        # A broker to use instead of a new one. The fork server makes the broker of its children.
        self.made_broker: Broker | None = None

    def __repr__(self) -> str:
        state = "closed" if self._client is None else "open"
        url = masked(self.settings.redis_url.get_secret_value())
        return f"Nonet({self.settings.namespace!r} on {url}, {state})"

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise ConflictError(
                "this Nonet is already open: use it, or create another one with "
                "Nonet.from_settings()"
            )
        self._is_open = True
        try:
            await self._open_client()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open_client(self) -> None:
        settings = self.settings
        stores = await open_stores(settings, self._closing, self.made_broker)
        self.middlewares.extend(registered_middleware())
        self._closing.push_async_callback(close_middleware, self.middlewares)
        client = self._make_client(stores)
        submitters.append(client)
        self._closing.callback(submitters.remove, client)
        self._client = client
        beside = _Beside(self)
        sync_submitters.append(beside)
        self._closing.callback(sync_submitters.remove, beside)
        if self.prepares_sqlite:
            await stores.prepare_sqlite(self.registry)

    def _make_client(self, stores: Stores) -> Client:
        client = Client(
            stores,
            self.registry,
            middlewares=self.middlewares,
            beside=self.client_of,
            resume_row=self._resume_row,
        )
        self._closing.push_async_callback(client.aclose)
        return client

    def client_of(self, namespace: str) -> Client:
        """Return the client of a namespace on the same servers, for the framework.

        It opens when it is first asked for, and closes with this application.

        Raises:
            NotBoundError: outside ``async with``.
        """
        home = self.client
        if namespace == home.namespace:
            return home
        if namespace not in self._others:
            stores = stores_beside(home.stores, namespace, self._closing)
            self._others[namespace] = self._make_client(stores)
        return self._others[namespace]

    async def _resume_row(self, pipeline: str, key: str, at_time: datetime | None) -> None:
        from nonet.pipelines.burial import resume_row
        from nonet.pipelines.loading import load_pipelines

        if self._pipelines is None:
            self._pipelines = load_pipelines(self.settings)
            for cls in self._pipelines.values():
                self._closing.push_async_callback(cls.database.close)
        await resume_row(self._pipelines.find(pipeline), key, at_time)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._client = self._pipelines = None
        self._others = {}
        sync, self._sync = self._sync, None
        if sync is not None:
            sync.close()
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
        if self._client is None:
            raise NotBoundError("the application is not open: use it inside `async with`")
        return self._client

    def _open(self, *ids: str) -> OpenNamespace:
        return self.client

    @property
    def sync(self) -> SyncNonet:
        """The same application for threads of this program, with methods that block.

        It opens connections of its own when it is first used. ``.schedule_sync()`` uses it.

        Raises:
            NotBoundError: outside ``async with``.

        Example:
            def endpoint(invoice: int) -> str:  # runs in a thread
                return app.sync.submit(Charge(invoice))
        """
        client = self.client
        if self._sync is None:
            from nonet.sync import Nonet as SyncNonet

            url = client.stores.broker.url
            self._sync = SyncNonet.beside(self.settings, self.registry, self.middlewares, url)
        return self._sync

    @property
    def stores(self) -> Stores:
        """The stores, for commands. Raises `NotBoundError` outside ``async with``."""
        return self.client.stores

    @property
    def broker(self) -> Broker:
        """The open broker. Raises `NotBoundError` outside ``async with``."""
        return self.client.stores.broker

    def use(self, make: Callable[P, Middleware], *args: P.args, **options: P.kwargs) -> Middleware:
        """Create a middleware with ``make(*args, **options)`` and use it in this application.

        Child processes create their own if `make` can be imported and the arguments are plain data:
        numbers, texts, and lists or mappings of them. Otherwise they run without it, and the worker
        logs a warning. `nonet.register_middleware` has no such limit.

        Args:
            make: a subclass of `Middleware`, or a function that returns an instance of one.
            args, options: its arguments.

        Raises:
            RegistrationError: `make` does not return a middleware.

        Example:
            class Announce(Middleware):
                async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                    print("begins", task.name, task.id)
                    yield

            app = Nonet.from_settings(namespace="test")
            app.use(Announce)
        """
        return self.middlewares.add(make, args, options)

    async def call(
        self, task: TaskOf[R], *, wait_locks: float = 0.0, debugger: Debugger = "none"
    ) -> R:
        """Run ``execute`` of a task once, in this process, without a worker, and return its result.

        The task holds its structural locks (mutexes, readers and writers) while it runs. Limiters
        are skipped, because a call by hand is negligible load. A task without such locks needs no
        Redis.

        Args:
            task: an instance of a registered class.
            wait_locks: seconds to wait for locks that others hold.
            debugger: ``none``; ``before``: open pdb before ``execute``; ``exception``: open it
                after a failure.

        Raises:
            TypeError, ValueError: `task` is not a task, or an option is invalid; nothing has run.
            TaskFailed: ``execute`` raised an exception, which is the cause of this error.
            UnableToAcquireLockError: a lock was not free within `wait_locks`.
            DeadlockError: the task or ``hold`` block around this call holds one of the locks.
            LeaseLostError: a lock was lost during the run; the task was cancelled.
            ServerUnreachableError: the task declares locks, and Redis does not answer.
            DependencyError: a parameter of ``execute`` cannot be provided.

        Example:
            assert await app.call(Add(1, 2)) == 3
        """
        from nonet.operate.interactive import call

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

    def injector(self) -> Injector:
        """Create an injector that honours `dependency_overrides`; close it when the process ends.

        Example:
            async with app.injector() as injector:
                assert app.dependency_problems(injector) == []
        """
        return Injector(self.dependency_overrides)

    def dependency_problems(self, injector: Injector) -> list[str]:
        """List the dependencies of registered tasks that nothing provides, one sentence each.

        Args:
            injector: an injector of this application.
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
        """Create a worker of this application; call its ``run``.

        Args:
            size: the size of tasks that it runs.
            injector: an injector of this application.
            concurrency: tasks at a time; None: the setting, or the default of its size.
            isolation: where to run all tasks, regardless of their classes; None: as they declare.
                Child processes import the task modules of the settings and ignore
                `dependency_overrides`, so use ``LOOP`` for classes that exist only in this process.
        """
        from nonet.worker.worker import Worker

        return Worker(self.client, injector, size, concurrency, isolation)

    def pipelines(self, names: Sequence[str], injector: Injector) -> PipelineHost:
        """Create what runs pipelines in this process; call its ``run``.

        Args:
            names: the pipelines to run, from the entry points ``nonet.pipelines`` and the task
                modules of the settings.
            injector: an injector of this application, for the parameters of ``process``.

        Raises:
            NotFoundError: a name is unknown.
            RegistrationError: a pipeline cannot run.
        """
        from nonet.pipelines.host import PipelineHost
        from nonet.pipelines.loading import load_pipelines

        return PipelineHost(self.client, injector, load_pipelines(self.settings), names)

    def scheduler(
        self, injector: Injector, *, hooks: Mapping[str, Hook] | None = None
    ) -> Scheduler:
        """Create a scheduler of this application; call its ``run``.

        Args:
            injector: an injector of this application, for start-up hooks.
            hooks: start-up hooks by name; None: the hooks of entry points and imported modules.
        """
        from nonet.scheduler.assembly import assemble

        return assemble(self.client, injector, hooks, self._chores_of_pipelines())

    def _chores_of_pipelines(self) -> dict[str, Callable[[str], Awaitable[float]]]:
        has_entries = any(entries(self.settings.groups, "pipelines"))
        if "nonet.pipelines" not in sys.modules and not has_entries:
            return {}  # without any, a scheduler does not need SQLAlchemy
        from nonet.pipelines.loading import load_pipelines
        from nonet.pipelines.unrun import UnrunPipelines

        load = partial(load_pipelines, self.settings)
        return {"pipelines": UnrunPipelines(self.stores.pipelines, load).tick}

    @asynccontextmanager
    async def running(
        self,
        *,
        sizes: Iterable[Size | str] = tuple(Size),
        scheduler: bool = True,
        timeout: float | None = 60,
    ) -> AsyncIterator[RunningDaemons]:
        """Run workers and a scheduler in the event loop of this program while the block runs.

        They are ready when the block begins. At its end they drain as at SIGTERM: they fetch
        nothing more, running tasks may continue for the setting ``grace``, and the rest is handed
        back. If the end is cancelled, everything is handed back at once. The program keeps its own
        signal handlers. With the setting ``metrics_port``, probes and metrics are served as by a
        daemon.

        The application is opened for the block, unless it is open.

        Args:
            sizes: sizes of the workers, one worker each, as `nonet.Size` or by name.
            scheduler: run a scheduler, for delayed and periodic tasks and retries; any number may
                run in a namespace, and one of them leads.
            timeout: seconds that the start may take; None: no limit.

        Raises:
            ConfigurationError: a setting, Redis or the central configuration is unsuitable.
            ValueError: a size is unknown, or there is nothing to run.
            TimeoutError: the daemons are not ready in time; the message says why.
            NonetError: a daemon failed: the block was cancelled, and this is the daemon's error, of
                any type.

        Example:
            async with app.running(sizes=["small"], scheduler=False) as daemons:
                handle = await Add(1, 2).schedule()
                assert daemons.ready and await handle.result(timeout=30) == 3
        """
        from nonet.daemon.embedding import chosen_sizes, running_inside
        from nonet.daemon.health import answering_probes
        from nonet.daemon.together import Daemon, Together
        from nonet.worker.worker import Worker

        chosen = chosen_sizes(sizes)
        if not (chosen or scheduler):
            raise ValueError("running: there is nothing to run: name a size, or scheduler=True")
        async with AsyncExitStack() as around:
            if self._client is None:
                await around.enter_async_context(self)
            injector = await around.enter_async_context(self.injector())
            for problem in (*self.dependency_problems(injector), *self.registry.warnings()):
                logger.warning("%s", problem)
            daemons: dict[str, Daemon] = {
                f"{size} worker": Worker(self.client, injector, size, owns_process=False)
                for size in chosen
            }
            if scheduler:
                daemons["scheduler"] = self.scheduler(injector)
            address = self.settings.metrics_host, self.settings.metrics_port
            await around.enter_async_context(
                answering_probes(*address, Together(list(daemons.values())))
            )
            yield await around.enter_async_context(running_inside(daemons, timeout))


class _Beside:
    """Submits for threads of the program; only the first call opens connections for them."""

    def __init__(self, app: Nonet) -> None:
        self._app = app

    def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit one task."""
        return self._app.sync.submit(task, **options)

    def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> SyncWorkflowRun:
        """Submit a workflow."""
        return self._app.sync.submit_workflow(workflow, id=id)
