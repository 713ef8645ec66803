"""`System`: Redis, workers and a scheduler for one test, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, DependencyError, NotBoundError
from nonet.base.streams import Size
from nonet.config.settings import plain_settings
from nonet.daemon.service import Stop
from nonet.stores.namespace.sandbox import Sandbox
from nonet.stores.stores import EMBEDDED
from nonet.tasks.handles import Handle, R
from nonet.tasks.injection import Injector, load_entry_points
from nonet.tasks.registry import load_lock_types
from nonet.tasks.task import BaseTask, Isolation, SubmitOptions, TaskOf
from nonet.testing.idle import IdleCheck, NotIdleError, refuse_leaks
from nonet.testing.running import MovedClock, Pace, Running
from nonet.testing.submitted import RecordingEnvelopes, Submitted, T, check_submitted
from nonet.testing.system_options import (
    LATEST,
    TOO_LATE,
    Tasks,
    check_names,
    check_now,
    checked_tasks,
    config_file,
)

if TYPE_CHECKING:
    from nonet.rules.letters import DeadLetter

_POLL_SECONDS = 0.01
_START_SECONDS = 30.0
_MOST_LETTERS = 1_000_000
# Open systems, and the asyncio task that opened each of them.
_openers: dict[System, asyncio.Task[Any] | None] = {}


class System:
    """Run a whole system for one test: a real Redis, workers of all sizes, a scheduler.

    Open it with ``async with``; inside the block ``.schedule()`` submits to it. Workers and
    scheduler run in the event loop of the test. Tasks run there, too, or in threads if ``execute``
    is a plain function.

    With several open systems ``.schedule()`` submits to the one opened last. Open the second one
    inside the block of the first, not in another asyncio task. The system ignores the environment
    and ``.env``, and cleans up at the end. If the block ends without an error, a leaked key fails
    the test.

    Args:
        tasks: task classes, or modules with task classes; None: the installed ones, as in a worker,
            with start-up hooks.
        overrides: ``{dependency: replacement}``; add more to `dependency_overrides`.
        config: the central configuration, as a mapping or the path of its file.
        sizes: sizes of the workers, one each. Without a worker, every submitted task waits.
        slots: slots of each worker.
        now: time at the beginning, aware; None: the real time.
        redis_url: an existing Redis, where `namespace` is deleted at the end; empty: a temporary
            server.
        namespace: prefix of all keys.
        settings: further `nonet.Settings`, such as ``misfire_grace=60``.

    Attributes:
        app: the open application: ``submit``, ``status``, ``explain``, ``hold``, ``controls`` …
        dependency_overrides: the current overrides; changes take effect at once.

    Example:
        async with System(tasks=[Add]) as system:
            handle = await Add(1, 2).schedule()
            assert await handle.result(timeout=10) == 3
    """

    def __init__(
        self,
        tasks: Tasks | None = None,
        *,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        sizes: Iterable[Size] = tuple(Size),
        slots: int = 10,
        now: datetime | None = None,
        redis_url: str = "",
        namespace: str = "test",
        **settings: Any,
    ) -> None:
        arguments = inspect.signature(System).parameters
        check_names(settings, [name for name in arguments if name != "settings"])
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = dict(
            overrides or {}
        )
        self._tasks = None if tasks is None else checked_tasks(tasks)
        self._config = config
        self._sizes, self._slots, self._now = tuple(sizes), slots, now
        # After `advance`, every missed occurrence fires, unless the test sets a misfire grace.
        self._fires_all = "misfire_grace" not in settings
        defaults = {"grace": 0}
        own = {"redis_url": redis_url or EMBEDDED, "namespace": namespace}
        self._options = {**defaults, **settings, **own}
        self._running: Running | None = None
        self._closing = AsyncExitStack()

    def __repr__(self) -> str:
        state = "closed" if self._running is None else "open"
        return f"System({self._options['namespace']!r}, {state})"

    async def __aenter__(self) -> Self:
        _refuse_beside_others()
        _openers[self] = asyncio.current_task()
        self._closing.callback(_openers.pop, self)
        try:
            if self._now is not None:
                check_now(self._now)
            self._running = await self._open()
            await self._until_ready(self._running)
        except BaseException:
            self._running = None
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        running, self._running = self._running, None
        try:
            if running is not None:
                await running.stop()
                if error is None:
                    refuse_leaks(running.sandbox)
        finally:
            await self._closing.aclose()

    @property
    def app(self) -> Nonet:
        """The open application.

        Raises:
            NotBoundError: outside ``async with``.
        """
        return self._open_one.app

    @property
    def _open_one(self) -> Running:
        if self._running is None:
            raise NotBoundError("the system is not open: use `async with System(…) as system:`")
        return self._running

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task; see `BaseTask.schedule`.

        Args:
            task: the task.
            options: options of `BaseTask.schedule`.
        """
        return await self.app.submit(task, **options)

    @overload
    async def result(self, id: Handle[R], *, timeout: float = 30) -> R: ...

    @overload
    async def result(self, id: str, *, timeout: float = 30) -> Any: ...

    async def result(self, id: str, *, timeout: float = 30) -> Any:
        """Return the result of a task; see `Handle.result`.

        Args:
            id: id of the task, or its handle.
            timeout: seconds.
        """
        return await self.app.result(id, timeout=timeout)

    async def now(self) -> datetime:
        """Return the time of this system, which `advance` moves."""
        return await self.app.broker.now()

    async def advance(self, by: float | timedelta) -> None:
        """Move the clock of the system forward, so that due tasks run.

        Delays, retries, schedules, windows of rate limits, and locks of dead holders follow this
        clock. Running tasks keep their leases and locks. The clock of the process does not move:
        timeouts inside a task, and ``datetime.now()``, are not affected.

        Args:
            by: seconds, or a timedelta.

        Raises:
            ValueError: `by` is negative, or moves the clock beyond the year 2199.

        Example:
            handle = await Add(1, 2).schedule(at_time=await system.now() + timedelta(hours=1))
            await system.advance(timedelta(hours=1))
            assert await handle.result(timeout=10) == 3
        """
        running = self._open_one
        step = await self._step(by)
        running.app.broker.moved += step
        running.sandbox.advance(step)
        running.scheduler.periodic.nobody_led_until(await self.now())
        running.pace.hurry()

    async def run_until_idle(self, *, timeout: float = 30) -> None:
        """Wait until nothing is left to do now: no task is queued, running, dying or due.

        Tasks that are due later do not count (see `advance`), nor do tasks that wait for a lock
        that the test holds, for a limit, or for the end of a pause.

        Args:
            timeout: seconds, by the clock of the process.

        Raises:
            NotIdleError: it takes longer, or a task can never run here. The message explains each
                task that is left.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        idle = IdleCheck(self._open_one)
        while not await idle.is_idle():
            if time.monotonic() >= deadline:
                raise NotIdleError(await idle.why_not(timeout))
            await asyncio.sleep(_POLL_SECONDS)

    async def _step(self, by: float | timedelta) -> timedelta:
        now = await self.now()
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"advance({by!r}): time does not go back")
        if seconds > (LATEST - now).total_seconds():
            raise ValueError(f"advance({by!r}): from {now:%Y-%m-%d} on that is {TOO_LATE}")
        return by if isinstance(by, timedelta) else timedelta(seconds=by)

    @property
    def submitted(self) -> list[Submitted]:
        """Return the tasks that this process has submitted since the system was opened.

        The oldest is first. The list includes submissions by the test, by tasks (``after_commit()``
        only if they succeed), by groups (children and callbacks), and by schedules.
        """
        return self._open_one.envelopes.submitted()

    def assert_submitted(
        self, cls: type[T], *, times: int | None = None, **arguments: Any
    ) -> list[Submitted[T]]:
        """Fail unless a task of this class, with these arguments, was submitted.

        Args:
            cls: the class itself; subclasses do not count.
            times: exact number of submissions; None: at least one.
            arguments: values of arguments, by name; other arguments may have any value.

        Returns:
            The submissions that match, for example to check their labels.

        Example:
            system.assert_submitted(RemoveFile, storage_element="CERN-DST", times=1)
        """
        __tracebackhide__ = True
        if not isinstance(cls, type):
            raise TypeError(
                f"assert_submitted: {cls!r:.100} is not a class: pass the task class itself, such "
                "as SendInvoice"
            )
        known = self.app.registry.of_class(cls)
        found = check_submitted(self.submitted, known, arguments, times)
        return cast("list[Submitted[T]]", found)  # their class is `cls`

    def assert_not_submitted(self, cls: type[BaseTask], **arguments: Any) -> None:
        """Fail if a task of this class, with these arguments, was submitted.

        Args:
            cls: the class itself; subclasses do not count.
            arguments: values of arguments, see `assert_submitted`.
        """
        __tracebackhide__ = True
        self.assert_submitted(cls, times=0, **arguments)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters in SQL, oldest first."""
        letters = await self.app.dead_letters()
        return (await letters.list(limit=_MOST_LETTERS))[::-1]

    def assert_clean(self) -> None:
        """Fail if a key is left that neither expires nor belongs to an unfinished task."""
        __tracebackhide__ = True
        refuse_leaks(self._open_one.sandbox)

    # ---- opening ---------------------------------------------------------------------------------

    async def _open(self) -> Running:
        closing = self._closing
        home = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="nonet-test-")))
        options = {"state_dir": home, "config": config_file(self._config, home), **self._options}
        app = Nonet(plain_settings(**options), load_tasks=self._tasks is None)
        app.dependency_overrides = self.dependency_overrides
        self._register(app)
        await closing.enter_async_context(app)
        settings = app.settings
        sandbox = Sandbox(app.broker.url, settings.namespace, settings.lock_ttl)
        closing.callback(sandbox.close)
        if not settings.redis_url.get_secret_value().startswith(EMBEDDED):
            closing.callback(sandbox.erase)
        if self._now is not None:
            app.broker.moved = self._now - await app.broker.now()
        sandbox.begin(app.broker.moved)
        app.broker.epoch.clock = MovedClock()
        app.client.envelopes = RecordingEnvelopes(app.client.envelopes, sandbox.known)
        app.sync.prepare_with(app.client.envelopes)
        injector = await closing.enter_async_context(app.injector())
        if problems := app.dependency_problems(injector):
            raise DependencyError("; ".join(problems))
        return self._start(app, injector, sandbox)

    def _register(self, app: Nonet) -> None:
        if self._tasks is None:
            return
        prefixes = app.settings.groups
        load_lock_types(prefixes)
        load_entry_points(prefixes)
        for item in self._tasks:
            if isinstance(item, type):
                app.registry.add(item, item.__module__.rpartition(".")[2])
            else:
                name = item.__name__ if isinstance(item, ModuleType) else item
                app.registry.add_module(name)

    def _start(self, app: Nonet, injector: Injector, sandbox: Sandbox) -> Running:
        pace, stop = Pace(), Stop()
        scheduler = app.scheduler(injector, hooks=None if self._tasks is None else {})
        if self._fires_all:
            scheduler.periodic.fires_all = True
        services = {"scheduler": scheduler.run(pace)}
        for size in self._sizes:
            worker = app.worker(size, injector, concurrency=self._slots, isolation=Isolation.LOOP)
            services[f"{size} worker"] = worker.run(stop)
        started = [asyncio.create_task(run, name=name) for name, run in services.items()]
        envelopes = app.client.envelopes
        assert isinstance(envelopes, RecordingEnvelopes)
        running = Running(app, sandbox, scheduler, pace, stop, started, envelopes)
        self._closing.push_async_callback(running.stop)
        return running

    async def _until_ready(self, running: Running) -> None:
        """Wait until every worker is registered and the scheduler fires due entries."""
        deadline = time.monotonic() + _START_SECONDS
        wanted = set(self._sizes)
        while True:
            running.check()
            ready = {worker.size for worker in await running.app.stores.results.workers()}
            if running.scheduler.is_firing and ready >= wanted:
                await running.app.broker.presence([])
                await running.app.client.live_config.follow(running.app.broker.config_version)
                return
            if time.monotonic() >= deadline:
                reasons = running.scheduler.report().reasons
                raise ConfigurationError(
                    f"the system did not start within {_START_SECONDS:g} s: "
                    f"ready workers: {sorted(ready)}; {'; '.join(reasons)}"
                )
            running.pace.hurry()
            await asyncio.sleep(_POLL_SECONDS)


def _refuse_beside_others() -> None:
    """Raises `NotBoundError` if another asyncio task has a system open."""
    for opener in _openers.values():
        if opener is not None and opener is not asyncio.current_task() and not opener.done():
            raise NotBoundError(
                f"the asyncio task {opener.get_name()!r} has a System open, and .schedule() of "
                "both tasks would submit to the one opened last: open the second one inside the "
                "block of the first, or in another process"
            )
