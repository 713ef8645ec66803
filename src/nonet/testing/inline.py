"""`run_inline`: runs one task in a test, without any server."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Generic, NoReturn, Unpack

from nonet.base.errors import NotBoundError, ResultUnavailable
from nonet.base.messages.message import Envelope, ResultDocument, decode, encode, pack
from nonet.base.messages.signing import Signer
from nonet.client.envelopes import Envelopes
from nonet.client.groups import Policy, Spawned
from nonet.client.live import LiveConfig
from nonet.client.shortcuts import CallbackSpawner
from nonet.client.submitting import is_durable
from nonet.config.overrides import NONE
from nonet.config.settings import plain_settings
from nonet.rules.fairness import BY_VO
from nonet.rules.outcomes import End, Failed, decide
from nonet.tasks.carried import enter_carried
from nonet.tasks.execution import TaskContext, enter_context
from nonet.tasks.handles import ChildResult, Handle, R, Unbound
from nonet.tasks.injection import Injector, load_entry_points
from nonet.tasks.invoke import invoke
from nonet.tasks.registry import Registry, TaskClass, load_lock_types
from nonet.tasks.secrecy import secret_texts
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.task import (
    BaseTask,
    Given,
    Options,
    SubmitOptions,
    TaskOf,
    ensure_task,
    submitters,
    sync_submitters,
    vo_of,
)
from nonet.tasks.workflows import Workflow
from nonet.testing.submitted import Submitted, submitted_of
from nonet.worker.attempt.conclusion import too_long, unstorable

_WORKFLOW = "inline"
_GROUP = "inline-group"
# Limit for a retry policy that never gives up.
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True)
class InlineGroup:
    """A group that a task spawned with an injected `CallbackSpawner`. Its tasks are not run.

    Attributes:
        children: the tasks of the group.
        callback: the task that would be submitted after all children have ended.
        on_failure: the task that would be submitted instead if a child failed.
        policy: ``all_success`` or ``all_done``.

    Example:
        run = await run_inline(HashAll())
        assert run.groups[0].children == (Hash("a"), Hash("b"))
    """

    children: tuple[Any, ...]
    callback: Any
    on_failure: Any
    policy: str


@dataclass
class InlineRun(Generic[R]):
    """The record of a task's run; generic in the type that its ``execute`` returns.

    Attributes:
        result: what ``execute`` returned. None if the last attempt failed, which is possible only
            with ``check=False``: then check `error` first.
        attempts: number of attempts.
        errors: the exception of each failed attempt.
        waits: the delay that the retry policy chose after each of them; the run does not wait.
        submitted: tasks submitted by ``schedule()`` in any attempt, and by ``after_commit()`` in
            the one that succeeded.
        groups: groups that were spawned.
        saved: the last checkpoint, or None.

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
        """The exception of the last attempt, or None if it succeeded."""
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
    inputs: Sequence[ChildResult] | None = None,
    retry: bool = False,
    check: bool = True,
) -> InlineRun[R]:
    """Run a task as a worker would, but without Redis: no locks, no limits, no timeouts.

    The task is packed into an envelope and read back first. Its submissions, groups and result are
    checked as by a system with the default settings, and otherwise only recorded. The
    ``transaction`` of a durable task may be a fake, as nothing is written to it.

    Args:
        task: the task; its class needs no registration.
        overrides: ``{dependency: replacement}``, at any depth; replacements may return any type.
        labels: value of ``context().labels``.
        id: value of ``context().id``; None: a random one.
        attempt: number of the first attempt, from 1.
        saved: checkpoint of an earlier attempt, for ``context().saved``.
        group_results: value of ``context().group_results()`` in a callback.
        inputs: value of ``context().inputs()``; the task is then a step of a workflow and may add
            steps.
        retry: after a failed attempt, ask the retry policy of the class, and repeat the task at
            once if the policy wants a retry.
        check: False: return the run even if its last attempt failed, with its `error`.

    Raises:
        BaseException: what the last attempt raised.
        TypeError, ValueError: `task` is not a task, or `attempt` is below 1.
        RegistrationError, InvalidArgumentsError, DependencyError: the task cannot run anywhere.
        ResultUnavailable: the task succeeded, but its result cannot be stored.

    Example:
        run = await run_inline(Add(1, 2))
        assert run.result == 3
    """
    ensure_task(task, "run_inline")
    _check_attempt(attempt)
    _load_installed()
    given: Any = task  # a `BaseTask`
    run: InlineRun[Any] = InlineRun(None, saved=decode(encode(pack(saved))))
    inline = _Inline(given, run, labels=labels, id=id, group_results=group_results, inputs=inputs)
    async with Injector(dict(overrides or {})) as injector:
        while True:
            number = attempt + run.attempts
            # A copied context isolates the context variables of attempts and of the test.
            job = asyncio.create_task(
                inline.attempt(number, injector), context=contextvars.copy_context()
            )
            run.attempts += 1
            error = await job
            if error is None:
                inline.check_result(number)
                return run
            run.errors.append(error)
            if retry and run.attempts < _MOST_ATTEMPTS and inline.may_retry(number, error):
                continue
            if check or _is_cancelled():
                raise error
            return run


