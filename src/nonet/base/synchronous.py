"""Run coroutines in a thread without an event loop: `complete`, and the waits that they use.

The stores are written once, as coroutines. Over connections that block (`SyncClient`, `SyncEngine`)
such a coroutine never suspends, so one step runs it to its end. Its other waits (`sleep`,
`timeout`, `Gate`) come from this module: inside `complete` they block the thread, elsewhere they
are asyncio's.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class _Thread(threading.local):
    """What this thread does: whether it is inside `complete`, and when its time is over."""

    is_sync = False
    end = math.inf


_here = _Thread()


class TimeIsOver(BaseException):
    """Ends a call inside `complete` whose time limit is over, as asyncio would by cancelling it."""


def complete(coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a coroutine to its end in this thread, and return what it returns.

    >>> async def answer() -> int:
    ...     await sleep(0)
    ...     return 42
    >>> complete(answer())
    42
    """
    outer, _here.is_sync = _here.is_sync, True
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: _Answer = done.value
        return answer
    finally:
        _here.is_sync = outer
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits for something that needs an event loop")


def is_sync() -> bool:
    """Whether this code runs inside `complete`."""
    return _here.is_sync


async def sleep(seconds: float) -> None:
    """As `asyncio.sleep`."""
    if not _here.is_sync:
        await asyncio.sleep(seconds)
        return
    left = _here.end - time.monotonic()
    time.sleep(max(0.0, min(seconds, left)))  # noqa: ASYNC251  # no loop runs here
    if seconds >= left:
        raise TimeIsOver


def timeout(seconds: float | None) -> AbstractAsyncContextManager[Any]:
    """As `asyncio.timeout`. Inside `complete` only connections and `sleep` end in time."""
    return _Limit(seconds) if _here.is_sync else asyncio.timeout(seconds)


class _Limit:
    """A time limit inside `complete`."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._outer = _here.end
        self._end = math.inf if self._seconds is None else time.monotonic() + self._seconds
        _here.end = min(self._outer, self._end)

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        _here.end = self._outer
        if isinstance(error, TimeIsOver) and time.monotonic() >= self._end:
            raise TimeoutError from error


def seconds_left(most: float | None) -> float | None:
    """How long a call may block, at most `most` seconds (None: without limit).

    Raises:
        TimeIsOver: a limit around the call is over.
    """
    if _here.end == math.inf:
        return most
    left = _here.end - time.monotonic()
    if left <= 0:
        raise TimeIsOver
    return left if most is None else min(most, left)


class Gate:
    """Lets a number of callers through at a time: as `asyncio.Semaphore`, and between threads.

    Args:
        number: callers at a time.
    """

    def __init__(self, number: int = 1) -> None:
        self._tasks = asyncio.Semaphore(number)
        self._threads = threading.Semaphore(number)

    async def __aenter__(self) -> None:
        if _here.is_sync:
            self._threads.acquire()
        else:
            await self._tasks.acquire()

    async def __aexit__(self, *_: object) -> None:
        if _here.is_sync:
            self._threads.release()
        else:
            self._tasks.release()
