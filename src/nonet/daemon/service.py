"""Loops, stop signals and exit codes of a daemon."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import random
import select
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any, TypeVar

from nonet.base.errors import ServerUnreachableError
from nonet.daemon.starting import STARTING_THRESHOLD
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Asks a daemon to drain. Sent twice it is still one request, unlike SIGTERM.
DRAIN_SIGNAL = signal.SIGUSR1
_LAST_TICK_SECONDS = 2.0
_REACH_AGAIN_SECONDS = 2.0
# How long a stop may take after the grace period, or after a second signal, before the event loop
# counts as blocked. A stop with a frozen Redis takes less.
_BLOCKED_SECONDS = 15.0
_FORCED_BLOCKED_SECONDS = 10.0
# How often to check whether code of a task has replaced our handlers of signals or log lines.
_RESTORE_SECONDS = 0.5
# Wakes the thread that reads the signals.
_NO_SIGNAL = b"\0"
# New objects between two runs of the garbage collector. A few tasks exceed Python's default.
_THRESHOLD = 10_000


class ExitCode(IntEnum):
    """Exit codes of all commands and daemons."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    SECOND_SIGNAL = 143


class _SignalThread:
    """Receive signals in a thread, and end this process if its event loop does not.

    Python runs a signal handler only when the main thread reaches its next instruction, which a
    blocking task may delay without limit. Python writes the signal number into a pipe at once, so
    the thread reads that.

    Args:
        heard: called in the thread with the number of each signal. Returns the seconds within which
            the loop must end, and the exit code if it does not; None for no deadline.
    """

    def __init__(self, heard: Callable[[int], tuple[float, ExitCode] | None]) -> None:
        self._heard = heard
        self._is_closing = False
        self._pipe, self._end = os.pipe()
        os.set_blocking(self._end, False)
        self._before = self._listen()
        self._thread = threading.Thread(target=self._run, name="nonet-signals", daemon=True)
        self._thread.start()

    def redirect(self) -> bool:
        """Direct the signals to this pipe again; return whether they went elsewhere."""
        return self._listen() != self._end

    def close(self) -> None:
        """End the thread, because the event loop has ended."""
        signal.set_wakeup_fd(self._before)
        # While a forked copy of this process has the pipe open, closing it does not wake the
        # thread. The copy could also write into it, so the thread does not end because of a byte.
        self._is_closing = True
        os.set_blocking(self._end, True)
        os.write(self._end, _NO_SIGNAL)
        self._thread.join()
        os.close(self._end)
        os.close(self._pipe)

    def _listen(self) -> int:
        return signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)

    def _run(self) -> None:
        ends_at, code = math.inf, ExitCode.FAILED
        while True:
            left = None if ends_at == math.inf else max(0.0, ends_at - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                logger.critical("event loop blocked: exiting without handing tasks back")
                os._exit(code)
            numbers = os.read(self._pipe, 64)
            if self._is_closing:
                return
            for number in numbers:
                if (deadline := self._heard(number)) is not None:
                    # A drain request after a second SIGTERM must not extend the deadline.
                    seconds, exit_code = deadline
                    ends_at, code = min(ends_at, time.monotonic() + seconds), max(code, exit_code)


class Stop:
    """A stop request: the first signal drains, the second one ends at once.

    Attributes:
        requested: set by the first signal.
        forced: set by the second signal.
    """

    def __init__(self) -> None:
        self.requested: asyncio.Event = asyncio.Event()
        self.forced: asyncio.Event = asyncio.Event()

    def request(self) -> None:
        """Act on SIGTERM or SIGINT."""
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()

    def drain(self) -> None:
        """Act on `DRAIN_SIGNAL`: request a stop, and never force it."""
        self.requested.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep; a stop request ends the sleep."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.requested.wait()
        except TimeoutError:
            pass


@asynccontextmanager
async def stop_on_signals(
    grace_seconds: float = 0.0, *, on_hangup: Callable[[], None] | None = None
) -> AsyncIterator[Stop]:
    """Let SIGTERM, SIGINT and `DRAIN_SIGNAL` request a stop inside this block.

    Code of a task may replace the handlers, for example by ``SIG_IGN`` or
    ``loop.add_signal_handler``: they are restored within half a second. So are the handler and the
    loggers of this daemon's log lines.

    Args:
        grace_seconds: how long the drain may take after the first signal. If a task then still
            blocks the event loop, or does so after a second signal, the process ends without it.
        on_hangup: called in the event loop on SIGHUP; None: SIGHUP ends the process.
    """
    stop, loop = Stop(), asyncio.get_running_loop()
    asked = False

    def heard(number: int) -> tuple[float, ExitCode] | None:
        nonlocal asked
        if number == signal.SIGHUP and on_hangup is not None:
            loop.call_soon_threadsafe(on_hangup)
        if number not in signals:
            return None
        is_second = asked and number != DRAIN_SIGNAL
        asked = True
        loop.call_soon_threadsafe(stop.drain if number == DRAIN_SIGNAL else stop.request)
        if is_second:
            return _FORCED_BLOCKED_SECONDS, ExitCode.SECOND_SIGNAL
        return grace_seconds + _BLOCKED_SECONDS, ExitCode.FAILED

    signals = (signal.SIGTERM, signal.SIGINT, DRAIN_SIGNAL)
    handled = (*signals, *([signal.SIGHUP] if on_hangup is not None else []))
    before = {number: signal.signal(number, _ignore) for number in handled}
    thread = _SignalThread(heard)
    restoring = asyncio.create_task(_restore_handlers(handled, thread), name="signals")
    try:
        yield stop
    finally:
        restoring.cancel()
        thread.close()
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        # A further drain request must not interrupt the last steps.
        signal.signal(DRAIN_SIGNAL, signal.SIG_IGN)


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until it ends or raises, or a signal asks to stop.

    A signal also interrupts a call to a Redis that hangs.
    """
    async with stop_on_signals() as stop:
        await unless_stopped(work, stop)


async def unless_stopped(work: Coroutine[Any, Any, _Result], stop: Stop) -> _Result | None:
    """Do `work` and return its result; cancel it and return None if a stop is requested first."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.requested.wait(), name="stop")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.wait({working})


def _ignore(number: int, frame: object) -> None:
    """A handler for signals that the thread reads."""


async def _restore_handlers(numbers: Sequence[signal.Signals], thread: _SignalThread) -> None:
    """Restore the handlers that code of a task has replaced."""
    from nonet.telemetry.logs import keep_logs  # slower to import than `--help` may take

    while True:
        await asyncio.sleep(_RESTORE_SECONDS)
        keep_logs()
        # Set, then compare: `signal.getsignal` does not show handlers that C code installed.
        changed = [number for number in numbers if signal.signal(number, _ignore) is not _ignore]
        if thread.redirect() or changed:
            names = ", ".join(number.name for number in changed or numbers)
            logger.warning(
                "restored signal handlers that code of a task had replaced, isolate its class: "
                "signals=%s",
                names,
            )


async def reached(stop: Stop, check: Callable[[], Awaitable[None]]) -> bool:
    """Wait until the server that `check` contacts answers; return whether it does.

    False means that a stop was requested first. A daemon may therefore start before its Redis.
    Other errors of `check` are raised, because waiting cannot fix them.
    """

    async def answers() -> bool:
        await check()
        return True

    failures = FailureLog("connection to the servers", logger)
    while not stop.requested.is_set():
        try:
            if await unless_stopped(answers(), stop):
                failures.succeeded()
                return True
        except ServerUnreachableError as error:
            failures.failed(error, _REACH_AGAIN_SECONDS)
        await stop.sleep(_REACH_AGAIN_SECONDS)
    return False


def spare_collector() -> None:
    """Exclude what exists now from garbage collection; a daemon calls it when it is set up.

    Modules and classes live as long as the process, and scanning them costs as much CPU time as
    hundreds of tasks.
    """
    gc.freeze()
    if gc.get_threshold()[0] == STARTING_THRESHOLD:  # else a task module has set its own
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])


