"""Inspects a namespace and its server, for `findings.diagnosis` and before a daemon starts."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from redis.exceptions import NoPermissionError

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError
from nonet.base.keys import prefix, stream
from nonet.base.loop import in_own_thread
from nonet.base.streams import KINDS, Priority, Size
from nonet.rules.findings.diagnosis import Row
from nonet.rules.findings.servers import Replication, Server, refusals
from nonet.stores.connection.redis import ping, script
from nonet.stores.connection.topology import read_place
from nonet.stores.connection.unreadable import readable_hash, readable_value, whole
from nonet.stores.queue.broker import Broker

logger = logging.getLogger(__name__)

# Entries in one call; each call blocks all other clients of the server.
_PAGE = 200
_STREAM_OF_RECORD = 11


class Inspection:
    """Reads one namespace, over a broker's connections; changes nothing."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._prefix = prefix(namespace)

    async def check(self, *, allow_eviction: bool) -> None:
        """Check that a daemon can run on this server.

        Args:
            allow_eviction: accept that Redis may drop keys when its memory is full.

        Raises:
            ConfigurationError: Redis is too old, may evict keys, or denies a needed command.
            ServerUnreachableError: Redis does not answer.
        """
        await ping(self._broker.client)
        for finding in refusals(await self._info(), await self.denied()):
            if finding.what == "eviction" and allow_eviction:
                logger.warning("%s (NONET_ALLOW_EVICTION)", finding.problem)
                continue
            way_out = " or set NONET_ALLOW_EVICTION=1" if finding.what == "eviction" else ""
            raise ConfigurationError(f"Redis: {finding.problem}; {finding.next_step}{way_out}")
        await self._broker.ping()  # runs a script that writes, which fails on a replica

    async def denied(self) -> list[str]:
        """Return the needed commands that the ACL denies to this user."""
        found = [name.decode() for name in await self._broker.scripts.run("probe")]
        return found if await self._may_block() else [*found, "blpop"]

    async def rows(self) -> AsyncIterator[Row]:
        """Yield the rows of the script ``inspect``, page by page."""
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
                if row[0] == b"more":  # a large key has further pages
                    walks.append((row[1], row[2]))
                    continue
                row = [
                    part.decode(errors="replace") if isinstance(part, bytes) else part
                    for part in row
                ]
                if row[0] == "record":
                    met[row[_STREAM_OF_RECORD]] += 1
                yield row
        after = await self._active()
        for stream_name in sorted({*before, *after, *met}):
            count = after[stream_name]
            # Compare only streams in which no task was added or ended meanwhile.
            if before[stream_name] == count != met[stream_name]:
                yield ["count", stream_name, count, met[stream_name]]

    async def _active(self) -> Counter[str]:
        """The count of active tasks by stream."""
        flat = await self._read(self._broker.client.hgetall(f"{self._prefix}active"), {})
        sums: Counter[str] = Counter()
        for name, number in readable_hash("active", flat, whole).items():
            sums[name.partition("|")[0]] += number
        return sums

    async def server(self, sql: str = "") -> Server:
        """Return what Redis and the daemons report of themselves.

        Args:
            sql: state of the tables, or why they cannot be read.
        """
        client, key = self._broker.client, self._prefix
        info = await self._info()
        clock, logical = await self._broker.now(), await self._broker.logical_now()
        first = await self._read(client.zrange(f"{key}tasks:delayed", 0, 0, withscores=True), [])
        late = logical.timestamp() - first[0][1] / 1e6 if first else 0.0
        hooks: dict[bytes, bytes] = await self._read(client.hgetall(f"{key}startup"), {})
        refused = await self._read(client.hget(f"{key}config", "problem"), None) or b""
        leader, silent, report = await self._leader(logical)
        return Server(
            info=info,
            clock_ahead=(clock - datetime.now(UTC)).total_seconds(),
            leader=leader,
            leader_silent=silent,
            late_seconds=max(0.0, late),
            failed_hooks=_in_state("failed", hooks),
            slow_hooks=tuple(_in_state("running", hooks)),
            broken=report.get("broken", {}),
            config_problem=refused.decode(errors="replace"),
            remembers=report.get("remembers", ""),
            sql=sql,
            replication=await self._replication(info),
            refusal=await self.refusal(),
        )

    async def refusal(self) -> str:
        """Return why Redis refuses to write; empty if it does not."""
        try:
            # Not `Scripts.run`, which would repeat it as long as a failover may take.
            await self._broker.client.eval(script("writable")[0], 1, self._prefix)
        except ConfigurationError:
            return ""
        except NonetError as error:
            return str(error)
        return ""

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
        """Delay of a full sync in seconds; None if CONFIG GET is refused."""
        client = self._broker.client
        try:
            config = await client.config_get("repl-diskless-sync*")
        except NonetError:
            return None
        is_at_once = config.get("repl-diskless-sync") == "no"
        return 0.0 if is_at_once else float(config.get("repl-diskless-sync-delay", 0))

    async def _read(self, asked: Awaitable[Any], otherwise: Any) -> Any:
        """The answer, or `otherwise` if the key has another type, which a row reports."""
        try:
            return await asked
        except (ServerUnreachableError, ConfigurationError):
            raise
        except NonetError:
            return otherwise

    async def _leader(self, now: datetime) -> tuple[str, float, dict[str, Any]]:
        """The leader, the seconds since it extended its lease, and what it reports of itself.

        All are empty while no scheduler leads.
        """
        asked = self._broker.client.hmget(f"{self._prefix}leader", "owner", "expiry", "info")
        owner, expiry, info = await self._read(asked, (None, None, None))
        ends = readable_value("leader", "HDEL", "expiry", lambda: int(expiry or 0), 0) / 1e6
        if not owner or ends <= now.timestamp():
            return "", 0.0, {}
        report = readable_value("leader", "HDEL", "info", lambda: _object(info), dict[str, Any]())
        ttl = report.get("ttl")
        left = ends - now.timestamp()
        silent = max(0.0, ttl - left) if isinstance(ttl, int | float) else 0.0
        return owner.decode(errors="replace"), silent, report

    async def _info(self) -> Mapping[str, Any]:
        """The answer of INFO; empty, with a warning, if the ACL denies it."""
        try:
            info: Mapping[str, Any] = await self._broker.client.info()
            return info
        except ConfigurationError as error:
            logger.warning("could not read version and eviction policy of Redis: %s", error)
            return {}

    async def _may_block(self) -> bool:
        """Whether the ACL allows BLPOP, which workers wait with and no script uses."""
        client, key = self._broker.client, f"{self._prefix}probe:BLPOP"
        async with client.pipeline(transaction=False) as pipeline:
            # Push first: on an empty list an idle server ends the wait up to 0.1 s late.
            pipeline.rpush(key, "")
            pipeline.pexpire(key, 1000)
            pipeline.blpop([key], timeout=0.01)
            *_, answer = await pipeline.execute(raise_on_error=False)
        return not isinstance(answer, NoPermissionError)


def _object(text: bytes | None) -> dict[str, Any]:
    return msgspec.json.decode(text or b"{}", type=dict[str, Any])


def _in_state(wanted: str, hooks: Mapping[bytes, bytes]) -> dict[str, str]:
    """The start-up hooks in a state, with their problems."""
    found = {}
    for name, value in hooks.items():
        _, _, how = value.decode(errors="replace").partition("|")
        state, _, reason = how.partition("|")
        if state == wanted:
            found[name.decode(errors="replace")] = reason
    return found
