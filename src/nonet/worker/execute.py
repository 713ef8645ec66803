"""One attempt: from an envelope to an outcome. Whatever a task raises ends here.

The order of effects (design, promise 8): locks → running → dependencies opened → lease
checked → execute → lease checked → dependencies closed → settle → locks released. Locks are taken
before and released after this module.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from nonet.client import CallbackSpawner, Client
from nonet.errors import (
    InvalidArgumentsError,
    MalformedMessageError,
    ServerUnreachableError,
    StopRetrying,
    TaskTimeoutError,
)
from nonet.execution import TaskContext, enter_context
from nonet.injection import Injector
from nonet.invoke import invoke
from nonet.message import VERSION, Envelope, decode
from nonet.outcomes import Failed, HandedBack, Lost, Outcome, Reason, Succeeded
from nonet.registry import Registry, TaskClass
from nonet.task import BaseTask, task_locks, vo_of
from nonet.worker.attempt import Attempt
from nonet.worker.timeouts import TimeLimits, hardly_limited, softly_limited

# How long a task that this worker does not know waits before the next worker may look at it.
_HAND_ON_DELAY = timedelta(seconds=5)
_REFUSED_DELAY = timedelta(seconds=1)


@dataclass(frozen=True)
class Tools:
    """What executing needs beside the delivery.

    Attributes:
        relock: tells the watchdog that an attempt holds other locks, since when (monotonic).
        abandon: told of a thread that goes on although its attempt was cut off or lost.
        give_up: told of a thread, or asyncio task, that goes on beyond its hard timeout.
    """

    client: Client
    registry: Registry
    injector: Injector
    threads: Executor
    message_limit: int
    relock: Callable[[Attempt, float], None]
    abandon: Callable[[Future[Any]], None]
    give_up: Callable[[Future[Any] | asyncio.Task[Any]], None]


async def execute(attempt: Attempt, tools: Tools) -> tuple[TaskClass | None, Outcome]:
    """Run one attempt; the class is None if it is unknown here. Raises nothing of the task's."""
    try:
        envelope = tools.client.envelopes.read(attempt.delivery.id, attempt.delivery.envelope)
    except MalformedMessageError as error:
        return None, Failed(error, Reason.QUARANTINED)
    attempt.describe(envelope)
    task_class = tools.registry.find(envelope.name)
    if envelope.version > VERSION:
        return task_class, HandedBack(f"envelope version {envelope.version}", _HAND_ON_DELAY)
    if task_class is None:
        return None, HandedBack(f"no worker knows {envelope.name}", _HAND_ON_DELAY)
    return task_class, await _guarded(attempt, task_class, envelope, tools)


async def _guarded(
    attempt: Attempt, task_class: TaskClass, envelope: Envelope, tools: Tools
) -> Outcome:
    attempt.enter()
    try:
        task = task_class.arguments.build(envelope.args)
        attempt.vo = vo_of(task, envelope.labels)
        refused = await _admit(attempt, task, tools)
        if refused is not None:
            return HandedBack(refused)  # the next fetch parks it
        if attempt.is_token_stale():
            return HandedBack("its rate limit token was not used in time")
        attempt.context.ensure_lease()
        effective = tools.client.live_config.overrides.effective(task_class, attempt.vo)
        limits = TimeLimits.of(effective, task_class.name)
        work = partial(_call, attempt, task, tools, limits)
        return Succeeded(await hardly_limited(attempt, limits, work, tools.give_up))
    except BaseException as error:  # SystemExit in a task must not end the worker
        return _unsuccessful(attempt, error)
    finally:
        attempt.leave()
        current = asyncio.current_task()
        while current is not None and current.cancelling():
            current.uncancel()


def _unsuccessful(attempt: Attempt, error: BaseException) -> Outcome:
    """The outcome of an attempt that ended with `error`."""
    kind = type(error)  # isinstance() would ask the error itself
    if attempt.timed_out is not None and attempt.lost is None:
        return Failed(_timed_out(attempt.timed_out, error))
    if issubclass(kind, InvalidArgumentsError):
        # Raised by execute() it is the task's own failure, and its policy is asked.
        return Failed(error, None if attempt.started else Reason.ARGUMENTS)
    if issubclass(kind, ServerUnreachableError):
        # Before execute() was called it is no failure of the task.
        return Failed(error) if attempt.started else HandedBack(str(error), _REFUSED_DELAY)
    if issubclass(kind, asyncio.CancelledError):
        return _cut_off(attempt, error)
    return Lost(attempt.lost) if attempt.lost else Failed(error)


def _timed_out(limit: TaskTimeoutError, error: BaseException) -> BaseException:
    """What the retry policy is told of an attempt that exceeded a limit and ended with `error`."""
    if error is limit or issubclass(type(error), StopRetrying):  # so its author decided meanwhile
        return error
    limit.__cause__ = error
    # Where it was when it was cancelled, or what came of that.
    return limit.with_traceback(BaseException.__getattribute__(error, "__traceback__"))


async def _admit(attempt: Attempt, task: BaseTask, tools: Tools) -> str | None:
    """Locks were taken as the submitter computed them; mend that if this code sees others."""
    lines = task_locks(task, attempt.context.name, attempt.context.labels)
    if lines == attempt.delivery.locks:
        return None
    since = time.monotonic()
    admitted, answer = await tools.client.broker.admit(attempt.delivery, lines)
    if not admitted:
        return answer
    attempt.relock(lines, answer, since)
    tools.relock(attempt, since)
    return None


async def _call(attempt: Attempt, task: BaseTask, tools: Tools, limits: TimeLimits) -> Any:
    context = attempt.context
    context.read_group_with(tools.client.group_results)
    context.submit_with(tools.client.envelopes.prepare)
    context.save_with(partial(_save, attempt, tools))
    context.saved = decode(attempt.delivery.saved) if attempt.delivery.saved else None
    enter_context(context)
    function: Any = task.execute  # type: ignore[attr-defined]  # checked at registration
    values = {TaskContext: context, CallbackSpawner: CallbackSpawner(tools.client)}
    with softly_limited(attempt, limits) as in_time:
        async with tools.injector.open(function, values=values) as arguments:
            context.ensure_lease()  # to open them may have taken long
            attempt.started = True
            attempt.in_thread = not inspect.iscoroutinefunction(function)
            try:
                result = await invoke(
                    function,
                    arguments,
                    tools.threads,
                    before=context.ensure_lease,  # once more there: a thread may start late
                    abandoned=partial(_abandon, attempt, tools),
                    returned=attempt.leave_thread,
                )
            finally:
                in_time()  # neither commit nor rollback is cut by it
            context.ensure_lease()
    return result


def _abandon(attempt: Attempt, tools: Tools, thread: Future[Any]) -> None:
    if attempt.timed_out is None:
        tools.abandon(thread)
    else:
        tools.give_up(thread)


async def _save(attempt: Attempt, tools: Tools, data: bytes) -> bool:
    if len(data) > tools.message_limit:
        raise ValueError(
            f"the checkpoint has {len(data)} bytes, the limit is {tools.message_limit} "
            "(NONET_MESSAGE_LIMIT); save a reference to large data instead"
        )
    return await tools.client.broker.checkpoint(attempt.delivery, data)


def _cut_off(attempt: Attempt, error: BaseException) -> Outcome:
    if attempt.lost is not None:
        return Lost(attempt.lost)
    if attempt.cut_off is not None:
        # A thread of the task may go on: it must not believe that it still holds anything.
        attempt.context.lose_lease(attempt.cut_off)
        return HandedBack(attempt.cut_off, started=attempt.started)
    return Failed(error)