def _check_attempt(attempt: int) -> None:
    if not isinstance(attempt, int) or attempt < 1:
        raise ValueError(
            f"run_inline: attempt={attempt!r:.100} must be a whole number from 1, which is the "
            "first attempt"
        )


def _is_cancelled() -> bool:
    """Whether the test itself was cancelled."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


@cache
def _load_installed() -> None:
    """Load the lock types and dependencies that installed packages register."""
    load_lock_types(("nonet",))
    load_entry_points(("nonet",))


class _AnyClass(Registry):
    """Knows every class, even several of the same name, so that tests need not register them."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[type[BaseTask], TaskClass] = {}

    def of_class(self, cls: type[BaseTask]) -> TaskClass:
        """See `Registry.of_class`."""
        if cls not in self._found:
            self._found[cls] = Registry().add(cls, cls.__module__.rpartition(".")[2])
        return self._found[cls]


class _NoConfig(LiveConfig):
    """The configuration of a namespace without a published one."""

    def __init__(self) -> None:
        self.overrides = NONE
        self.tenants_by = BY_VO
        self.routes: dict[str, str] = {}


class _Inline:
    """One task, with stand-ins for the rest of the system."""

    def __init__(
        self,
        task: BaseTask,
        run: InlineRun[Any],
        *,
        labels: Mapping[str, Any] | None,
        id: str | None,
        group_results: Sequence[ChildResult] | None,
        inputs: Sequence[ChildResult] | None,
    ) -> None:
        self._run, self._group_results, self._inputs = run, group_results, inputs
        self._limit, self._registry = plain_settings().message_limit, _AnyClass()
        self._envelopes = Envelopes(
            self._registry, _NoConfig(), Signer(), message_limit=self._limit, cipher=None
        )
        self._known = self._registry.of(task)
        group = "" if group_results is None else _GROUP
        options = Options(id=id, labels=labels)
        sent = self._envelopes.prepare(task, options, callback_of=group)
        self._envelope: Envelope = self._envelopes.read(sent.id, sent.envelope)

    async def attempt(self, number: int, injector: Injector) -> BaseException | None:
        """Run the task once; return its exception, or None."""
        context = self._context(number)
        enter_context(context)
        enter_carried(context.labels)
        submitters.append(self)
        sync = _SyncInline(self)
        sync_submitters.append(sync)
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
        try:
            task = self._known.arguments.build(self._envelope.args)
            context.vo = vo_of(task, context.labels)
            spawner = _Spawner(self._run, self._envelopes)
            values = {TaskContext: context, CallbackSpawner: spawner}
            async with injector.open(task.execute, values=values) as arguments:
                context.ensure_lease()
                self._run.result = await invoke(task.execute, arguments, threads)
                context.ensure_lease()
        except BaseException as error:  # raised by the task; `run_inline` raises it to the test
            return error
        finally:
            submitters.remove(self)
            sync_submitters.remove(sync)
            threads.shutdown(wait=False)
            context.remove_workdir()
        self._run.submitted += [item.submitted for item in context.to_submit]
        return None

    def check_result(self, number: int) -> None:
        """Raises `ResultUnavailable`, as awaiting it would, if the result cannot be stored."""
        name = self._known.name

        note = ""
        try:
            document = ResultDocument(name, number, time.time(), pack(self._run.result))
            if len(encoded := encode(document)) > self._limit:
                note = too_long(encoded, self._limit)
        except BaseException as error:  # packing runs code of the result's class
            note = unstorable(error, secret_texts(self._envelope.args, self._known.cls))
        if note:
            raise ResultUnavailable(
                f"task {self._envelope.id} ({name}) is done, but {note}; return what can travel, "
                "or None"
            )

    def may_retry(self, number: int, error: BaseException) -> bool:
        """Whether the retry policy wants another attempt; records the delay."""
        policy = self._known.cls.retry_policy
        found = decide(Failed(error), policy, number, datetime.now(UTC), dlq_eligible=False)
        if found.end is End.DEAD:
            return False
        self._run.waits.append(found.delay)
        return True

    def _context(self, number: int) -> TaskContext:
        envelope = self._envelope
        context = TaskContext(
            id=envelope.id,
            name=envelope.name,
            attempt=number,
            fence=number,
            labels=envelope.labels,
            group=envelope.group,
            saved=self._run.saved,
        )
        context.read_group_with(self._read_group)
        context.save_with(self._save)
        context.submit_with(self._prepare)
        if self._inputs is not None:
            context.workflow = _WORKFLOW
            context.read_inputs_with(self._read_inputs)
        return context

    async def _read_group(self, _: str) -> Sequence[Any]:
        return self._group_results or ()

    async def _read_inputs(self) -> Sequence[Any]:
        return self._inputs or ()

    async def _save(self, data: bytes) -> bool:
        self._run.saved = decode(data)
        return True

    def _prepare(
        self, task: BaseTask | Given[Any], options: Options, *, is_step: bool = False
    ) -> _Prepared:
        """Prepare a task of `after_commit` or `add_step`, which counts if the attempt succeeds."""
        made = self._envelopes.prepare(task, options, is_step=is_step)
        return _Prepared(submitted_of(made.id, task, options), made.envelope)

    async def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """Record a submission by ``.schedule()``."""
        return Handle(self.record(task, Options.from_mapping(options)), Unbound())

    async def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> NoReturn:
        """Refuse it."""
        raise _no_workflows()

    def record(self, task: BaseTask, options: Options) -> str:
        """Record a submission, and return its id."""
        is_durable(task, options.transaction, self._registry)
        made = self._envelopes.prepare(task, options)
        self._run.submitted.append(submitted_of(made.id, task, options))
        return made.id


