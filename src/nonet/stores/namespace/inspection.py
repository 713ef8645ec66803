"""Looks at a namespace and its server: for `nonet.rules.diagnosis`, and before a daemon starts."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import NoPermissionError

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError
from nonet.base.keys import prefix, stream
from nonet.base.loop import in_own_thread
from nonet.base.streams import KINDS, Priority, Size
from nonet.rules.diagnosis import Replication, Row, Server, refusals
from nonet.stores.connection.redis import ping, server_errors
from nonet.stores.connection.topology import read_place
from nonet.stores.queue.broker import Broker

logger = logging.getLogger(__name__)

# Each call holds up everybody else on this server.
_PAGE = 200
_STREAM_OF_RECORD = 11


class Inspection:
    """Reads one namespace, over a broker's connections; changes nothing."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._prefix = prefix(namespace)

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
            stream(priority, size).replace("tasks", kind)
            for kind in KINDS
            for priority in Priority
            for size in Size
        ]
        before, met = await self._active(), Counter[str]()
        walks: deque[tuple[str | bytes, bytes]] = deque()
        walks.extend((what, b"0") for what in ("keys", "due", "deadlines", *streams))
        while walks:
            what, cursor = walks.popleft()
            cursor, *rows = await self._broker.scripts.run("inspect", what, cursor, _PAGE)
            if cursor != b"0":
                walks.appendleft((what, cursor))
            for row in rows:
                if row[0] == b"more":  # of a large key, page by page
                    walks.append((row[1], row[2]))
                    continue
                told = [
                    part.decode(errors="replace") if isinstance(part, bytes) else part
                    for part in row
                ]
                if told[0] == "record":
                    met[told[_STREAM_OF_RECORD]] += 1
                yield told
        after = await self._active()
        for stream_name in sorted({*before, *after, *met}):
            said = after[stream_name]
            # Where a task came or ended meanwhile, nobody knows how many there were.
            if before[stream_name] == said != met[stream_name]:
                yield ["count", stream_name, said, met[stream_name]]

    async def _active(self) -> Counter[str]:
        """How many tasks of each stream are counted."""
        flat = await self._read(self._broker.client.hgetall(f"{self._prefix}active"), {})
        sums: Counter[str] = Counter()
        for name, number in flat.items():
            sums[name.decode(errors="replace").partition("|")[0]] += int(number)
        return sums

    async def server(self, sql: str = "", *, dying: int = 0) -> Server:
        """What Redis and the daemons say of themselves.

        Args:
            sql: state of the tables, or why they cannot be asked.
            dying: how many rows tell of a task that waits for SQL.
        """
        client, key = self._broker.client, self._prefix
        info = await self._info()
        clock, logical = await self._broker.now(), await self._broker.logical_now()
        first = await self._read(client.zrange(f"{key}tasks:delayed", 0, 0, withscores=True), [])
        late = logical.timestamp() - first[0][1] / 1e6 if first else 0.0
        hooks: dict[bytes, bytes] = await self._read(client.hgetall(f"{key}startup"), {})
        refused = await self._read(client.hget(f"{key}config", "problem"), None) or b""
        leader, told = await self._leader(logical)
        return Server(
            info=info,
            denied=await self.denied(),
            clock_ahead=(clock - datetime.now(UTC)).total_seconds(),
            leader=leader,
            late_seconds=late if 0 < late < math.inf else 0.0,
            unserved=await self._unserved(),
            failed_hooks=_in_state("failed", hooks),
            slow_hooks=tuple(_in_state("running", hooks)),
            broken=told.get("broken", {}),
            config_problem=refused.decode(errors="replace"),
            remembers=told.get("remembers", ""),
            quarantined=int(await self._read(client.xlen(f"{key}quarantine"), 0)),
            dying=dying,
            sql=sql,
            replication=await self._replication(info),
        )

    async def _replication(self, info: Mapping[str, Any]) -> Replication | None:
        finder = read_place(self._broker.url, self._prefix).finder
        services = await in_own_thread(finder.services) if finder is not None else []
        if not services and not int(info.get("connected_slaves", 0)):
            return None

        def seconds(name: str) -> list[float]:
            return [int(service[name]) / 1000 for service in services]

        return Replication(
            await self._sync_delay(),
            services[0]["name"] if services else "",
            seconds("down-after-milliseconds"),
            seconds("failover-timeout"),
        )

    async def _sync_delay(self) -> float | None:
        """Seconds for which a full sync waits; None if CONFIG GET is refused."""
        client = self._broker.client
        try:
            async with server_errors(client):
                told = await client.config_get("repl-diskless-sync*")
        except ServerUnreachableError:
            raise
        except NonetError:
            return None
        is_at_once = told.get("repl-diskless-sync") == "no"
        return 0.0 if is_at_once else float(told.get("repl-diskless-sync-delay", 0))

    async def _read(self, asked: Awaitable[Any], otherwise: Any) -> Any:
        """The answer; `otherwise` if the key is of another type, which a row tells."""
        try:
            async with server_errors(self._broker.client):
                return await asked
        except (ServerUnreachableError, ConfigurationError):
            raise
        except NonetError:
            return otherwise

    async def _leader(self, now: datetime) -> tuple[str, dict[str, Any]]:
        """Who leads and what it says of itself; nobody, if there is garbage, which a row tells."""
        asked = self._broker.client.hmget(f"{self._prefix}leader", "owner", "expiry", "info")
        owner, expiry, info = await self._read(asked, (None, None, None))
        if not owner or not (expiry or b"").isdigit() or int(expiry) <= now.timestamp() * 1e6:
            return "", {}
        try:
            told = json.loads(info or b"{}")
        except ValueError:
            told = {}
        return str(owner.decode(errors="replace")), told if isinstance(told, dict) else {}

    async def _unserved(self) -> Sequence[str]:
        client, now = self._broker.client, await self._broker.logical_now()
        registered = client.zrangebyscore(
            f"{self._prefix}workers", round(now.timestamp() * 1e6), "+inf"
        )
        alive = await self._read(registered, [])
        served = {name.decode(errors="replace").partition("-")[0] for name in alive}
        found = []
        for size in Size:
            names = [self._prefix + stream(priority, size) for priority in Priority]
            if size not in served and any(
                [await self._read(client.xlen(name), 0) for name in names]
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
        client, key = self._broker.client, f"{self._prefix}probe:BLPOP"
        async with server_errors(client), client.pipeline(transaction=False) as pipeline:
            # Of an empty list an idle server would see the end of the wait up to 0.1 s late.
            pipeline.rpush(key, "")
            pipeline.pexpire(key, 1000)
            pipeline.blpop([key], timeout=0.01)
            *_, answer = await pipeline.execute(raise_on_error=False)
        return not isinstance(answer, NoPermissionError)


def _in_state(wanted: str, hooks: Mapping[bytes, bytes]) -> dict[str, str]:
    """The start-up hooks in a state, with what went wrong."""
    found = {}
    for name, value in hooks.items():
        _, _, how = value.decode(errors="replace").partition("|")
        state, _, reason = how.partition("|")
        if state == wanted:
            found[name.decode(errors="replace")] = reason
    return found
