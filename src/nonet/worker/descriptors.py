"""End a worker that has no file descriptors left, or whose event loop lost its own."""

from __future__ import annotations

import errno
import logging
import os
import resource
import time

from nonet.base.loop import is_deaf
from nonet.daemon.service import ExitCode

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# A burst of connections may use up all descriptors for a moment.
_PATIENCE_SECONDS = 10.0


class Descriptors:
    """Ends a worker that can no longer open files or connections, or whose loop is deaf.

    Its open connections would keep it alive, but every task that it runs would fail. Threads cannot
    wake a deaf event loop, so `def` tasks end late, and so does a stop.
    """

    def __init__(self) -> None:
        self._limit = _limit()
        self._could_open_at = time.monotonic()

    async def look(self) -> float:
        """Try to open a file, and check the loop; return the seconds until the next check."""
        if is_deaf():
            logger.critical(
                "ending this worker, whose event loop is deaf: code of a task has removed its "
                "descriptors from the epoll set; isolate that class"
            )
            os._exit(ExitCode.FAILED)
        if _can_open():
            self._could_open_at = time.monotonic()
        elif why := why_to_end(self._limit, _limit(), time.monotonic() - self._could_open_at):
            logger.critical("this worker cannot open files or connections and ends: %s", why)
            os._exit(ExitCode.FAILED)
        return _CHECK_SECONDS


def why_to_end(before: int, now: int, seconds: float) -> str:
    """Return why a worker that cannot open files must end; empty: wait a little longer.

    Args:
        before, now: ``RLIMIT_NOFILE`` at its start and now.
        seconds: for how long it could open nothing.

    >>> why_to_end(1024, 16, 0.0)
    'code of a task has lowered RLIMIT_NOFILE from 1024 to 16; isolate that class'
    >>> why_to_end(1024, 1024, 3.0)
    ''
    """
    if now != before:
        return (
            f"code of a task has lowered RLIMIT_NOFILE from {before} to {now}; isolate that class"
        )
    if seconds < _PATIENCE_SECONDS:
        return ""
    return (
        f"its {now} descriptors (RLIMIT_NOFILE) have been in use for {seconds:.0f} s; raise that "
        "limit or lower --concurrency, and isolate a class that leaves files open"
    )


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _can_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno != errno.EMFILE
    return True