async def every(
    stop: Stop, name: str, tick: Callable[[], Awaitable[float]], failures: FailureLog | None = None
) -> None:
    """Call `tick` until a stop is requested; it returns the seconds until the next call.

    The loop survives any exception of a tick: it is logged, and the pause doubles with each failure
    in a row, up to 6.4 s. Only a cancellation of the loop itself ends it.

    Args:
        failures: counts and logs the failures; None: create a log for this loop.
    """
    failures = failures or FailureLog(name, logger)
    in_a_row = 0
    while not stop.requested.is_set():
        try:
            pause = await tick()
            in_a_row = 0
            failures.succeeded()
        except BaseException as error:  # a SystemExit of application code must not end a daemon
            if is_end(error):
                raise
            in_a_row += 1
            pause = 0.1 * 2 ** min(in_a_row, 6) * random.uniform(0.75, 1.25)
            failures.failed(error, pause)
        await stop.sleep(pause)


def is_end(error: BaseException) -> bool:
    """Whether an exception cancels the current asyncio task, rather than being an error in it."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # the loop was closed
        return True
    is_cancelled = isinstance(error, asyncio.CancelledError)
    return current is None or (is_cancelled and current.cancelling() > 0)


async def wind_up(stop: Stop, loops: Set[asyncio.Task[None]]) -> None:
    """Wait for a stop request, then give the loops two seconds to finish their ticks.

    A frozen Redis must not delay the exit. A fetch that is cut off at once would lose the tasks in
    its reply.
    """
    await stop.requested.wait()
    logger.info("stop requested")
    forced = asyncio.create_task(stop.forced.wait())
    ended = asyncio.create_task(asyncio.wait(loops))
    await asyncio.wait(
        {forced, ended}, timeout=_LAST_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    for task in (forced, ended, *loops):
        task.cancel()


def retrieve(done: asyncio.Future[Any]) -> None:
    """Read the error of a finished future, else asyncio logs it; for `add_done_callback`."""
    if not done.cancelled():
        done.exception()
