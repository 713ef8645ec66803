"""Run one task in a test, without any server: `run_inline`."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Generic, NoReturn, Unpack

from nonet.client import CallbackSpawner, Policy, check_group
from nonet.errors import NonetError, NotBoundError
from nonet.execution import TaskContext, enter_context
from nonet.handles import ChildResult, Handle, R
from nonet.injection import Injector, load_entry_points
from nonet.invoke import invoke
from nonet.message import decode, encode, pack
from nonet.outcomes import Failed, decide
from nonet.registry import Registry, TaskClass, load_lock_types
from nonet.task import (
    BaseTask,
    SubmitOptions,
    TaskOf,
    bind_submitter,
    unbind_submitter,
)
from nonet.testing.submissions import Submitted

_GROUP = "inline-group"
# A policy that never gives up is stopped.
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True)
class InlineGroup:
    """What a task gave `nonet.spawn_with_callback`, through an injected `CallbackSpawner`.

    Attributes:
        children: the tasks of the group; nothing of what it was given was run.
        callback: what would be submitted once all have ended.
        on_failure: what would be submitted instead if one failed.
        policy: ``all_success`` or ``all_done``.

    Example:
        run = await run_inline(HashAll())
        assert run.groups[0].children == (Hash("a"), Hash("b"))
    """

    children: tuple[BaseTask, ...]
    callback: BaseTask
    on_failure: BaseTask | None
    policy: str


@dataclass
class InlineRun(Generic[R]):
    """How a task ran; generic in what its ``execute`` returns.

    Attributes:
        result: what ``execute`` returned; None if the last attempt failed.
        attempts: how many there were.
        errors: what each failed attempt raised.
        waits: how long the retry policy wanted to wait after each of these; nobody did.
        submitted: what was submitted by ``schedule()``, in any attempt, and by ``after_commit()``,
            in the one that succeeded.
        groups: what was spawned.
        saved: the last checkpoint; None: there was none.

    Example:
        run = await run_inline(Add(1, 2))
        assert (run.result, run.attempts, run.submitted) == (3, 1, [])
    """

    result: R
    attempts: int = 0
    errors: list[BaseException] = field(default_factory=list)
    waits: list[timedelta] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    groups: list[InlineGroup] = field(default_factory=list)
    saved: Any = None

    @property
    def error(self) -> BaseException | None:
        """What the last attempt raised, or None if it succeeded."""
        return self.errors[-1] if len(self.errors) == self.attempts else None


async def run_inline(
    task: TaskOf[R],
    *,
    overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    labels: Mapping[str, Any] | None = None,
    id: str | None = None,
    attempt: int = 1,
    saved: Any = None,
    group_results: Sequence[ChildResult] | None = None,
    retry: bool = False,
    check: bool = True,
) -> InlineRun[R]:
    """Run a task here and now, as a worker would, without Redis: no locks, no limits, no timeouts.

    Its arguments travel as in an envelope first, so that what cannot travel fails here. What it
    submits is only noted.

    Args:
        task: what is run; its class needs no registration.
        overrides: ``{dependency: replacement}``, honoured at any depth.
        labels: what ``context().labels`` gives.
        id: what ``context().id`` gives; None: a random one.
        attempt: number of the first attempt.
        saved: what an earlier attempt has saved, for ``context().saved``.
        group_results: what ``context().group_results()`` gives in a callback.
        retry: after a failed attempt ask the class's retry policy, and run it again at once if it
            wants to be.
        check: False: return the run also if its last attempt failed, with its `error`.

    Raises:
        BaseException: what the last attempt raised.
        RegistrationError, InvalidArgumentsError, DependencyError: the task could not run anywhere.

    Example:
        run = await run_inline(Add(1, 2))
        assert run.result == 3
    """
    _load_installed()
    given: Any = task  # a `BaseTask`
    known = Registry().add(type(given), type(task).__module__.rpartition(".")[2])
    run: InlineRun[Any] = InlineRun(None, saved=_travelled(saved))
    inline = _Inline(given, known, run, dict(labels or {}), id or secrets.token_hex(16))
    inline.group_results = group_results
    async with Injector(dict(overrides or {})) as injector:
        while True:
            number = attempt + run.attempts
            # A context of its own: no attempt sees another one's variables, nor does the test.
            job = asyncio.create_task(
                inline.attempt(number, injector), context=contextvars.copy_context()
            )
            run.attempts += 1
            error = await job
            if error is None:
                return run
            run.errors.append(error)
            if retry and run.attempts < _MOST_ATTEMPTS and inline.may_retry(number, error):
                continue
            if check or _is_cancelled():
                raise error
            return run


def _is_cancelled() -> bool:
    """Whether the test itself is to end."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


