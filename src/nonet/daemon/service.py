"""The life of a daemon: ticks, stop signals and what its exit code says."""

from __future__ import annotations

import asyncio
import gc
import getpass
import logging
import math
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from enum import IntEnum
from typing import Any, NoReturn

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.daemon.init import STARTING_THRESHOLD

logger = logging.getLogger(__name__)

# Asks a daemon to drain; sent twice it is still one request, unlike SIGTERM.
DRAIN_SIGNAL = signal.SIGUSR1
_LAST_TICK_SECONDS = 2.0
_REACH_AGAIN_SECONDS = 2.0
# Longer than the way to the end takes if the loop works, with a frozen Redis, too.
_BLOCKED_SECONDS = 15.0
_FORCED_BLOCKED_SECONDS = 10.0
# Between two looks whether code of a task has changed what signals do.
_HEED_SECONDS = 0.5
# Ends the thread that hears them.
_NO_SIGNAL = b"\0"
# New objects before the garbage collector looks at them; Python's own number is a few tasks.
_THRESHOLD = 10_000


class ExitCode(IntEnum):
    """What every command and daemon tells its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    SECOND_SIGNAL = 143


def who() -> str:
    """Who acts in this process, for the event stream: ``user@host pid``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.getfqdn()} {os.getpid()}"


_told_of_end: list[Callable[[int], None]] = []


