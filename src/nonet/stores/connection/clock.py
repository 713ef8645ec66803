"""The clock that leases and delays count by: the server's, corrected when that is set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.stores.connection.redis import AsyncRedis, server_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def wall_now(client: AsyncRedis) -> datetime:
    """The server's own clock, which somebody may set."""
    async with server_errors(client):
        seconds, microseconds = await client.time()
    return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)


async def logical_now(client: AsyncRedis, prefix: str) -> datetime:
    """What the scripts call now: it goes on evenly when the server's clock is set."""
    return await wall_now(client) + await correction(client, prefix)


async def correction(client: AsyncRedis, prefix: str) -> timedelta:
    """What the leader has added to the server's clock since that was set; else zero."""
    async with server_errors(client):
        # Of another type it counts as nothing, as in the scripts: MGET says so, GET complains.
        (value,) = await client.mget(f"{prefix}clock")
    try:
        return timedelta(microseconds=int(value or 0))
    except ValueError:
        return timedelta(0)


def microseconds(instant: datetime) -> int:
    """Unix microseconds, as the scripts count."""
    return (instant - _EPOCH) // timedelta(microseconds=1)
