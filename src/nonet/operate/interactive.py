"""Run one task in this process without the broker, and hold locks for code that is not a task."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct

from nonet.base.actor import process_name
from nonet.base.errors import (
    NEXT_STEP_IMPOSSIBLE,
    DeadlockError,
    DependencyError,
    InvalidArgumentsError,
    LeaseLostError,
    LimitImpossible,
    NotConfirmedError,
    ServerUnreachableError,
    TaskFailed,
    UnableToAcquireLockError,
)
from nonet.base.loop import in_own_thread
from nonet.client.client import Client
from nonet.client.shortcuts import CallbackSpawner
from nonet.config.settings import Settings
from nonet.daemon.watchdog import Watchdog
from nonet.rules.outcomes import summarize
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Lease, Leases
from nonet.stores.queue.wakes import Wake
from nonet.tasks.execution import (
    TaskContext,
    current_holders,
    enter_context,
    holding,
    leave_context,
)
from nonet.tasks.injection import Injector
from nonet.tasks.invoke import invoke
from nonet.tasks.locks import encode_locks, leased_ttl_ms
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import BaseTask, declared_locks, ensure_task, vo_of
from nonet.telemetry.masking import hide

logger = logging.getLogger(__name__)

# A waiting hold polls after this long without a wake-up.
_ASK_SECONDS = 2.0

Debugger = Literal["none", "before", "exception"]

_Answer = TypeVar("_Answer")


async def call(
    task: BaseTask,
    client: Client,
    injector: Injector,
    settings: Settings,
    *,
    wait_seconds: float = 0.0,
    rest_seconds: float = 0.0,
    debugger: Debugger = "none",
) -> Any:
    """Run a task once in this process, under its structural locks; return its result.

    Limiters do not apply: they bound the load of workers, not a single call at a terminal. A task
    without structural locks needs no Redis.

    Args:
        wait_seconds: how long to wait for locks that others hold.
        rest_seconds: see `hold`.
        debugger: ``before`` opens pdb before ``execute``, ``exception`` after it has failed.

    Raises:
        TypeError: `task` is not a task.
        ValueError: an option is invalid.
        TaskFailed: the task raised an exception, which is the cause of this error.
        UnableToAcquireLockError: another holder kept a lock until `wait_seconds` had passed.
        LeaseLostError: a lock was lost, and the task was cancelled.
        ServerUnreachableError: the task has locks, and Redis does not answer.
        DependencyError: a parameter of ``execute`` cannot be provided.
    """
    ensure_task(task, "call")
    if not wait_seconds >= 0:  # nan, too
        raise ValueError(f"call: wait_locks={wait_seconds!r} must be 0 seconds or more")
    if debugger not in get_args(Debugger):
        raise ValueError(f"call: debugger={debugger!r} must be one of {get_args(Debugger)}")
    context = _context_of(task, client)
    values = {TaskContext: context, CallbackSpawner: CallbackSpawner(client)}
    locks = hold(
        client.stores.broker,
        settings,
        _structural_locks(context.name, task),
        wait_seconds=wait_seconds,
        rest_seconds=rest_seconds,
        context=context,
        consequence="; nothing was run",
    )
    async with locks as context.fence:
        result = await _execute(task, context, injector, values, debugger)
        await client.accept(context.to_submit)
        return result


def _context_of(task: BaseTask, client: Client) -> TaskContext:
    task_class = client.registry.of(task)
    id = f"call-{secrets.token_hex(8)}"
    context = TaskContext(id=id, name=task_class.name, attempt=1, fence=0, labels={})
    context.vo = vo_of(task, {})
    context.is_made_of(arguments_of(task_class, task), task_class.cls)
    context.read_group_with(client.group_results)
    context.submit_with(client.envelopes.prepare)
    return context


def arguments_of(task_class: TaskClass, task: BaseTask) -> Mapping[str, Any]:
    """Return the arguments of a task, to find its secrets, even if they cannot be serialised."""
    try:
        return task_class.arguments.pack(task)
    except InvalidArgumentsError:
        return vars(task)


@asynccontextmanager
async def hold(
    broker: Broker,
    settings: Settings,
    lines: str,
    *,
    wait_seconds: float = 0.0,
    rest_seconds: float = 0.0,
    context: TaskContext | None = None,
    consequence: str = "",
) -> AsyncIterator[int]:
    """Hold locks while the block runs, and yield their fence. A thread renews the locks.

    Args:
        lines: from `nonet.tasks.locks.encode_locks`; if empty, Redis is not called.
        wait_seconds: how long to wait for the locks.
        rest_seconds: wait for a new Redis to grant locks if that takes no longer than this.
        context: its `ensure_lease` reports a loss even before the block is cancelled.
        consequence: appended to the message if the locks cannot be taken.

    Raises:
        UnableToAcquireLockError: another holder kept a lock until `wait_seconds` had passed.
        LimitImpossible: the hold needs more of a limiter than its limit.
        DeadlockError: the surrounding task or hold has one of the locks.
        LeaseLostError: a lock was lost before the block began, or during it: it was cancelled.
        ServerUnreachableError: Redis does not answer.
    """
    if not lines:
        yield 0
        return
    locks = _Locks(broker, settings, lines)
    block = _Block(locks.names, context)
    try:
        with block:
            try:
                await _until_taken(locks, block, wait_seconds, rest_seconds)
            except (UnableToAcquireLockError, ServerUnreachableError) as error:
                raise type(error)(f"{error}{consequence}") from error.__cause__
            block.ensure_held()
            with holding(locks.id):
                yield locks.fence
    finally:
        await _finished(locks.release())


class _Refusal(Struct, frozen=True):
    """Why a hold was refused.

    Attributes:
        reason: the reason, for the message.
        next_step: what the user can do.
        rest: seconds until a new Redis grants the lock; 0 if another holder has it.
    """

    reason: str
    next_step: str
    rest: float = 0.0


class _Locks:
    """The locks of one hold, from taking to releasing them.

    Attributes:
        id: id of the hold.
        names: names of the locks, for messages.
        fence: 0 until the locks are taken.
    """

    def __init__(self, broker: Broker, settings: Settings, lines: str) -> None:
        self._broker = broker
        self._settings = settings
        self._lines = lines
        self.id = f"hold-{secrets.token_hex(8)}"
        self.names = ", ".join(line.split("|")[1] for line in lines.split("\n"))
        default_ttl_ms = round(settings.lock_ttl * 1000)
        # Assume that all limiters are on: only the script knows which are.
        ttl_ms = leased_ttl_ms(lines, "x" * len(lines), default_ttl_ms) or default_ttl_ms
        self._ttl = ttl_ms / 1000
        self._asked = False
        self._holders = current_holders()
        self._watchdog = self._make_watchdog()
        self.fence = 0

    async def take(self, block: _Block, *, wait: bool) -> _Refusal | None:
        """Take all locks and start to renew them, or take none and return why they were refused.

        Args:
            wait: if refused, stay in the queues of the locks until `release`.
        """
        since = time.monotonic()
        try:
            answer, detail = await self._broker.hold(
                self.id, self._lines, process_name(), wait=wait, holders=self._holders
            )
        except NotConfirmedError:
            raise
        except ServerUnreachableError as error:
            raise ServerUnreachableError(f"{self.names} cannot be taken: {error}") from error
        if answer == "IMPOSSIBLE":
            raise LimitImpossible(f"{detail}; {NEXT_STEP_IMPOSSIBLE}")
        if answer == "DEADLOCK":
            raise DeadlockError(
                f"{detail} can never be taken here: the surrounding task or hold has it, or blocks "
                "a task that has it. Take it only in one of the two"
            )
        self._asked = wait or answer == "OK"
        if answer != "OK":
            return _refusal(answer, detail)
        self.fence = int(detail)
        lease = Lease(id=self.id, gen="0", fence=detail, ttl=self._ttl)
        block.check_with(partial(self._watchdog.check, lease))
        self._watchdog.hold(lease, since, block.lose)
        await asyncio.to_thread(self._watchdog.start)
        return None

    def expecting_turn(self) -> AbstractContextManager[Wake]:
        """Receive wake-ups while the block runs; after each, call `take` again."""
        return self._broker.wakes.expecting(self.id)

    async def release(self) -> None:
        """Release the locks, and leave their queues."""
        await asyncio.to_thread(self._watchdog.stop)
        if self._asked:
            try:
                await self._broker.unhold(self.id)
            except ServerUnreachableError as error:
                logger.warning("locks not released, they expire within %g s: %s", self._ttl, error)

    def _make_watchdog(self) -> Watchdog:
        leases = Leases(
            self._broker.url,
            self._settings.namespace,
            worker="",
            worker_ttl=self._settings.worker_ttl,
            lock_ttl=self._settings.lock_ttl,
            timeout_seconds=min(5.0, self._settings.renew_interval, self._ttl / 3),
            epoch=self._broker.epoch,
        )
        return Watchdog(leases, self._settings.renew_interval)


async def _until_taken(
    locks: _Locks, block: _Block, wait_seconds: float, rest_seconds: float
) -> None:
    began = time.monotonic()
    with locks.expecting_turn() as turn:
        while refusal := await _finished(locks.take(block, wait=wait_seconds > 0)):
            waited = time.monotonic() - began
            left = wait_seconds - waited
            if 0 < refusal.rest <= rest_seconds - waited:
                left = max(left, refusal.rest)
            if left <= 0:
                tried = f" (waited {wait_seconds:g} s)" if wait_seconds > 0 else ""
                raise UnableToAcquireLockError(f"{refusal.reason}{tried}; {refusal.next_step}")
            await turn.wait(min(left, refusal.rest or _ASK_SECONDS, _ASK_SECONDS))


def _refusal(answer: str, detail: str) -> _Refusal:
    """Describe a refusal of `Broker.hold`."""
    if answer == "WITHHELD":
        lock, _, rest_us = detail.partition("|")
        rest = int(rest_us) / 1e6
        enough = math.ceil(rest)
        return _Refusal(
            f"{lock} is not granted for {rest:.1f} s more: Redis is new or has lost data",
            f"try again then, or wait for it (--wait-locks {enough}; app.hold: wait={enough}, "
            f"app.call: wait_locks={enough})",
            rest,
        )
    is_limiter = detail.startswith("limiter:")
    reason = "is full" if is_limiter else "is held by others, or others wait for it longer"
    return _Refusal(f"{detail} {reason}", "'task-run locks' shows who has it")


async def _finished(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Await `work` to its end even if cancelled, so that its effect can be undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


class _Block:
    """The code under the locks. A loss of a lock cancels it, and the loss becomes its error."""

    def __init__(self, names: str, context: TaskContext | None) -> None:
        self._names = names
        self._context = context
        self._check: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._lost: str | None = None
        self._cancelled = False
        self._over = False

    def check_with(self, check: Callable[[], None]) -> None:
        """Set a check that calls `lose` if the locks have expired unnoticed."""
        self._check = check
        if self._context is not None:
            self._context.check_lease_with(check)

    def ensure_held(self) -> None:
        """Raise if the locks are lost; they may have expired while the loop was blocked."""
        if self._check is not None:
            self._check()
        if self._lost is not None:
            raise LeaseLostError(self._lost)

    def lose(self, reason: str) -> None:
        """Record a loss and cancel the block. Thread-safe."""
        self._lost = reason
        if self._context is not None:
            self._context.lose_lease(reason)
        if not self._loop.is_closed():  # a thread of the task may outlive the loop
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._over:
            self._cancelled = self._task.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._over = True
        others = self._task.uncancel() if self._task is not None and self._cancelled else 0
        stopped_by_us = error is None or isinstance(error, Exception | asyncio.CancelledError)
        if self._lost is not None and others == 0 and stopped_by_us:
            raise LeaseLostError(
                f"{self._names}: lost, and the block was cancelled: {self._lost} "
                "('task-run events' shows forced releases)"
            ) from error


def _structural_locks(name: str, task: BaseTask) -> str:
    try:
        return encode_locks(declared_locks(task), interactive=True)
    except ValueError as error:
        raise InvalidArgumentsError(name, [f"locks: {error}"]) from None


async def _execute(
    task: BaseTask,
    context: TaskContext,
    injector: Injector,
    values: Mapping[type, object],
    debugger: Debugger,
) -> Any:
    outer = enter_context(context)
    function: Any = task.execute
    try:
        async with injector.open(function, values=values) as arguments:
            context.ensure_lease()  # opening them may have taken long
            result = await _invoke(function, arguments, debugger)
            context.ensure_lease()
        return result
    except asyncio.CancelledError:
        context.lose_lease("the call was interrupted")  # a thread may still run
        raise
    except (LeaseLostError, ServerUnreachableError, DependencyError):
        raise
    except (Exception, SystemExit) as error:
        if debugger == "exception":
            _pdb().post_mortem(error.__traceback__)
        why = summarize(error, partial(hide, context.secrets))
        raise TaskFailed(
            f"{context.name} failed: {why.type}: {why.text}",
            error_type=why.type,
            traceback=why.traceback,
        ) from error
    finally:
        leave_context(outer)
        if context.has_workdir:
            await in_own_thread(context.remove_workdir)


async def _invoke(function: Any, arguments: Mapping[str, object], debugger: Debugger) -> Any:
    before = None
    if debugger == "before":
        before = partial(_pdb().set_trace, header="'step' enters execute()")
    threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
    try:
        return await invoke(function, arguments, threads, before)
    finally:
        threads.shutdown(wait=False)


def _pdb() -> Any:
    import pdb  # slow to import, and only people at a terminal need it

    return pdb