class _SyncInline:
    """Records the submissions by ``.schedule_sync()``."""

    def __init__(self, inline: _Inline) -> None:
        self._inline = inline

    def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Record a submission."""
        id = self._inline.record(task, Options.from_mapping(options))
        return SyncHandle(id, Unbound())

    def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> NoReturn:
        """Refuse it."""
        raise _no_workflows()


def _no_workflows() -> NotBoundError:
    return NotBoundError("workflows do not work in run_inline(): use nonet.testing.System")


@dataclass(frozen=True)
class _Prepared:
    """A submission that waits for the success of its attempt."""

    submitted: Submitted
    envelope: bytes

    @property
    def id(self) -> str:
        return self.submitted.id

    def as_step(self, term: str) -> _Prepared:
        return self


class _Spawner(CallbackSpawner):
    """Records groups instead of opening them."""

    def __init__(self, run: InlineRun[Any], envelopes: Envelopes) -> None:
        self._run, self._envelopes = run, envelopes

    async def __call__(
        self,
        children: Sequence[TaskOf[Any]],
        callback: TaskOf[Any],
        *,
        on_failure: TaskOf[Any] | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        spawned = Spawned.of(children, callback, on_failure, policy, ttl_seconds)
        group = f"{_GROUP}-{len(self._run.groups) + 1}"
        spawned.prepared(group, self._envelopes.prepare)
        self._run.groups.append(InlineGroup(tuple(children), callback, on_failure, policy))
        return group
