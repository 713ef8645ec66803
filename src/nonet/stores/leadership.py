"""The scheduler's lease, and the occurrences that it fires under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.keys import prefix
from nonet.stores.broker import Submission
from nonet.stores.redis import AsyncRedis, Scripts, server_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads.

    Attributes:
        expiry: end of the lease unless it is extended.
        info: what the leader says of itself, JSON.
    """

    owner: str
    term: str
    expiry: datetime
    info: str


class Leadership:
    """Leader lease and periodic state of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def lead(self, owner: str, ttl_seconds: float, info: str) -> str | None:
        """Take or extend the lease: the term, or None while somebody else leads."""
        term = await self._scripts.run("lead", owner, round(ttl_seconds * 1000), info)
        return term.decode() or None

    async def resign(self, owner: str, term: str) -> None:
        """Give the lease back, if it is still ours."""
        await self._scripts.run("resign", owner, term)

    async def leader(self) -> Leader | None:
        """Who leads now, by the last lease taken; None if nobody does."""
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}leader")
        if not found:
            return None
        text = {key.decode(): value.decode() for key, value in found.items()}
        return Leader(text["owner"], text["term"], _instant(text["expiry"]), text.get("info", ""))

    async def fire(
        self, term: str, entry: str, occurrence: datetime, submission: Submission
    ) -> str:
        """Submit one occurrence: ``FIRED``, ``KNOWN``, ``WAITING`` or ``DEPOSED``."""
        answer = await self._scripts.run(
            "fire", term, entry, _microseconds(occurrence), *submission.spec()
        )
        return str(answer.decode())

    async def plan(self, entries: list[str], now: datetime) -> None:
        """Remember since when entries are planned, unless they are known already."""
        async with server_errors(self._client), self._client.pipeline() as pipe:
            for entry in entries:
                pipe.hsetnx(f"{self._prefix}periodic", entry, f"{_microseconds(now)}|")
            await pipe.execute()

    async def last_fired(self) -> dict[str, datetime]:
        """When each entry fired last, or since when it is planned."""
        async with server_errors(self._client):
            found: Mapping[bytes, bytes] = await self._client.hgetall(f"{self._prefix}periodic")
        return {
            entry.decode(): _instant(value.partition(b"|")[0].decode())
            for entry, value in found.items()
        }

    async def forget(self, entries: list[str]) -> None:
        """Drop the state of entries that are planned no more."""
        if entries:
            async with server_errors(self._client):
                await self._client.hdel(f"{self._prefix}periodic", *entries)
                await self._client.hdel(f"{self._prefix}periodic:next", *entries)

    async def next_of(self, entry: str) -> datetime | None:
        """The stored next occurrence of an entry whose schedule is asked only once."""
        async with server_errors(self._client):
            found = await self._client.hget(f"{self._prefix}periodic:next", entry)
        return _instant(found.decode()) if found else None

    async def store_next(self, entry: str, occurrence: datetime) -> None:
        """Keep what such a schedule answered."""
        async with server_errors(self._client):
            await self._client.hset(
                f"{self._prefix}periodic:next", entry, _microseconds(occurrence)
            )


def _instant(microseconds: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
