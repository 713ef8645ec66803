"""What the programs of this directory share: a journal of what ran, and a loop that submits.

Each program is one task system, by its public interface, and runs in an environment of its own:
`PROGRAM worker` runs tasks until it is ended, `PROGRAM submit KIND COUNT RATE` submits some one by
one and prints JSON. Kinds: ``nothing`` writes its number to the journal, ``pause`` waits for
five seconds in between.
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
    """Write one line to the journal; lines of several processes do not mix."""
    os.write(_journal, LINE.pack(number, event, time.monotonic_ns()))


async def pause(number: int) -> None:
    """The body of the long task."""
    note(number, BEGUN)
    await asyncio.sleep(PAUSE_SECONDS)
    note(number, ENDED)


def pause_in_thread(number: int) -> None:
    """The same for who knows no coroutines."""
    note(number, BEGUN)
    time.sleep(PAUSE_SECONDS)
    note(number, ENDED)


async def submit(one: Callable[[str, int], Awaitable[object]]) -> None:
    """Submit as the command line says; a `RATE` of 0 is as fast as it goes."""
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
    """The same for who has no coroutine to submit with."""

    async def submit_one(kind: str, number: int) -> None:
        one(kind, number)

    asyncio.run(submit(submit_one))


def is_worker() -> bool:
    """Whether this program was started as a worker."""
    return sys.argv[1] == "worker"


def become(*command: str) -> None:
    """Go on as a command of this environment."""
    os.execv(os.path.join(os.path.dirname(sys.executable), command[0]), list(command))
