"""The upper limit: bare redis-py with the least that the protocol needs, on the same server.

It keeps no records, locks, results or ids, so it is not a task system.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import redis.asyncio as redis

_CALLERS = 50
_BULK = 1000
_BATCH = 100
_STREAM, _GROUP = "raw:stream", "workers"
_PINGS = 1000


class Raw:
    """redis-py on asyncio; each loop submits for a given number of seconds."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds

    def ways(self) -> list[tuple[str, Callable[[], Awaitable[float]]]]:
        """Return the ways to submit, each with a function that measures entries per second."""
        return [
            ("sequential", self._one_by_one),
            ("concurrent", self._callers),
            ("bulk", self._bulk),
        ]

    async def _one_by_one(self) -> float:
        return await self._add_by(1)

    async def _callers(self) -> float:
        return await self._add_by(_CALLERS)

    async def _add_by(self, callers: int) -> float:
        async with redis.Redis.from_url(self._url) as client:
            await asyncio.gather(*(client.ping() for _ in range(callers)))  # connects
            start, number = time.perf_counter(), 0

            async def call() -> None:
                nonlocal number
                while time.perf_counter() - start < self._seconds:
                    number += 1
                    await client.execute_command("XADD", _STREAM, "*", "d", _entry(number))

            await asyncio.gather(*(call() for _ in range(callers)))
            return number / (time.perf_counter() - start)

    async def _bulk(self) -> float:
        async with redis.Redis.from_url(self._url) as client:
            start, number = time.perf_counter(), 0
            while time.perf_counter() - start < self._seconds:
                await _add(client, range(number, number + _BULK))
                number += _BULK
            return number / (time.perf_counter() - start)

    async def drain(self, count: int) -> float:
        """Measure entries per second that a loop reads, acknowledges and deletes, 100 at a time."""
        async with redis.Redis.from_url(self._url, protocol=2) as client:
            await client.xgroup_create(_STREAM, _GROUP, "0", mkstream=True)
            for first in range(0, count, _BULK):
                await _add(client, range(first, min(count, first + _BULK)))
            start = time.perf_counter()
            while reply := await client.xreadgroup(_GROUP, "me", {_STREAM: ">"}, count=_BATCH):
                entries = [entry for entry, _ in reply[0][1]]
                pipe = client.pipeline(transaction=False)
                pipe.xack(_STREAM, _GROUP, *entries).xdel(_STREAM, *entries)
                await pipe.execute()
            return count / (time.perf_counter() - start)

    async def ping(self) -> float:
        """Return the median round trip in milliseconds."""
        async with redis.Redis.from_url(self._url) as client:
            await client.ping()
            times = []
            for _ in range(_PINGS):
                start = time.perf_counter()
                await client.ping()
                times.append(time.perf_counter() - start)
        return statistics.median(times) * 1000


async def _add(client: redis.Redis, numbers: range) -> None:
    pipe = client.pipeline(transaction=False)
    for number in numbers:
        pipe.execute_command("XADD", _STREAM, "*", "d", _entry(number))
    await pipe.execute()


def _entry(number: int) -> str:
    # About as long as the envelope of a task of a small class.
    return f'{number:032d} bench_tasks.Noop {{"number":{number}}}'
