"""The life of a daemon: ticks, stop signals and what its exit code says."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from enum import IntEnum

logger = logging.getLogger(__name__)

# Asks a daemon to drain; sent twice it is still one request, unlike SIGTERM.
DRAIN_SIGNAL = signal.SIGUSR1
_LAST_TICK_SECONDS = 2.0


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


class Stop:
    """A stop request: the first signal drains, the second one ends at once.

    Attributes:
        requested: set by the first signal.
        forced: set by the second one.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

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
async def stop_on_signals() -> AsyncIterator[Stop]:
    """SIGTERM, SIGINT and `DRAIN_SIGNAL` request a stop inside this block."""
    stop = Stop()
    loop = asyncio.get_running_loop()
    handlers = {
        signal.SIGTERM: stop.request,
        signal.SIGINT: stop.request,
        DRAIN_SIGNAL: stop.drain,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield stop
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        # Nobody who asks for the end once more shall break off the last steps to it.
        signal.signal(DRAIN_SIGNAL, signal.SIG_IGN)


async def every(stop: Stop, name: str, tick: Callable[[], Awaitable[float]]) -> None:
    """Call `tick` until a stop is requested; it returns the seconds until its next call.

    An exception of a tick is logged and the loop goes on, a little later with each failure.
    """
    failures = 0
    while not stop.requested.is_set():
        try:
            pause = await tick()
            failures = 0
        except Exception as error:
            failures += 1
            pause = 0.1 * 2 ** min(failures, 6) * random.uniform(0.75, 1.25)
            log_tick_failure(name, error, pause)
        await stop.sleep(pause)


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


def log_tick_failure(name: str, error: Exception, pause: float) -> None:
    """One line for what is expected to happen (a server is away), a traceback for the rest."""
    expected = type(error).__module__.startswith("nonet.")
    logger.log(
        logging.WARNING if expected else logging.ERROR,
        "%s failed, next try in %.1f s: %s",
        name,
        pause,
        error,
        exc_info=None if expected else error,
    )
