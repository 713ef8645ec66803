"""Hints: who gets them, when, and what happens to those of processes that died."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from row_tables import Instance

from nonet import Nonet
from nonet.pipelines import RowDatabase, Rows
from nonet.stores.namespace.hints import Hints

pytestmark = pytest.mark.server
INSTANCES = Rows(Instance)


@pytest.fixture
async def hints(nonet: Nonet) -> Hints:
    """Two processes listen to the table of instances: ``a`` and ``b``."""
    for client in ("a", "b"):
        await nonet.client.hints.listen(client, ["instances"])
    return nonet.client.hints


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


async def received(nonet: Nonet, redis: Redis, client: str) -> Any:
    """What the wake list of a process contains, once all hints are sent."""
    await nonet.client.hints.aclose()
    return redis.lrange(f"{{test}}:wake:{client}", 0, -1)


async def test_a_hint_follows_the_commit(
    database: RowDatabase, add: Any, nonet: Nonet, redis: Redis, hints: Hints
) -> None:
    """Not the end of a savepoint, and never a rollback; many touches are one hint for each."""
    keys = await add(*(Instance() for _ in range(20)))
    async with database.sessions() as session:
        await INSTANCES.touch(session, keys)
        await session.rollback()
    async with database.sessions.begin() as session:
        async with session.begin_nested():
            await INSTANCES.touch(session, keys)
        assert await received(nonet, redis, "a") == []
        inner = await session.begin_nested()
        await inner.rollback()
    for client in ("a", "b"):
        assert await received(nonet, redis, client) == [b"hint:instances"]
    for key in keys:
        async with database.sessions.begin() as session:
            await INSTANCES.touch(session, [key])
    assert await received(nonet, redis, "a") == [b"hint:instances"]


async def test_hints_of_a_forgetful_redis_come_back(redis: Redis, hints: Hints) -> None:
    """After a flush no process listens until it registers again, which it does every 10 s."""
    redis.flushall()
    assert await hints.send({"instances"}) == 0
    await hints.listen("a", ["instances"])
    assert await hints.send({"instances"}) == 1


async def test_dead_processes_get_no_hints(redis: Redis, hints: Hints) -> None:
    assert await hints.send({"instances"}) == 2
    assert 0 < redis.pttl("{test}:wake:a") <= 10_000
    redis.zadd("{test}:hints:instances", {"a": 1})  # it said so long ago
    redis.delete("{test}:wake:a", "{test}:wake:b")
    assert await hints.send({"instances"}) == 1
    assert redis.zrange("{test}:hints:instances", 0, -1) == [b"b"]
    await hints.leave("b", ["instances"])
    assert await hints.send({"instances"}) == 0