@cache
def _load_installed() -> None:
    """What installed packages register: types of locks, and what is injected."""
    load_lock_types(("nonet",))
    load_entry_points(("nonet",))


def _travelled(value: Any) -> Any:
    return decode(encode(pack(value)))


class _Inline:
    """One task, and what stands for the rest of the system while it runs."""

    def __init__(
        self,
        task: BaseTask,
        known: TaskClass,
        run: InlineRun[Any],
        labels: Mapping[str, Any],
        id: str,
    ) -> None:
        self._arguments = decode(encode(known.arguments.pack(task)))
        self._known, self._run, self._labels, self._id = known, run, labels, id
        self.group_results: Sequence[ChildResult] | None = None

    async def attempt(self, number: int, injector: Injector) -> BaseException | None:
        """Run it once: what it raised, as a value, or None."""
        context = self._context(number)
        enter_context(context)
        bind_submitter(self)
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
        try:
            task = self._known.arguments.build(self._arguments)
            values = {TaskContext: context, CallbackSpawner: _Spawner(self._run)}
            async with injector.open(task.execute, values=values) as arguments:
                context.ensure_lease()
                self._run.result = await invoke(task.execute, arguments, threads)
                context.ensure_lease()
        except BaseException as error:  # of the task: handed to the test by `run_inline`
            return error
        finally:
            unbind_submitter(self)
            threads.shutdown(wait=False)
            context.remove_workdir()
        self._run.submitted += [item.said for item in context.to_submit]
        return None

    def may_retry(self, number: int, error: BaseException) -> bool:
        """Whether the retry policy wants another attempt; notes after how long."""
        policy = self._known.cls.retry_policy
        found = decide(Failed(error), policy, number, datetime.now(UTC), dlq_eligible=False)
        if found.outcome == "dead":
            return False
        self._run.waits.append(found.delay)
        return True

    def _context(self, number: int) -> TaskContext:
        context = TaskContext(
            id=self._id,
            name=self._known.name,
            attempt=number,
            fence=number,
            labels=self._labels,
            group="" if self.group_results is None else _GROUP,
            saved=self._run.saved,
        )
        context.read_group_with(self._read_group)
        context.save_with(self._save)
        context.submit_with(self._prepare)
        return context

    async def _read_group(self, _: str) -> Sequence[Any]:
        return self.group_results or ()

    async def _save(self, data: bytes) -> bool:
        self._run.saved = decode(data)
        return True

    def _prepare(self, task: BaseTask, *, id: str | None = None, **options: Any) -> _Prepared:
        """What `after_commit` is given; it counts if the attempt succeeds."""
        return _Prepared(_said(task, id, **options), encode(_packed(task)))

    async def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """What ``.schedule()`` calls."""
        _packed(task)
        self._run.submitted.append(said := _said(task, **options))
        return Handle(said.id, _NotSubmitted())


class _NotSubmitted:
    """What the handles of tasks ask that were only noted."""

    async def status(self, id: str) -> NoReturn:
        raise NotBoundError(
            f"task {id} was not submitted: run_inline only notes it in `submitted`; "
            "nonet.testing.System runs it"
        )

    async def result(self, id: str, *, timeout: float | None = None) -> NoReturn:
        await self.status(id)

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> NoReturn:
        await self.status(ids[0])


@dataclass(frozen=True)
class _Prepared:
    """What a context keeps of a submission until the attempt has succeeded."""

    said: Submitted
    envelope: bytes

    @property
    def id(self) -> str:
        return self.said.id


class _Spawner(CallbackSpawner):
    """Notes groups instead of opening them."""

    def __init__(self, run: InlineRun[Any]) -> None:
        self._run = run

    async def __call__(
        self,
        children: Sequence[BaseTask],
        callback: BaseTask,
        *,
        on_failure: BaseTask | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        children = list(children)
        check_group(children, callback, on_failure, policy, ttl_seconds)
        for task in (*children, callback, *([on_failure] if on_failure else [])):
            _packed(task)
        group = InlineGroup(tuple(children), callback, on_failure, policy)
        self._run.groups.append(group)
        return f"{_GROUP}-{len(self._run.groups)}"


def _packed(task: BaseTask) -> dict[str, Any]:
    """The arguments as they would travel.

    Raises:
        RegistrationError, InvalidArgumentsError: they could not.
    """
    if not isinstance(task, BaseTask):
        raise NonetError(f"{task!r:.200} is no task")
    return Registry().add(type(task), "inline").arguments.pack(task)


def _said(task: BaseTask, id: str | None = None, **options: Any) -> Submitted:
    chosen = id or secrets.token_hex(16)
    return Submitted(chosen, task, options.get("at_time"), options.get("labels") or {})
