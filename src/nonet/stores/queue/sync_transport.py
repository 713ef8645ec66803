"""How threads talk to Redis: `THREADS`, and the waits that block one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nonet.stores.connection.redis import BLOCK_SECONDS, AsyncRedis, server_errors
from nonet.stores.connection.sync_client import connect, connect_blocking
from nonet.stores.queue.submissions import Submissions
from nonet.stores.queue.transport import Transport
from nonet.stores.queue.wakes import new_name


class SyncWakes:
    """As `Wakes`, for threads: each wait has a list and a connection of its own, and blocks."""

    def __init__(self, url: str, prefix: str) -> None:
        self._blocking = connect_blocking(url, prefix)
        self._prefix = prefix

    async def aclose(self) -> None:
        """Close the connections."""
        await self._blocking.aclose()

    @contextmanager
    def expecting(self, id: str) -> Iterator[_SyncWake]:
        """See `Wakes.expecting`."""
        yield _SyncWake(self._blocking, self._prefix)


class _SyncWake:
    """The wake-ups of one wait in a thread, see `Wake`."""

    def __init__(self, blocking: AsyncRedis, prefix: str) -> None:
        self.client = new_name()
        self._blocking = blocking
        self._key = f"{prefix}wake:{self.client}"

    async def wait(self, seconds: float) -> bool:
        """Block until a script reports the id, at most `seconds`; return whether it did."""
        async with server_errors(self._blocking):
            span = min(seconds, BLOCK_SECONDS)
            return await self._blocking.lane.call("BLPOP", self._key, span) is not None


THREADS = Transport(connect, connect_blocking, SyncWakes, Submissions, is_sync=True)
