"""Execute one attempt: from an envelope to an outcome. No exception of a task leaves this module.

The order of effects (design, promise 8): locks → running → dependencies opened → lease
checked → execute → lease checked → dependencies closed → settle → locks released. Locks are taken
before and released after this module.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from typing import Any, cast

from msgspec import Struct

from nonet.base.errors import (
    InvalidArgumentsError,
    MalformedMessageError,
    ServerUnreachableError,
    StopRetrying,
    TaskTimeoutError,
)
from nonet.base.forks import ending_copies
from nonet.base.loop import uncancel
from nonet.base.messages.documents import are_encrypted
from nonet.base.messages.encryption import LACKS, SETTING, Cipher, Encrypted, MissingKeyError
from nonet.base.messages.formats import FORMAT, format_problem
from nonet.base.messages.message import decode
from nonet.client.client import Client
from nonet.client.shortcuts import CallbackSpawner
from nonet.client.workflows import with_results
from nonet.config.overrides import TimeLimits
from nonet.rules.outcomes import Failed, HandedBack, Lost, Outcome, Succeeded
from nonet.rules.reasons import Reason
from nonet.tasks.carried import enter_carried
from nonet.tasks.execution import TaskContext, enter_context
from nonet.tasks.injection import Injector
from nonet.tasks.invoke import invoke
from nonet.tasks.locks import rate_limited
from nonet.tasks.task import BaseTask, task_locks, vo_of
from nonet.tasks.unique import with_unique_lock
from nonet.worker.attempt.around import Around
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.conclusion import effective_now
from nonet.worker.attempt.timeouts import OBEY_SECONDS, soft_limit, with_hard_limit

# How long a task of an unknown class waits before another worker may fetch it.
_HAND_ON_DELAY = timedelta(seconds=5)
_REFUSED_DELAY = timedelta(seconds=1)
# The limiter counts the time at which it granted a token. A task that started later than this after
# the grant would run together with tasks of the next window.
_TOKEN_SECONDS = 0.5
# Parameters of these types need no dependency.
_GIVEN = (TaskContext, CallbackSpawner)


class Tools(Struct, frozen=True):
    """What executing needs besides the delivery.

    Attributes:
        admit: replaces the locks of an attempt, all or none; returns the lock that refused.
        leave: takes over a thread or asyncio task that ignores its cancellation. The attempt ends
            without it.
        obey_seconds: how long code may still run after its cancellation at the hard timeout; None:
            until the fork server kills the process.
        left: names of the classes that this worker leaves to others.
    """

    client: Client
    injector: Injector
    threads: Executor
    admit: Callable[[Attempt, str], Awaitable[str | None]]
    leave: Callable[[Attempt, Future[Any] | asyncio.Task[Any]], None]
    obey_seconds: float | None = OBEY_SECONDS
    left: Collection[str] = ()


def identify(attempt: Attempt, tools: Tools) -> Outcome | None:
    """Read the envelope and find the class; return an outcome if the task cannot run here."""
    try:
        envelope = tools.client.envelopes.read(attempt.delivery.id, attempt.delivery.envelope)
    except MalformedMessageError as error:
        return Failed(error, Reason.QUARANTINED)
    attempt.describe(envelope)
    task_class = attempt.task_class = tools.client.registry.find(envelope.name)
    if envelope.version > FORMAT:
        return _handed_on(format_problem(envelope.version))
    if task_class is None:
        return _handed_on(f"a worker does not know {envelope.name}")
    if envelope.name in tools.left:
        return _handed_on(f"a worker leaves {envelope.name} to others")
    if envelope.min_version and (problem := task_class.too_old_for(envelope.min_version)):
        return _handed_on(problem)
    cipher = tools.client.cipher
    if are_encrypted(envelope.args) or task_class.cls.encrypted or cipher.everything:
        outcome = _decrypt(attempt, cipher, tools)
        if outcome is not None:
            return outcome
    attempt.context.is_made_of(attempt.envelope.args, task_class.cls)
    if envelope.is_step:
        attempt.context.workflow = envelope.id.rpartition(":")[0]
    overrides = tools.client.live_config.overrides
    attempt.effective = overrides.effective(task_class, attempt.context.vo, attempt.size)
    if envelope.labels:  # context variables travel in them
        enter_carried(envelope.labels)
    return None


def _decrypt(attempt: Attempt, cipher: Cipher, tools: Tools) -> Outcome | None:
    """Decrypt the arguments, and encrypt what the attempt stores; None: it can run here."""
    if not cipher.keys:
        return _handed_on(f"{LACKS} here: set {SETTING}")
    try:
        attempt.describe(tools.client.envelopes.decrypted(attempt.envelope))
    except MissingKeyError as error:
        return _handed_on(error.brief)
    except MalformedMessageError as error:
        return Failed(error, Reason.QUARANTINED)
    attempt.context.is_encrypted = True
    return None


async def carry_out(attempt: Attempt, tools: Tools) -> Outcome:
    """Identify a task and execute it in this process."""
    return identify(attempt, tools) or await execute(attempt, tools)


async def execute(attempt: Attempt, tools: Tools) -> Outcome:
    """Execute an identified task in this process; whatever it raises becomes the outcome.

    Close `attempt.around` once the conclusion is drawn.
    """
    task_class, envelope = attempt.task_class, attempt.envelope
    assert task_class is not None  # `identify` hands on the others
    if attempt.delivery.saved and (unreadable := _read_saved(attempt, tools)):
        return unreadable
    middlewares = tools.client.middlewares
    if middlewares.around_attempt or middlewares.around_thread:
        attempt.around = await Around.open(attempt.running_task(), middlewares)
    attempt.enter()
    attempt.stage = Stage.IN_LOOP
    try:
        limits = attempt.effective.time
        # Set before the constructor runs: it could block the event loop, too.
        attempt.hard_at = time.monotonic() + limits.hard if limits.hard else None
        arguments: Mapping[str, Any] = envelope.args
        if envelope.is_step:
            arguments = await with_results(tools.client, envelope.id, arguments)
            attempt.context.is_made_of(arguments, task_class.cls)
        task = task_class.arguments.build(arguments)
        vo = vo_of(task, envelope.labels)
        if vo != attempt.context.vo:  # only the task object knew it
            attempt.context.vo = vo
            limits = effective_now(attempt, task_class, tools.client.live_config).time
        if vo or attempt.locks or task_class.cls.execution_locks is not BaseTask.execution_locks:
            refused = await _mend_locks(attempt, task, tools)
            if refused is not None:
                return HandedBack(refused)  # the next fetch parks it
        if time.monotonic() - attempt.since > _TOKEN_SECONDS and rate_limited(
            attempt.locks, attempt.held
        ):
            return HandedBack("its rate limit token was not used in time")
        attempt.context.ensure_lease()
        if limits.hard is None:
            return Succeeded(await _call(attempt, task, tools, limits))
        work = partial(_call, attempt, task, tools, limits)
        wait = tools.obey_seconds
        leave = partial(tools.leave, attempt)
        return Succeeded(await with_hard_limit(attempt, limits, work, leave, wait))
    except BaseException as error:  # SystemExit in a task must not end the worker
        return _unsuccessful(attempt, error)
    finally:
        attempt.leave()
        if attempt.task is None or attempt.task.cancelling():
            uncancel()
        if attempt.hard_at is not None:  # leave time for the retry policy
            attempt.hard_at = max(attempt.hard_at, time.monotonic())


def _read_saved(attempt: Attempt, tools: Tools) -> Outcome | None:
    """Read the checkpoint; return the outcome of the attempt if that is impossible."""
    try:
        saved = decode(attempt.delivery.saved)
        if type(saved) is Encrypted:
            saved = decode(tools.client.cipher.decrypt(saved, attempt.delivery.id, "saved"))
    except MissingKeyError as error:
        return _handed_on(error.brief)
    except MalformedMessageError as error:  # no other attempt could read it either
        return Failed(error, Reason.QUARANTINED)
    attempt.context.saved = saved
    return None


def _handed_on(reason: str) -> HandedBack:
    return HandedBack(reason, _HAND_ON_DELAY, is_foreign=True)


def _unsuccessful(attempt: Attempt, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that ended with `error`."""
    kind = type(error)  # isinstance() would run code of the error's class
    if attempt.timed_out is not None and attempt.lost is None:
        return Failed(_timed_out(attempt.timed_out, error))
    if issubclass(kind, MissingKeyError) and not attempt.started:  # a result of another step
        return _handed_on(cast("MissingKeyError", error).brief)
    if issubclass(kind, InvalidArgumentsError):
        # Raised by execute(), it is a failure like any other: the retry policy decides.
        return Failed(error, None if attempt.started else Reason.ARGUMENTS)
    if issubclass(kind, ServerUnreachableError):
        # Before execute() was called, the task has not failed.
        return Failed(error) if attempt.started else HandedBack(str(error), _REFUSED_DELAY)
    if issubclass(kind, asyncio.CancelledError):
        return _cut_off(attempt, error)
    return Lost(attempt.lost) if attempt.lost else Failed(error)


