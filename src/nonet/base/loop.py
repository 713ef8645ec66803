"""The event loop of a process: uvloop if it is installed and wanted, else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from nonet.base.forks import Threads, detached_in_copies, watched_by
from nonet.base.synchronous import is_sync

_Answer = TypeVar("_Answer")

# The descriptors by which other threads and signals wake a loop.
_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, set[int]] = WeakKeyDictionary()


def loop_factory(*, with_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of event loops, for ``asyncio.Runner``.

    Args:
        with_uvloop: use uvloop where it is installed, see `nonet.Settings`.
    """
    if not with_uvloop:
        return asyncio.new_event_loop
    try:
        import uvloop  # optional
    except ImportError:  # the extra is not installed
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@contextmanager
def open_runner(*, with_uvloop: bool) -> Iterator[asyncio.Runner]:
    """Open a runner with a loop of `loop_factory`, from which forked copies are detached."""
    with asyncio.Runner(loop_factory=loop_factory(with_uvloop=with_uvloop)) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(Threads(thread_name_prefix="asyncio"))
        loop.run_until_complete(asyncio.sleep(0))  # uvloop fills its epoll set when it first polls
        _wakers[loop] = watched_by(loop) or set()
        with detached_in_copies(loop):
            yield runner


def is_deaf() -> bool:
    """Whether other threads can no longer wake the running loop, a loop of `open_runner`.

    Its epoll set then lacks descriptors that it had at the start.
    """
    loop = asyncio.get_running_loop()
    watched = watched_by(loop)
    return watched is not None and not _wakers.get(loop, set()) <= watched


def run(main: Coroutine[Any, Any, _Answer], *, with_uvloop: bool) -> _Answer:
    """Run a coroutine like `asyncio.run`, in a loop of `loop_factory`."""
    with open_runner(with_uvloop=with_uvloop) as runner:
        return runner.run(main)


async def in_own_thread(function: Callable[[], _Answer]) -> _Answer:
    """Run a blocking function in a new thread, because user code may fill the loop's executor."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="nonet-own")
    try:
        if is_sync():
            return thread.submit(function).result()
        return await asyncio.get_running_loop().run_in_executor(thread, function)
    finally:
        thread.shutdown(wait=False)


def uncancel() -> None:
    """Clear the cancellation of the current asyncio task, which has handled it."""
    current = asyncio.current_task()
    while current is not None and current.cancelling():
        current.uncancel()


def name_of(loop: asyncio.AbstractEventLoop) -> str:
    """Return the name of the library that a loop belongs to.

    >>> import asyncio
    >>> with asyncio.Runner() as runner:
    ...     name_of(runner.get_loop())
    'asyncio'
    """
    return type(loop).__module__.partition(".")[0]
