"""Whether calls of Redis suspend a coroutine (`ASYNCIO`), or block a thread (`sync_transport`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nonet.stores.connection.redis import AsyncRedis, Scripts, connect, connect_blocking
from nonet.stores.queue.submissions import MergedSubmissions, Submissions
from nonet.stores.queue.wakes import Wakes


class Transport(Struct, frozen=True):
    """How a process talks to Redis.

    Attributes:
        connect: makes the client for commands and scripts, given the URL and the prefix of keys.
        connect_blocking: makes the client for blocking pops.
        wakes: makes what waits for wake-ups: `Wakes`, or another for waits alone.
        submissions: makes what sends submissions.
        is_sync: whether calls block.
    """

    connect: Callable[[str, str], AsyncRedis]
    connect_blocking: Callable[[str, str], AsyncRedis]
    wakes: Callable[[str, str], Any]
    submissions: Callable[[Scripts, str], Submissions]
    is_sync: bool = False


ASYNCIO = Transport(connect, connect_blocking, Wakes, MergedSubmissions)
