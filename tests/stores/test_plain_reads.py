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