def _timed_out(limit: TaskTimeoutError, error: BaseException) -> BaseException:
    """Return the error to report for an attempt that exceeded a limit and ended with `error`."""
    if error is limit or issubclass(type(error), StopRetrying):  # the author's decision counts
        return error
    limit.__cause__ = error
    # Show where the code was when it was cancelled.
    return limit.with_traceback(BaseException.__getattribute__(error, "__traceback__"))


async def _mend_locks(attempt: Attempt, task: BaseTask, tools: Tools) -> str | None:
    """Replace the locks if this version of the class declares other locks than the submitter's."""
    declared = task_locks(task, attempt.context.name, attempt.context.labels)
    lines = with_unique_lock(declared, attempt.delivery.locks)
    if lines == attempt.delivery.locks:
        return None
    return await tools.admit(attempt, lines)


async def _call(attempt: Attempt, task: BaseTask, tools: Tools, limits: TimeLimits) -> Any:
    """Open the dependencies, call ``execute``, and close them: commit or roll back."""
    context, task_class = attempt.context, attempt.task_class
    assert task_class is not None
    function: Any = task.execute
    context.serve_with(tools.client)
    enter_context(context)
    timer = None
    if limits.soft is not None:
        timer = soft_limit(attempt, limits.soft, limits.soft_origin)
    try:
        if task_class.takes_nothing or not tools.injector.is_needed(function, _GIVEN):
            return await _invoke(attempt, function, {}, tools, timer)
        values = {TaskContext: context, CallbackSpawner: CallbackSpawner(tools.client)}
        async with tools.injector.open(function, values=values) as arguments:
            context.ensure_lease()  # opening the dependencies may have taken long
            return await _invoke(attempt, function, arguments, tools, timer)
    finally:
        if timer is not None:
            timer.cancel()


async def _invoke(
    attempt: Attempt,
    function: Any,
    arguments: Mapping[str, object],
    tools: Tools,
    timer: asyncio.TimerHandle | None,
) -> Any:
    context, task_class = attempt.context, attempt.task_class
    attempt.started = True
    try:
        if task_class is not None and not task_class.is_plain:
            with ending_copies():
                result = await function(**arguments)
        else:
            attempt.in_thread = True
            result = await invoke(
                function if attempt.around is None else attempt.around.in_thread(function),
                arguments,
                tools.threads,
                before=context.ensure_lease,  # checked again in the thread, which may start late
                abandoned=partial(tools.leave, attempt),
                returned=attempt.leave_thread,
            )
    finally:
        if timer is not None:
            timer.cancel()  # it must not interrupt a commit or rollback
    context.ensure_lease()
    return result


def _cut_off(attempt: Attempt, error: BaseException) -> Outcome:
    if attempt.lost is not None:
        return Lost(attempt.lost)
    if attempt.cut_off is not None:
        # A thread of the task may still run: its context must report that the locks are lost.
        attempt.context.lose_lease(attempt.cut_off)
        return HandedBack(attempt.cut_off, started=attempt.started)
    return Failed(error)
