"""Code that forks itself: how (`KINDS`), and how the copy leaves the code (`CODES`)."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

# The exit codes of the copy, as a parent sees them.
CODES = {
    "exit": 5,
    "raise": 1,
    "return": 0,
    "exec": 7,
    "sleep on": -signal.SIGTERM,
    "await": 1,  # the loop of the process that was forked
    "run": 3,  # a loop of its own
}
# What a thread of its own raises does not reach the exit code, as in every Python program.
_OF_A_THREAD = {"exit": 0, "raise": 0, "run": 0}


def _leave(way: str, told: int) -> None:
    """Leave the code of the copy; one that sleeps says so first."""
    os.write(told, b".")
    if way == "exit":
        sys.exit(5)
    if way == "raise":
        raise ValueError("in a copy")
    if way == "exec":
        os.execvp("sh", ["sh", "-c", "exit 7"])
    if way == "sleep on":
        time.sleep(600)
    if way == "run":
        sys.exit(asyncio.run(asyncio.sleep(0.001, 3)))


def _ended(pid: int, way: str, told: int, options: int = 0) -> int | None:
    """The exit code of a copy; None: it runs, and the caller does not wait."""
    if way == "sleep on" and not options:
        os.read(told, 1)
        os.kill(pid, signal.SIGTERM)
    ended, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if ended else None


async def _coroutine(way: str) -> int | None:
    told, tells = os.pipe()
    never = asyncio.get_running_loop().create_future()
    if (pid := os.fork()) == 0:
        _leave(way, tells)
        if way == "await":
            await never
        return None
    if way == "sleep on":
        return _ended(pid, way, told)
    while (code := _ended(pid, way, told, os.WNOHANG)) is None:  # noqa: ASYNC110  # a process
        await asyncio.sleep(0.01)
    return code


def blocking(way: str) -> int | None:
    """Fork in a thread; return the exit code of the copy."""
    told, tells = os.pipe()
    if (pid := os.fork()) == 0:
        return _leave(way, tells)
    return _ended(pid, way, told)


def _twice(way: str) -> int | None:
    """Fork in a copy; the copy ends as its own copy did."""
    if (pid := os.fork()) == 0:
        code = blocking(way)
        if code is None:
            return None
        os._exit(code & 0xFF)
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    return code - 256 if code > 127 else code


def _own_thread(way: str) -> int | None:
    answer: Future[int | None] = Future()
    threading.Thread(target=lambda: answer.set_result(blocking(way)), daemon=True).start()
    return answer.result()


async def _process(way: str) -> int | None:
    told, tells = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_leave, args=(way, tells))
    process.start()
    if way == "sleep on":
        os.read(told, 1)
        process.terminate()
    await asyncio.to_thread(process.join)
    return process.exitcode


def _in_thread(function: Callable[[str], int | None]) -> Callable[[str], Awaitable[int | None]]:
    return lambda way: asyncio.to_thread(function, way)


KINDS: dict[str, Callable[[str], Awaitable[int | None]]] = {
    "coroutine": _coroutine,
    "asyncio task": lambda way: asyncio.create_task(_coroutine(way)),
    "thread": _in_thread(blocking),
    "own thread": _in_thread(_own_thread),
    "process": _process,
    "copy": _in_thread(_twice),
}


def expected(kind: str, way: str) -> int:
    """The exit code that a copy must have."""
    return _OF_A_THREAD.get(way, CODES[way]) if kind == "own thread" else CODES[way]


def cases() -> list[tuple[str, str]]:
    """All pairs of a kind and a way."""
    return [
        (kind, way)
        for kind in KINDS
        for way in CODES
        if way != "await" or kind in ("coroutine", "asyncio task")
    ]
