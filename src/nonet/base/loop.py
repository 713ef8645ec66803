"""The event loop of our processes: uvloop's where it is installed, else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop of a process, for ``asyncio.Runner``."""
    try:
        import uvloop
    except ImportError:  # the extra is not installed, or is of another platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, _Answer]) -> _Answer:
    """`asyncio.run` in such a loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


async def in_own_thread(function: Callable[[], _Answer]) -> _Answer:
    """What `function` returns; not in the loop's executor, whose threads user code may occupy."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="nonet-own")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, function)
    finally:
        thread.shutdown(wait=False)


def name_of(loop: asyncio.AbstractEventLoop) -> str:
    """Who made a loop, for people.

    >>> import asyncio
    >>> with asyncio.Runner() as runner:
    ...     name_of(runner.get_loop())
    'asyncio'
    """
    return type(loop).__module__.partition(".")[0]
