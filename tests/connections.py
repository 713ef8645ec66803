"""`every_kind`: one call over each kind of connection that processes of a namespace have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from nonet.base.errors import ServerUnreachableError
from nonet.base.synchronous import complete
from nonet.stores.connection import redis as redis_store, sync_client
from nonet.stores.connection.redis import Scripts, run_sync

PREFIX = "{test}:"
# The key that each call reads.
WHO = "who"
# How servers, and proxies in front of them, say "not I, not now".
ELSEWHERE = (
    "READONLY You can't write against a read only replica.",
    "ERR READONLY You can't write against a read only replica.",
    "ERR Error running script: @user_script:1: -READONLY You can't write against a replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "TRYAGAIN Multiple keys request during rehashing of slot",
)
Call = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def every_kind(url: str) -> AsyncIterator[Mapping[str, Call]]:
    """A call over each kind of connection; it returns which server has answered."""
    pool = redis_store.connect(url, PREFIX)
    popping = redis_store.connect_blocking(url, PREFIX)
    watchdog = redis_store.connect_sync(url, PREFIX)
    sync = sync_client.connect(url, PREFIX)

    async def piped() -> bytes:
        async with pool.pipeline(transaction=False) as pipe:
            found: list[bytes] = await pipe.get(WHO).execute()
        return found[0]

    async def by_script(client: Any) -> bytes:
        answer = await Scripts(client, PREFIX).run("presence", "0|0", 0, "")
        return b"" if not answer else await client.lane.call("GET", WHO)  # type: ignore[no-any-return]

    async def beating() -> bytes:
        def beat() -> bytes:
            run_sync(watchdog, PREFIX, "presence", "0|0", 0, "")
            found: bytes = watchdog.get(WHO)
            return found

        return await asyncio.to_thread(beat)

    def in_thread(call: Call) -> Call:
        return lambda: asyncio.to_thread(lambda: complete(call()))  # type: ignore[arg-type]

    async def popped() -> bytes:
        async with redis_store.server_errors(popping):
            await popping.lane_for("list").call("BLPOP", f"{PREFIX}none", 0.01)
            found: bytes = await popping.lane_for("list").call("GET", WHO)
        return found

    try:
        yield {
            "pool": partial(pool.get, WHO),
            "pipeline": piped,
            "lane": partial(by_script, pool),
            "blocking lane": popped,
            "watchdog": beating,
            "threads": in_thread(partial(sync.get, WHO)),
            "lane of threads": in_thread(partial(by_script, sync)),
        }
    finally:
        await pool.aclose()
        await popping.aclose()
        watchdog.close()
        complete(sync.aclose())


async def again(call: Call) -> Any:
    """Call as daemons do: what could not be reached is called again."""
    try:
        return await call()
    except ServerUnreachableError:
        return await call()
