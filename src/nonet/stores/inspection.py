"""Looks at a namespace and its server: facts for `nonet.diagnosis`; whether daemons may start."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from nonet.diagnosis import Row, Server, refusals
from nonet.errors import ConfigurationError
from nonet.keys import stream
from nonet.stores.broker import PRIORITIES, SIZES, Broker
from nonet.stores.leadership import Leadership
from nonet.stores.redis import ping, server_errors

logger = logging.getLogger(__name__)

_PAGE = 1000


class Inspection:
    """Reads one namespace, over a broker's connections; changes nothing."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._prefix = broker.prefix
        self._leadership = Leadership(broker, namespace)

    async def check(self, *, allow_eviction: bool) -> None:
        """Return if a daemon may start on this server.

        Args:
            allow_eviction: although Redis may drop keys when its memory is full.

        Raises:
            ConfigurationError: it is too old, may evict, or denies what is needed.
            ServerUnreachableError: it does not answer.
        """
        await ping(self._broker.client)
        for finding in refusals(await self._info(), await self.denied()):
            if finding.what == "eviction" and allow_eviction:
                logger.warning("%s (NONET_ALLOW_EVICTION)", finding.problem)
                continue
            way_out = " or set NONET_ALLOW_EVICTION=1" if finding.what == "eviction" else ""
            raise ConfigurationError(f"Redis: {finding.problem}; {finding.hint}{way_out}")
        await self._broker.ping()  # a script that writes: this may be a replica

    async def denied(self) -> list[str]:
        """Commands that are needed and this user may not use."""
        found = [name.decode() for name in await self._broker.scripts.run("probe")]
        return found if await self._may_block() else [*found, "blpop"]

    async def rows(self) -> AsyncIterator[Row]:
        """What the namespace contains, page by page: the rows of the script ``inspect``."""
        streams = [
            stream(priority, size).replace("tasks:", kind)
            for kind in ("woken:", "tasks:")
            for priority in PRIORITIES
            for size in SIZES
        ]
        for what in ("keys", "due", *streams):
            cursor = b"0"
            while True:
                cursor, *rows = await self._broker.scripts.run("inspect", what, cursor, _PAGE)
                for row in rows:
                    yield [
                        part.decode(errors="replace") if isinstance(part, bytes) else part
                        for part in row
                    ]
                if cursor == b"0":
                    break

    async def server(self, sql: str = "") -> Server:
        """What Redis and the daemons say of themselves.

        Args:
            sql: state of the tables, or why they cannot be asked.
        """
        client, key = self._broker.client, self._prefix
        info = await self._info()
        clock, logical = await self._broker.now(), await self._broker.logical_now()
        leader = await self._leadership.leader()
        async with server_errors(client):
            first = await client.zrange(f"{key}tasks:delayed", 0, 0, withscores=True)
            hooks = await client.hgetall(f"{key}startup")
            quarantined = await client.xlen(f"{key}quarantine")
        late = logical.timestamp() - first[0][1] / 1e6 if first else 0.0
        return Server(
            info=info,
            denied=await self.denied(),
            clock_ahead=(clock - datetime.now(UTC)).total_seconds(),
            leader=leader.owner if leader and leader.expiry > logical else "",
            late_seconds=max(0.0, late),
            unserved=await self._unserved(),
            failed_hooks=_failed(hooks),
            quarantined=int(quarantined),
            sql=sql,
        )

    async def _unserved(self) -> Sequence[str]:
        client, now = self._broker.client, await self._broker.logical_now()
        async with server_errors(client):
            alive = await client.zrangebyscore(
                f"{self._prefix}workers", round(now.timestamp() * 1e6), "+inf"
            )
            served = {name.decode().partition("-")[0] for name in alive}
            found = []
            for size in SIZES:
                names = [stream(priority, size) for priority in PRIORITIES]
                if size not in served and any(
                    [await client.xlen(self._prefix + name) for name in names]
                ):
                    found.append(size)
        return found

    async def _info(self) -> Mapping[str, Any]:
        """What INFO says; a user who may not ask gets nothing, and is told."""
        try:
            async with server_errors(self._broker.client):
                info: Mapping[str, Any] = await self._broker.client.info()
                return info
        except ConfigurationError as error:
            logger.warning("neither version nor eviction policy are known: %s", error)
            return {}

    async def _may_block(self) -> bool:
        """Whether this user may wait for work, which no script does."""
        client = self._broker.client
        try:
            async with server_errors(client):
                await client.blpop([f"{self._prefix}probe:BLPOP"], timeout=0.01)
        except ConfigurationError:
            return False
        return True


def _failed(hooks: Mapping[bytes, bytes]) -> dict[str, str]:
    found = {}
    for name, value in hooks.items():
        _, state, reason = value.decode(errors="replace").split("|", 2)
        if state == "failed":
            found[name.decode(errors="replace")] = reason
    return found
