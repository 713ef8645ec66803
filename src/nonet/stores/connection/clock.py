"""The time by which leases and delays count: the clock of Redis, corrected after a step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.stores.connection.redis import AsyncRedis

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def wall_now(client: AsyncRedis) -> datetime:
    """Return the time of the server's clock, which an administrator may set."""
    seconds, microseconds = await client.time()
    return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)


async def logical_now(client: AsyncRedis, prefix: str) -> datetime:
    """Return the time that the scripts use, which stays steady when the server's clock is set."""
    return await wall_now(client) + await correction(client, prefix)


async def correction(client: AsyncRedis, prefix: str) -> timedelta:
    """Return the offset that the scripts add to the server's clock to undo its steps."""
    value = await client.get(f"{prefix}clock")
    return timedelta(microseconds=int(value or 0))


def microseconds(instant: datetime) -> int:
    """Convert to Unix time in microseconds, the unit of the scripts."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def instant(microseconds: int | str | bytes) -> datetime:
    """Convert from the Unix microseconds that a script writes."""
    return _EPOCH + timedelta(microseconds=int(microseconds))