@contextmanager
def told_of_end(tell: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, `tell` is called with the exit code if `end_without_loop` is."""
    _told_of_end.append(tell)
    try:
        yield
    finally:
        _told_of_end.remove(tell)


def end_without_loop(code: ExitCode) -> NoReturn:
    """End this process at once; called by a thread when the event loop is blocked."""
    try:
        for tell in _told_of_end.copy():
            tell(code)
    finally:
        os._exit(code)


class _Ears:
    """Hears signals in a thread, whatever the main thread does, and ends this process if its
    event loop does not.

    Python runs a handler when its main thread comes to the next instruction, which a task that
    blocks it may put off for ever. The number of a signal is written into a pipe at once.

    Args:
        heard: called in the thread with the number of each signal; says until when (seconds from
            now) the loop must have ended, and the exit code if it has not; None: it matters not.
    """

    def __init__(self, heard: Callable[[int], tuple[float, ExitCode] | None]) -> None:
        self._heard = heard
        self._pipe, self._end = os.pipe()
        os.set_blocking(self._end, False)
        self._before = self._listen()
        self._thread = threading.Thread(target=self._run, name="nonet-signals", daemon=True)
        self._thread.start()

    def listen_again(self) -> bool:
        """Whether something else had the signals written elsewhere; from now on they come here."""
        return self._listen() != self._end

    def close(self) -> None:
        """The loop has reached its end."""
        signal.set_wakeup_fd(self._before)
        # The end of the pipe would not do: a copy of this process, which a task has forked, has it.
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
                logger.critical("the event loop is blocked: ended without handing tasks back")
                end_without_loop(code)
            numbers = os.read(self._pipe, 64)
            if _NO_SIGNAL in numbers:
                return
            for number in numbers:
                if (told := self._heard(number)) is not None:
                    # A drain that is asked for once more makes a second signal no first one.
                    ends_at, code = min(ends_at, time.monotonic() + told[0]), max(code, told[1])


def _deafen() -> None:
    """What a forked child hears is not meant for its parent."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_deafen)


class Stop:
    """A stop request: the first signal drains, the second one ends at once.

    Attributes:
        requested: set by the first signal.
        forced: set by the second one.
    """

    def __init__(self) -> None:
        self.requested: asyncio.Event = asyncio.Event()
        self.forced: asyncio.Event = asyncio.Event()

    def request(self) -> None:
        """What a signal does."""
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()

    def drain(self) -> None:
        """What `DRAIN_SIGNAL` does: a request that never forces, however often it is made."""
        self.requested.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until a stop is requested."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.requested.wait()
        except TimeoutError:
            pass


@asynccontextmanager
async def stop_on_signals(
    grace_seconds: float = 0.0, *, on_hangup: Callable[[], None] | None = None
) -> AsyncIterator[Stop]:
    """SIGTERM, SIGINT and `DRAIN_SIGNAL` request a stop inside this block.

    Code of a task, which shares the process, may change what they do, as by ``SIG_IGN`` or
    ``loop.add_signal_handler``: they are taken back within half a second.

    Args:
        grace_seconds: how long the drain may take after the first signal. If the event loop has
            not ended some seconds after that, or after a second signal, because a task blocks
            it, the process ends without it.
        on_hangup: what SIGHUP does, called in the event loop; None: it ends the process.
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
    heeded = (*signals, *([signal.SIGHUP] if on_hangup is not None else []))
    before = {number: signal.signal(number, _ignore) for number in heeded}
    ears = _Ears(heard)
    heeding = asyncio.create_task(_heed(heeded, ears), name="signals")
    try:
        yield stop
    finally:
        heeding.cancel()
        ears.close()
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        # Nobody who asks for the end once more shall break off the last steps to it.
        signal.signal(DRAIN_SIGNAL, signal.SIG_IGN)


def _ignore(number: int, frame: object) -> None:
    """A handler of signals that are heard in a thread."""


async def _heed(numbers: Sequence[signal.Signals], ears: _Ears) -> None:
    """Take signals back from code that has changed what they do."""
    while True:
        await asyncio.sleep(_HEED_SECONDS)
        # Set before they are compared: a handler of C is not seen from here.
        changed = [number for number in numbers if signal.signal(number, _ignore) is not _ignore]
        if ears.listen_again() or changed:
            names = ", ".join(number.name for number in changed or numbers)
            logger.warning(
                "took signals back: code of a task had changed what %s does to this process; "
                "isolate that class",
                names,
            )


async def reached(stop: Stop, check: Callable[[], Awaitable[None]]) -> bool:
    """Wait until the server that `check` asks answers; False if a stop is requested before.

    So a daemon may start before its Redis does. What `check` raises otherwise, as nothing that
    passes by itself, is raised.
    """
    requested = asyncio.create_task(stop.requested.wait())
    try:
        while not requested.done():
            checking = asyncio.ensure_future(check())
            await asyncio.wait({checking, requested}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                checking.cancel()
                return False
            try:
                await checking
                return True
            except ServerUnreachableError as error:
                logger.warning("waiting for its server: %s", error)
            await stop.sleep(_REACH_AGAIN_SECONDS)
        return False
    finally:
        requested.cancel()


def spare_collector() -> None:
    """Called by a daemon that is set up: the garbage collector looks at what comes from now on.

    Modules and classes live as long as the process; each look at them would cost as much as
    hundreds of tasks.
    """
    gc.freeze()
    if gc.get_threshold()[0] == STARTING_THRESHOLD:  # else code of tasks has set another one
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])


async def every(stop: Stop, name: str, tick: Callable[[], Awaitable[float]]) -> None:
    """Call `tick` until a stop is requested; it returns the seconds until its next call.

    An exception of a tick, of any kind, is logged and the loop goes on, a little later with each
    failure; only a cancellation of the loop itself ends it.
    """
    failures = 0
    while not stop.requested.is_set():
        try:
            pause = await tick()
            failures = 0
        except BaseException as error:  # SystemExit of an application's code ends no daemon
            if is_end(error):
                raise
            failures += 1
            pause = 0.1 * 2 ** min(failures, 6) * random.uniform(0.75, 1.25)
            log_tick_failure(name, error, pause)
        await stop.sleep(pause)


def is_end(error: BaseException) -> bool:
    """Whether an exception ends the current asyncio task, and is none that code in it made up."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # no loop runs any more: it was closed
        return True
    is_cancelled = isinstance(error, asyncio.CancelledError)
    return current is None or (is_cancelled and current.cancelling() > 0)


async def wind_up(stop: Stop, loops: Set[asyncio.Task[None]]) -> None:
    """Wait for a stop request, then let the last ticks end; a frozen Redis must not hold the exit.

    They get a moment, until the second signal; cut off, a fetch would lose what it was given.
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


def log_tick_failure(name: str, error: BaseException, pause: float) -> None:
    """One line for what is expected to happen (a server is away), a traceback for the rest."""
    from nonet.rules.outcomes import (
        summarize,  # brings pydantic, which no command needs for its help
    )

    expected = issubclass(type(error), NonetError)
    why = summarize(error)
    logger.log(
        logging.WARNING if expected else logging.ERROR,
        "%s failed, next try in %.1f s: %s",
        name,
        pause,
        why.text if expected else f"{why.type}: {why.text}",
        exc_info=None if expected else error,
    )


def retrieve(done: asyncio.Task[Any]) -> None:
    """Called back by a task whose failure concerns nobody: asyncio would tell of it at length."""
    if not done.cancelled():
        done.exception()
