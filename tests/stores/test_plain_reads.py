"""What stores read with plain commands, on fakeredis: without a server, for `make quick`.

fakeredis cannot run the scripts that write this, so each test writes the keys itself, as
`nonet.base.keys` describes them. That scripts write them so is tested on a real server, in
``namespace/`` and ``queue/``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest

from nonet.base.errors import NotFoundError
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.limits import Limits
from nonet.stores.namespace.quarantine import Quarantine
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
    async def test_a_group_is_read_whole(self, client: Any) -> None:
        """Its state, its children in their order, and which of them have not ended."""
        await open_group(client, "g", 1_000_000)
        groups = Groups(client, "test")
        status = await groups.status("g")
        assert (status.state, status.total, status.pending, status.outcome) == ("sealed", 2, 1, "")
        assert (status.callback, status.callback_id) == ("m:callback", "callback")
        assert status.opened.timestamp() == 1
        (first, ended), second = await groups.results("g")
        assert (first, ended and ended.state, second) == ("g.0", "done", ("g.1", None))
        assert await groups.pending("g") == ["g.1"]

    async def test_a_failed_group_names_what_it_submits_on_failure(self, client: Any) -> None:
        """Not the callback, which is never submitted then."""
        await open_group(client, "g", 1, state="fired", outcome="failed", failed="1")
        assert (await Groups(client, "test").status("g")).callback == "m:on_failure"

    async def test_the_newest_groups_come_first(self, client: Any) -> None:
        """A group that expires while it is listed is left out."""
        for n in range(4):
            await open_group(client, f"g{n}", n + 1)
        await client.delete(f"{PREFIX}g:g3")
        assert [group.id for group in await Groups(client, "test").list(2)] == ["g2", "g1"]

    async def test_an_unknown_group_is_refused(self, client: Any) -> None:
        """By its name, whatever is asked of it."""
        groups = Groups(client, "test")
        for ask in (groups.status, groups.results, groups.pending):
            with pytest.raises(NotFoundError, match="group 'none' is unknown"):
                await ask("none")


class TestLimits:
    async def test_a_limit_is_read_with_its_origin_and_use(self, client: Any) -> None:
        """What holds, what the configuration says instead, and what counts for it now."""
        address = LimitAddress("storage_element", "CERN-DST", "RemoveFile")
        limits = Limits(client, "test")
        assert (await limits.published(), await limits.all()) == ("", [])
        for name, value in (("", "5"), (":config", "7"), (":live", "5 1000000 ann@host 1")):
            await client.hset(f"{PREFIX}limits{name}", address.field, value)
        seconds, _ = await client.time()
        for task, expiry in (("held", seconds + 60), ("ended", seconds - 60)):
            await client.zadd(f"{PREFIX}{address.counter}", {task: expiry * 1_000_000})
        (found,) = await limits.all()
        assert (found.address, found.limit, found.configured) == (address, Limit(5), Limit(7))
        assert (found.by, found.used) == ("ann@host 1", 1)


class TestQuarantine:
    async def test_entries_are_read_the_newest_first(self, client: Any) -> None:
        """Over pages, as far as is asked for; what a writer left out is empty."""
        for n in range(120):
            await client.xadd(f"{PREFIX}quarantine", {"bytes": b"x" * 4, "reason": str(n)})
        await client.xadd(f"{PREFIX}quarantine", {"bytes": b"abc", "size": 9})
        broker: Any = SimpleNamespace(client=client, keeping="")
        found = [entry async for entry in Quarantine(broker, "test").newest(102)]
        assert len(found) == 102
        newest, second = found[:2]
        assert (newest.size, newest.data, newest.is_whole, newest.reason) == (9, b"abc", False, "")
        assert (second.reason, second.is_whole) == ("119", True)
        assert await Quarantine(broker, "test").get(newest.entry) == newest

    async def test_an_entry_that_is_not_there_is_refused(self, client: Any) -> None:
        """Also what cannot be the id of one, without a question to Redis."""
        broker: Any = SimpleNamespace(client=client, keeping="")
        for entry in ("1-1", "never"):
            with pytest.raises(NotFoundError):
                await Quarantine(broker, "test").get(entry)
