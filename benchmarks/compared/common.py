"""Shared by the programs of this directory: a journal of executed tasks, and a submit loop.

Each program drives one task system through its public interface, in its own environment.
``PROGRAM worker`` runs tasks until it is stopped. ``PROGRAM submit KIND COUNT RATE`` submits tasks
one by one and prints JSON. A task of kind ``nothing`` writes its number to the journal; ``pause``
writes when it begins and ends, and sleeps for five seconds in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable

URL = os.environ["COMPARE_REDIS"]
CONCURRENCY = 100
PAUSE_SECONDS = 5.0
LINE = struct.Struct("<iiq")  # number, event, nanoseconds of the machine's monotonic clock
BEGUN, ENDED = 0, 1

_journal = os.open(os.environ["COMPARE_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(number: int, event: int) -> None:
    """Append one line to the journal; lines of concurrent processes do not mix."""
    os.write(_journal, LINE.pack(number, event, time.monotonic_ns()))


async def pause(number: int) -> None:
    """Execute a task of kind ``pause``."""
    note(number, BEGUN)
    await asyncio.sleep(PAUSE_SECONDS)
    note(number, ENDED)


def pause_in_thread(number: int) -> None:
    """Act as `pause`, for systems without coroutines."""
    note(number, BEGUN)
    time.sleep(PAUSE_SECONDS)
    note(number, ENDED)


async def submit(one: Callable[[str, int], Awaitable[object]]) -> None:
    """Submit as the command line says; a `RATE` of 0 means as fast as possible."""
    kind, count, rate = sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    sent = []
    began = time.monotonic()
    for number in range(count):
        if rate and (wait := began + number / rate - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        sent.append(time.monotonic_ns())
        await one(kind, number)
    print(json.dumps({"seconds": time.monotonic() - began, "sent": sent}))


def submit_sync(one: Callable[[str, int], object]) -> None:
    """Act as `submit`, for systems without an asynchronous client."""

    async def submit_one(kind: str, number: int) -> None:
        one(kind, number)

    asyncio.run(submit(submit_one))


def is_worker() -> bool:
    """Return whether this program was started as a worker."""
    return sys.argv[1] == "worker"


def become(*command: str) -> None:
    """Replace this process by a command of its environment."""
    os.execv(os.path.join(os.path.dirname(sys.executable), command[0]), list(command))
