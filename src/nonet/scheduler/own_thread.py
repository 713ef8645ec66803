"""Run application code in a thread that it may block without holding up other code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from nonet.base.forks import Threads

Answer = TypeVar("Answer")


def in_thread_of_its_own(function: Callable[[], Answer]) -> asyncio.Future[Answer]:
    """Call a function in a new thread: application code may occupy all threads of the loop."""
    threads = Threads(1, thread_name_prefix="nonet-task")
    call = asyncio.get_running_loop().run_in_executor(threads, function)
    threads.shutdown(wait=False)
    return call
