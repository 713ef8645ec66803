"""`Nonet`, the application: what a program calls, and the daemons that it can run."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nonet.base.streams import Size
from nonet.client.async_application import AsyncApplication
from nonet.client.shortcuts import CallbackSpawner
from nonet.config.settings import Settings
from nonet.operate.interactive import call
from nonet.operate.operations import Operations
from nonet.tasks.entry_points import entries
from nonet.tasks.execution import TaskContext
from nonet.tasks.handles import R
from nonet.tasks.injection import Injector
from nonet.tasks.task import Isolation, TaskOf

# Worker, scheduler and tools are imported where they are used: a program that only submits would
# otherwise take twice as long to start.
if TYPE_CHECKING:
    from datetime import datetime

    from nonet.daemon.embedding import RunningDaemons
    from nonet.daemon.together import Daemon
    from nonet.operate.interactive import Debugger
    from nonet.pipelines.app_pipelines import AppPipelines
    from nonet.pipelines.host import PipelineHost
    from nonet.scheduler.scheduler import Scheduler
    from nonet.tasks.hooks import Hook
    from nonet.worker.worker import Worker


logger = logging.getLogger(__name__)

P = ParamSpec("P")
_Answer = TypeVar("_Answer")


class Nonet(AsyncApplication, Operations):
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
        self._pipelines: AppPipelines | None = None
        self._resume_row = self._resume_in_pipeline

    async def _resume_in_pipeline(self, pipeline: str, key: str, at_time: datetime | None) -> None:
        await self._app_pipelines().resume_row(pipeline, key, at_time)

    async def _close(self) -> None:
        try:
            if self._pipelines is not None:
                await self._pipelines.aclose()
        finally:
            await super()._close()

    def _app_pipelines(self) -> AppPipelines:
        from nonet.pipelines.app_pipelines import AppPipelines  # it imports SQLAlchemy

        if self._pipelines is None:
            self._pipelines = AppPipelines(self.settings)
        return self._pipelines

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
        return self._worker(injector, size, concurrency=concurrency, isolation=isolation)

    def _worker(self, injector: Injector, size: Size, **options: Any) -> Worker:
        from nonet.worker.worker import Worker  # 40 ms; most programs only submit

        return Worker(self.client, injector, size, **options)

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
        return self._app_pipelines().host(self.client, injector, names)

    def scheduler(
        self, injector: Injector, *, hooks: Mapping[str, Hook] | None = None
    ) -> Scheduler:
        """Create a scheduler of this application; call its ``run``.

        Args:
            injector: an injector of this application, for start-up hooks.
            hooks: start-up hooks by name; None: the hooks of entry points and imported modules.
        """
        from nonet.scheduler.assembly import assemble  # it imports models and schedules

        return assemble(self.client, injector, hooks, self._chores_of_pipelines())

    def _chores_of_pipelines(self) -> dict[str, Callable[[str], Awaitable[float]]]:
        has_entries = any(entries(self.settings.groups, "pipelines"))
        if "nonet.pipelines" not in sys.modules and not has_entries:
            return {}  # without any, a scheduler does not need SQLAlchemy
        return {"pipelines": self._app_pipelines().chore(self.client)}

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
        from nonet.daemon.embedding import chosen_sizes, running_inside  # most programs only submit

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
                f"{size} worker": self._worker(injector, size, owns_process=False)
                for size in chosen
            }
            if scheduler:
                daemons["scheduler"] = self.scheduler(injector)
            address = self.settings.metrics_host, self.settings.metrics_port
            yield await around.enter_async_context(running_inside(daemons, timeout, address))
