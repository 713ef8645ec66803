"""`System`: Redis, workers and a scheduler for one test, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload

from nonet.app import Nonet
from nonet.base.clock import ClockWatch, Reading
from nonet.base.errors import (
    ConfigurationError,
    DependencyError,
    NotBoundError,
    NotFoundError,
    suggestion,
)
from nonet.base.streams import Size
from nonet.config.settings import Settings, plain_settings
from nonet.daemon.service import Stop
from nonet.scheduler.scheduler import Scheduler
from nonet.stores.namespace.sandbox import Sandbox, Survey, Unfinished
from nonet.stores.stores import EMBEDDED
from nonet.tasks.handles import Handle, R
from nonet.tasks.injection import Injector, load_entry_points
from nonet.tasks.registry import load_lock_types
from nonet.tasks.schedules import Overlap
from nonet.tasks.task import BaseTask, Isolation, SubmitOptions, TaskOf
from nonet.testing.submissions import RecordingEnvelopes, Submitted, T, check_submitted

if TYPE_CHECKING:
    from nonet.stores.namespace.periodic import EntryStatus
    from nonet.stores.sql.dead_letters import DeadLetter

logger = logging.getLogger(__name__)

Tasks = Iterable[type[BaseTask] | ModuleType | str]

_POLL_SECONDS = 0.01
_START_SECONDS = 30.0
# For so long only what waits in a queue is left: then it is asked why.
_STUCK_SECONDS = 0.3
_MOST_LETTERS = 1_000_000
_MOST_TOLD = 20
# Scripts count microseconds in doubles: exactly up to the year 2255. Deadlines come on top.
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)
_TOO_LATE = f"beyond the year {_LATEST.year - 1}, more than scripts in Redis count exactly"
# Which task opened which system that is not closed yet.
_openers: dict[System, asyncio.Task[Any] | None] = {}
# Causes of `Explanation` that neither time nor anybody removes; and those that the test may remove.
_NEVER = ("worker", "impossible")
_FOR_OTHERS = ("paused",)
_BUSY = ("queued", "running", "dying")


class NotIdleError(AssertionError):
    """`System.run_until_idle` came to no end; the message explains each task that is in its way.

    Example:
        with suppress(NotIdleError):
            await system.run_until_idle(timeout=0.1)
    """


class System:
    """A whole system for one test: a real Redis, workers of all sizes, a scheduler.

    It begins to work as soon as it is open; ``.schedule()`` submits to it. Workers and scheduler
    run in the event loop of the test, tasks in it or, if ``execute`` is a plain function, in
    threads. ``.schedule()`` submits to the one opened last: open another inside its block, not
    beside it in another task of asyncio. Nothing of the environment or of ``.env`` is used, and
    nothing is left behind. When the block ends without an error, a leaked key fails the test.

    Args:
        tasks: the classes that there are, or modules with such; None: what is installed, as in a
            worker, with start-up hooks.
        overrides: ``{dependency: replacement}``; more may be put into `dependency_overrides`.
        config: the central configuration, as a mapping or the path of its file.
        sizes: for which there is a worker. With none, everything that is submitted waits.
        slots: of each worker.
        now: what time it is at the beginning, aware, for schedules; None: the real time.
        redis_url: an existing Redis, in which `namespace` is deleted at the end; empty: a server
            of its own in a temporary directory.
        namespace: prefix of all keys.
        settings: further `nonet.Settings`, e.g. ``misfire_grace=60``.

    Attributes:
        app: the open application: ``submit``, ``status``, ``explain``, ``hold``, ``controls`` …
        dependency_overrides: those that hold, live.

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
        _check_names(settings)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = dict(
            overrides or {}
        )
        self._tasks = None if tasks is None else _checked_tasks(tasks)
        self._config = config
        self._sizes, self._slots, self._now = tuple(sizes), slots, now
        # A jump over many occurrences fires each of them, unless a test says otherwise.
        self._fires_all = "misfire_grace" not in settings
        defaults = {"grace": 0}
        own = {"redis_url": redis_url or EMBEDDED, "namespace": namespace}
        self._options = {**defaults, **settings, **own}
        self._running: _Running | None = None
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
                _check_now(self._now)
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
                    _refuse_leaks(running.sandbox)
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
    def _open_one(self) -> _Running:
        if self._running is None:
            raise NotBoundError("the system is not open: use `async with System(…) as system:`")
        return self._running

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task; see `BaseTask.schedule`.

        Args:
            task: the task.
            options: those of `BaseTask.schedule`.
        """
        return await self.app.submit(task, **options)

    @overload
    async def result(self, id: Handle[R], *, timeout: float = 30) -> R: ...

    @overload
    async def result(self, id: str, *, timeout: float = 30) -> Any: ...

    async def result(self, id: str, *, timeout: float = 30) -> Any:
        """The result of a task; see `Handle.result`.

        Args:
            id: of the task, or its handle.
            timeout: seconds.
        """
        return await self.app.result(id, timeout=timeout)

    async def now(self) -> datetime:
        """The time of this system: of schedules, and moved by `advance`."""
        return await self.app.broker.now()

    async def advance(self, by: float | timedelta) -> None:
        """Move the clock of the system; what is due by then runs, as far as there are slots.

        Delays, retries, occurrences of schedules, windows of rate limits, and locks whose holder
        is dead go by this clock. What runs keeps its leases and locks. The clock of the process
        does not move: timeouts inside a task, and its ``datetime.now()``, stay as they are.

        Args:
            by: seconds, or a timedelta.

        Raises:
            ValueError: time does not go back, nor beyond the year 2199.

        Example:
            handle = await Add(1, 2).schedule(at_time=await system.now() + timedelta(hours=1))
            await system.advance(timedelta(hours=1))
            assert await handle.result(timeout=10) == 3
        """
        running = self._open_one
        step = await self._step(by)
        running.app.broker.moved += step
        running.sandbox.advance(step)
        running.scheduler.nobody_led_until(await self.now())
        running.pace.hurry()

    async def run_until_idle(self, *, timeout: float = 30) -> None:
        """Wait until nothing is left to do now.

        That is: nothing is queued, running or dying, and nothing is due. What is due later does
        not count (`advance`), nor what waits for a lock that the test itself holds, for a limit,
        or for the end of a pause.

        Args:
            timeout: seconds, by the clock of the process.

        Raises:
            NotIdleError: it takes longer, or something can never run here; each is explained.
        """
        running, deadline = self._open_one, time.monotonic() + timeout
        stuck_since = time.monotonic()
        while True:
            running.check()
            survey = running.sandbox.survey()
            if not _has_work(survey) and (quiet := await self._quiet(running)) is not None:
                await self._refuse_stuck(quiet)
                return
            now = time.monotonic()
            if any(item.state in ("running", "dying") for item in survey.unfinished):
                stuck_since = now
            if now - stuck_since >= _STUCK_SECONDS:
                stuck_since = now
                if await self._is_for_others(survey):
                    return
            if now >= deadline:
                raise NotIdleError(await self._why_not_idle(survey, timeout))
            await asyncio.sleep(_POLL_SECONDS)

    async def _step(self, by: float | timedelta) -> timedelta:
        """By how much the clock moves."""
        now = await self.now()
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"advance({by!r}): time does not go back")
        if seconds > (_LATEST - now).total_seconds():
            raise ValueError(f"advance({by!r}): from {now:%Y-%m-%d} on that is {_TOO_LATE}")
        return by if isinstance(by, timedelta) else timedelta(seconds=by)

    @property
    def submitted(self) -> list[Submitted]:
        """What this process has submitted since the system was opened, oldest first.

        By the test, by tasks (``after_commit()`` counts once they have succeeded), as children
        and callbacks of groups, and by schedules.
        """
        return self._open_one.envelopes.submitted()

    def assert_submitted(
        self, cls: type[T], *, times: int | None = None, **arguments: Any
    ) -> list[Submitted[T]]:
        """Fail unless a task of this class, with these arguments, was submitted.

        Args:
            cls: the class itself; its subclasses do not count.
            times: how often exactly; None: at least once.
            arguments: of the task, by name, with these values; others may be anything.

        Returns:
            Those that fit, to look at their labels for example.

        Example:
            system.assert_submitted(RemoveFile, storage_element="CERN-DST", times=1)
        """
        __tracebackhide__ = True
        if not isinstance(cls, type):
            raise TypeError(
                f"assert_submitted: {cls!r:.100} is no class: give the task class itself, such as "
                "RemoveFile"
            )
        known = self.app.registry.of_class(cls)
        found = check_submitted(self.submitted, known, arguments, times)
        return cast("list[Submitted[T]]", found)  # they are of this very class

    def assert_not_submitted(self, cls: type[BaseTask], **arguments: Any) -> None:
        """Fail if a task of this class, with these arguments, was submitted.

        Args:
            cls: the class itself.
            arguments: as of `assert_submitted`.
        """
        __tracebackhide__ = True
        self.assert_submitted(cls, times=0, **arguments)

    async def dead_letters(self) -> list[DeadLetter]:
        """The rows of SQL, oldest first."""
        letters = await self.app.dead_letters()
        return (await letters.list(limit=_MOST_LETTERS))[::-1]

    def assert_clean(self) -> None:
        """Fail if a key is left that neither expires nor belongs to an unfinished task."""
        __tracebackhide__ = True
        _refuse_leaks(self._open_one.sandbox)

    # ---- opening ---------------------------------------------------------------------------------

    async def _open(self) -> _Running:
        closing = self._closing
        home = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="nonet-test-")))
        options = {"state_dir": home, "config": _config_file(self._config, home), **self._options}
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
        app.broker.clock = _MovedClock()
        app.client.envelopes = RecordingEnvelopes(app.client.envelopes, sandbox.known)
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

    def _start(self, app: Nonet, injector: Injector, sandbox: Sandbox) -> _Running:
        pace, stop = _Pace(), Stop()
        scheduler = app.scheduler(injector, hooks=None if self._tasks is None else {})
        if self._fires_all:
            scheduler.fire_all_missed()
        services = {"scheduler": scheduler.run(pace)}
        for size in self._sizes:
            worker = app.worker(size, injector, concurrency=self._slots, isolation=Isolation.LOOP)
            services[f"{size} worker"] = worker.run(stop)
        started = [asyncio.create_task(run, name=name) for name, run in services.items()]
        envelopes = app.client.envelopes
        assert isinstance(envelopes, RecordingEnvelopes)
        running = _Running(app, sandbox, scheduler, pace, stop, started, envelopes)
        self._closing.push_async_callback(running.stop)
        return running

    async def _until_ready(self, running: _Running) -> None:
        """Every worker is registered, and the scheduler fires what is due."""
        deadline = time.monotonic() + _START_SECONDS
        wanted = set(self._sizes)
        while True:
            running.check()
            ready = {worker.size for worker in await running.app.client.results.workers()}
            if running.scheduler.is_firing and ready >= wanted:
                await running.app.broker.presence([])
                await running.app.client.live_config.follow(running.app.broker.config_version)
                return
            if time.monotonic() >= deadline:
                reasons = running.scheduler.report().reasons
                raise ConfigurationError(
                    f"the system did not start within {_START_SECONDS:g} s: "
                    f"workers of {sorted(ready)} are ready; {'; '.join(reasons)}"
                )
            running.pace.hurry()
            await asyncio.sleep(_POLL_SECONDS)

    # ---- idle ------------------------------------------------------------------------------------

    async def _quiet(self, running: _Running) -> Survey | None:
        """What is left when nothing is due of schedules or the outbox; None: something comes soon.

        In this order: what was not to be fired when it was asked is not fired later, so nothing
        runs any more after the survey, and nothing is written into the outbox.
        """
        due = await self._due_entries(running.app)
        prepared, survey = running.envelopes.prepared, running.sandbox.survey()
        if _has_work(survey):
            return None
        left = {item.id: item for item in survey.unfinished}
        if not all(_is_held_up(entry, left) for entry in due):
            running.pace.hurry()
            return None
        if not self._uses_outbox(running.app):
            return survey
        if await self._is_outbox_due(running.app):
            running.pace.hurry()
            return None
        # What was handed over meanwhile may have run, and have written again.
        survey = running.sandbox.survey()
        is_same = running.envelopes.prepared == prepared
        return survey if is_same and not _has_work(survey) else None

    async def _due_entries(self, app: Nonet) -> list[EntryStatus]:
        """The periodic entries that have an occurrence which is due, and not fired yet."""
        now = await app.broker.now()
        found = await app.stores.periodic.statuses()
        return [
            item for item in found if item.enabled and item.next is not None and item.next <= now
        ]

    def _uses_outbox(self, app: Nonet) -> bool:
        return app.settings.may_have_sql() and any(item.cls.durable for item in app.registry)

    async def _is_outbox_due(self, app: Nonet) -> bool:
        waiting, _ = await (await app.stores.outbox()).overdue(0.0)
        return waiting > 0

    async def _refuse_stuck(self, survey: Survey) -> None:
        """Raises `NotIdleError` if something waits that can never run here."""
        waiting = [item for item in survey.unfinished if item.state == "waiting"]
        stuck = [line for item in waiting if (line := await self._told(item, only=_NEVER))]
        if stuck:
            raise NotIdleError(_listed(f"{_tasks(len(stuck))} can never run here", stuck))

    async def _is_for_others(self, survey: Survey) -> bool:
        """Whether what is queued stays so for good reason.

        Raises:
            NotIdleError: for no good one.
        """
        __tracebackhide__ = True
        queued = [item for item in survey.unfinished if item.state == "queued"]
        stuck = [line for item in queued if (line := await self._told(item, only=_NEVER))]
        if stuck:
            raise NotIdleError(_listed(f"{_tasks(len(stuck))} can never run here", stuck))
        paused = [item for item in queued if await self._told(item, only=_FOR_OTHERS)]
        return len(queued) == len(paused) > 0

    async def _why_not_idle(self, survey: Survey, timeout: float) -> str:
        busy = [item for item in survey.unfinished if item.state in _BUSY]
        lines = [line for item in busy[:_MOST_TOLD] if (line := await self._told(item))]
        if len(busy) > _MOST_TOLD:
            lines.append(f"… and {len(busy) - _MOST_TOLD} others")
        if not busy:
            lines.append("something is due, and nobody moves it: see the log of this test")
        return _listed(f"not idle after {timeout:g} s", lines)

    async def _told(self, item: Unfinished, *, only: Sequence[str] = ()) -> str:
        """What keeps a task from its end; empty if it has ended, or that is none of `only`."""
        try:
            why = await self.app.explain(item.id)
        except NotFoundError:
            return ""
        if why.cause == "ended" or (only and why.cause not in only):
            return ""
        return f"{item.name} {item.id}: {why.text}"


@dataclass(frozen=True)
class _Running:
    """What is there while the system is open."""

    app: Nonet
    sandbox: Sandbox
    scheduler: Scheduler
    pace: _Pace
    workers: Stop
    services: Sequence[asyncio.Task[Any]]
    envelopes: RecordingEnvelopes

    def check(self) -> None:
        """Raise what ended a worker or the scheduler."""
        for service in self.services:
            if service.done():
                service.result()
                raise RuntimeError(f"the {service.get_name()} has ended by itself")

    async def stop(self) -> None:
        """End workers and scheduler; what runs is cancelled."""
        self.workers.drain()
        self.pace.drain()
        await asyncio.gather(*self.services, return_exceptions=True)


class _Pace(Stop):
    """Lets the loops of the scheduler look at once, instead of after their pauses."""

    def __init__(self) -> None:
        super().__init__()
        self._look = asyncio.Event()

    def hurry(self) -> None:
        """End every pause that has begun."""
        self._look.set()
        self._look = asyncio.Event()

    def drain(self) -> None:
        super().drain()
        self.hurry()

    async def sleep(self, seconds: float) -> None:
        if self.requested.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._look.wait()


class _MovedClock(ClockWatch):
    """Nobody sets the clock of this Redis, but the test moves it: that is no step to take back."""

    def look(self, reading: Reading) -> timedelta:
        return timedelta(0)

    def latest(self, instant: float) -> int | None:
        return None


def _refuse_beside_others() -> None:
    """Raises `NotBoundError` if another task has a system open, whose submissions would mix."""
    for opener in _openers.values():
        if opener is not None and opener is not asyncio.current_task() and not opener.done():
            raise NotBoundError(
                f"the asyncio task {opener.get_name()!r} has a System open: .schedule() of both "
                "would submit to the one opened last; open the second one inside the block of the "
                "first, or in a process of its own"
            )


def _check_names(settings: Iterable[str]) -> None:
    arguments = [name for name in inspect.signature(System).parameters if name != "settings"]
    for name in settings:
        if name not in Settings.model_fields:
            likely = suggestion(name, [*arguments, *Settings.model_fields])
            raise ConfigurationError(
                f"System has no argument {name!r}, and no setting is called so.{likely} "
                f"Its arguments are {', '.join(arguments)}; its settings are those of NONET_… in "
                "lower case"
            )


def _checked_tasks(tasks: Tasks) -> list[type[BaseTask] | ModuleType | str]:
    if isinstance(tasks, type | ModuleType | str):
        raise TypeError(
            f"System(tasks={tasks!r:.100}): give a list of task classes and modules, such as "
            "tasks=[RemoveFile]"
        )
    given = list(tasks)
    for item in given:
        is_task = isinstance(item, type) and issubclass(item, BaseTask)
        if not is_task and not isinstance(item, ModuleType | str):
            raise TypeError(
                f"System(tasks=[…]): {item!r:.100} is neither a task class nor a module, nor the "
                "name of one"
            )
    return given


def _check_now(now: datetime) -> None:
    if now > _LATEST:
        raise ValueError(f"System(now={now!r}): that is {_TOO_LATE}")


def _config_file(config: Mapping[str, Any] | str | Path | None, home: Path) -> str | Path:
    if not isinstance(config, Mapping):
        return config or ""
    path = home / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # which is YAML, too
    return path


def _has_work(survey: Survey) -> bool:
    is_due = survey.next_due is not None and survey.next_due <= timedelta(0)
    return is_due or any(item.state in _BUSY for item in survey.unfinished)


def _is_held_up(entry: EntryStatus, left: Mapping[str, Unfinished]) -> bool:
    """Whether what is due of an entry waits for the occurrence before, as script `fire` sees it.

    Args:
        left: the tasks that have not ended; none of them runs.
    """
    before = left.get(entry.last_id)
    if before is None or entry.paused:
        return False
    return not before.has_run or entry.overlap == Overlap.QUEUE


def _refuse_leaks(sandbox: Sandbox) -> None:
    __tracebackhide__ = True
    if leaked := sandbox.leaked():
        text = "keys are left that neither expire nor belong to an unfinished task"
        raise AssertionError(_listed(text, leaked))


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{head}:", *(f"  {line}" for line in lines)])
