"""What stores read with plain commands, on fakeredis: without a server, for `make quick`.

fakeredis cannot run the scripts that write this, so each test writes the keys itself, as
`nonet.base.keys` describes them. That scripts write them so is tested on a real server, in
``namespace/`` and ``queue/``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest

from nonet.stores.namespace.events import Events
from nonet.stores.queue.groups import Groups

PREFIX = "{test}:"


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    """An empty server of this test alone, without the connection that runs scripts."""
    async with fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer()) as made:
        made.lane = None
        yield made


async def log(client: Any, kind: str, text: str) -> None:
    fields = {"at": 1_000_000, "kind": kind, "who": "ann@host 1", "text": text}
    await client.xadd(f"{PREFIX}events", fields)


class TestEvents:
    async def test_the_last_of_a_kind_are_read_over_pages(self, client: Any) -> None:
        """The newest last, however many of other kinds came between."""
        for n in range(3):
            await log(client, "limits", f"limit {n}")
            for _ in range(300):
                await log(client, "config", "configuration")
        events = Events(client, "test")
        assert [event.text for event in await events.last(2, kind="limits")] == [
            "limit 1",
            "limit 2",
        ]
        assert [event.kind for event in await events.last(1)] == ["config"]

    async def test_following_gives_each_event_once(self, client: Any) -> None:
        """First the last ones, then what is new; nothing new is an empty list."""
        for n in range(3):
            await log(client, "config", str(n))
        following = Events(client, "test").follow(2)
        assert [event.text for event in await following.new()] == ["1", "2"]
        assert await following.new() == []
        await log(client, "config", "3")
        assert [event.text for event in await following.new()] == ["3"]

    async def test_following_begins_again_when_redis_was_emptied(self, client: Any) -> None:
        """A stream that ends before what was seen is another one: all of it is new."""
        await client.xadd(
            f"{PREFIX}events", {"at": 0, "kind": "a", "who": "", "text": "old"}, "9-9"
        )
        following = Events(client, "test").follow(10)
        await following.new()
        await client.flushall()
        await client.xadd(
            f"{PREFIX}events", {"at": 0, "kind": "a", "who": "", "text": "new"}, "1-1"
        )
        assert [event.text for event in await following.new()] == ["new"]


async def open_group(client: Any, id: str, opened: int, **fields: str) -> None:
    """A group of two children, of which one has ended."""
    text = {"state": "sealed", "total": 2, "failed": 0, "policy": "all_done", "parent": "p"}
    await client.hset(f"{PREFIX}g:{id}", mapping={**text, "opened": opened, **fields})
    await client.hset(f"{PREFIX}g:{id}:results", f"{id}.0", b"done|1|")
    await client.sadd(f"{PREFIX}g:{id}:pending", f"{id}.1")
    for which in ("callback", "on_failure"):
        await client.hset(f"{PREFIX}g:{id}:{which}", mapping={"name": f"m:{which}", "id": which})
    await client.zadd(f"{PREFIX}groups", {id: opened})


class TestGroups:
    async def test_a_failed_group_names_what_it_submits_on_failure(self, client: Any) -> None:
        """Not the callback, which is never submitted then."""
        await open_group(client, "g", 1, state="fired", outcome="failed", failed="1")
        assert (await Groups(client, "test").status("g")).callback == "m:on_failure"
