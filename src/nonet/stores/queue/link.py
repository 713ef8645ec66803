"""The connections of one namespace's queue, and what this process has seen of Redis."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from nonet.base.clock import Reading, steady
from nonet.base.keys import prefix
from nonet.config.settings import Settings
from nonet.stores.connection.clock import logical_now, microseconds, wall_now
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import AsyncRedis, Scripts
from nonet.stores.connection.topology import follow
from nonet.stores.queue.settling import Settlements
from nonet.stores.queue.transport import ASYNCIO, Transport
from nonet.stores.queue.wakes import Wakes

logger = logging.getLogger(__name__)


class QueueLink:
    """What the parts of a `Broker` share: connections, scripts, the epoch and times of settings.

    Args:
        settings: the settings of the namespace.
        url: URL of Redis, which may differ from that of the settings.
        transport: whether calls suspend a coroutine or block a thread.
    """

    def __init__(self, settings: Settings, url: str, transport: Transport = ASYNCIO) -> None:
        self.settings = settings
        self.url = url
        self.transport = transport
        self.prefix: str = prefix(settings.namespace)
        self.client: AsyncRedis = transport.connect(url, self.prefix)
        if settings.redis_url.file:  # another application may share the endpoint without a file
            self.client.endpoint.url_file = settings.redis_url.file
        # A new epoch may come from another server: no connection may stay with the old one.
        self.epoch: EpochSeen = EpochSeen(self.client.endpoint.leave)
        self.scripts: Scripts = Scripts(
            self.client, self.prefix, replicas=settings.confirm_replicas
        )
        self._blocking = transport.connect_blocking(url, self.prefix)
        self.wakes: Wakes = transport.wakes(url, self.prefix)
        self.moved: timedelta = timedelta(0)
        self._following: asyncio.Task[None] | None = None
        self.lock_ttl_ms: int = round(settings.lock_ttl * 1000)
        self._lease_ms = round(settings.lease * 1000)
        times = settings.result_ttl, settings.dedup_ttl
        self.keeping: str = "|".join(
            [*(str(round(seconds * 1000)) for seconds in times), str(settings.history)]
        )
        self._submissions = transport.submissions(self.scripts, self.keeping)
        self._settlements = Settlements(self.scripts, self.epoch, self.keeping, self.lock_ttl_ms)
        waits = settings.lock_recheck, settings.lock_recheck_max, settings.lock_aging
        self._waits = [round(seconds * 1e6) for seconds in waits]

    def follow(self) -> None:
        """Reconnect as soon as the Redis master is replaced, until `aclose`."""
        finder = self.client.endpoint.finder
        if finder is not None and finder.is_announced:
            self._following = asyncio.create_task(follow(finder, self._move), name="follow")

    async def _move(self) -> None:
        logger.warning("Redis master replaced: reconnecting to the new one")
        self.client.endpoint.leave()

    async def now(self) -> datetime:
        """Return the server's wall clock, which schedules and due times of clients use."""
        return await wall_now(self.client) + self.moved

    async def logical_now(self) -> datetime:
        """Return the clock of leases and delays; it compensates for steps of the server's clock."""
        return await logical_now(self.client, self.prefix)

    async def _read_clock(self) -> None:
        sent = steady()
        now = await self.logical_now()
        self.epoch.clock.look(Reading(sent, steady(), microseconds(now)))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        await self._submissions.aclose()
        await self._settlements.aclose()
        await self.wakes.aclose()
        await self._blocking.aclose()
        await self.client.aclose()


def in_microseconds(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)
