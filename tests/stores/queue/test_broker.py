"""The life of a task in Redis, script by script, on a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
import records
from clients import broker_at
from msgspec.structs import replace
from servers import RedisServer
from stores.beats import beat
from waits import WAIT_SECONDS

from nonet.base.errors import BrokerFullError
from nonet.stores.namespace.figures import Measures
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery, takes_slot
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission


def make_broker(url: str, **changes: Any) -> Broker:
    return broker_at(url, **changes)


def task(id: str, stream: str = "normal:small", locks: str = "", **fields: Any) -> Submission:
    return Submission(id, "probe:Task", stream, b"envelope", locks, **fields)


LONG_AGO = 10**12  # µs: due since then, whatever the task has waited for


async def fetch(broker: Broker, free: int = 10, worker: str = "small-a") -> list[Delivery]:
    deliveries, _ = await broker.fetch(worker, "small", free, room=free, burials=free)
    return deliveries


async def fetch_one(broker: Broker, worker: str = "small-a") -> Delivery:
    (delivery,) = await fetch(broker, 1, worker)
    return delivery


async def record(broker: Broker, id: str) -> dict[str, str]:
    found = await records.hgetall(broker.client, f"{broker.prefix}t:{id}")
    return {name.decode(): value.decode() for name, value in records.paired(found).items()}


async def open_group(
    broker: Broker, total: int, parent: str = "", policy: str = "all_success"
) -> Groups:
    """A group that submits ``g.ok``, or ``g.bad`` on failure."""
    groups = Groups(broker.client, "test")
    ok, bad = (Submission(f"g.{id}", "probe:End", "normal:small", b"e") for id in ("ok", "bad"))
    options = {"policy": policy, "ttl_seconds": 60, "total": total}
    await groups.open("g", parent, **options, callback=ok, on_failure=bad)
    return groups


async def in_an_hour(broker: Broker) -> int:
    """As a submission takes it: µs by the clock on the wall."""
    return round((await broker.now()).timestamp() * 1e6) + 3_600_000_000


async def until_due(broker: Broker, id: str) -> None:
    """Make a delayed or waiting task due now and promote it."""
    await broker.client.zadd(f"{broker.prefix}tasks:delayed", {id: LONG_AGO})
    assert (await broker.promote()).moved >= 1


async def lapse(broker: Broker, delivery: Delivery) -> None:
    """Let the lease of a delivery run out, as if no beat had renewed it for a minute."""
    place = (broker.prefix + delivery.stream_key, "workers", "small-a", 0, [delivery.entry])
    await broker.client.xclaim(*place, idle=60_000, justid=True)


class TestSubmit:
    async def test_large_messages_go_in_several_scripts(self, broker: Broker) -> None:
        """A bulk of large messages is cut by bytes, so that no script holds Redis up."""
        envelope = bytes(600_000)
        many = [Submission(f"a{i}", "p:T", "normal:small", envelope) for i in range(5)]
        before = (await broker.client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})
        assert await broker.submit([*many, many[0]]) == [True] * 5 + [False]
        after = (await broker.client.info("commandstats"))["cmdstat_evalsha"]
        assert after["calls"] - before["calls"] == 6

    async def test_full_memory_refuses_submits_but_not_settles(self, broker: Broker) -> None:
        """At maxmemory a submit fails loudly and what runs can still be settled."""
        await broker.submit([task("a")])
        delivery = await fetch_one(broker)
        await broker.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(BrokerFullError, match="out of memory"):
                await broker.submit([task("b")])
            assert await broker.settle(delivery, "done", b"result") == "OK"
        finally:
            await broker.client.config_set("maxmemory", 0)
        assert await broker.submit([task("b")]) == [True]


class TestFetch:
    async def test_depth_counts_queued_and_running(self, broker: Broker) -> None:
        """A settled task leaves its stream; queued and running ones are its length."""
        await broker.submit([task("a"), task("b"), task("c")])
        measures = Measures(broker.client, "test", 900)
        delivery = await fetch_one(broker)
        queue = (await measures.figures()).streams["normal", "small"]
        assert (queue.depth, queue.in_flight) == (3, 1)
        await broker.settle(delivery, "done", b"")
        queue = (await measures.figures()).streams["normal", "small"]
        assert (queue.depth, queue.in_flight) == (2, 0)

    @pytest.mark.parametrize(
        ("locks", "spoil", "problem"),
        [
            ("M|lock:mutex:job:1||||", "lock:mutex:job:1", "WRONGTYPE"),
            (f"M|lock:mutex:job:1|{2**63}|||", "", "ERR "),
        ],
    )
    async def test_a_delivery_that_fails_half_way_is_tried_again(
        self, broker: Broker, locks: str, spoil: str, problem: str
    ) -> None:
        """Its task waits for a minute with the reason, holds no lock, and then runs."""
        long = Submission(
            "a", "probe:Task", "normal:small", b"long" * 50, f"C|limiter:conc:x||1||\n{locks}"
        )
        await broker.submit([long, task("b")])
        if spoil:
            await broker.client.delete(f"{{test}}:{spoil}")
            await broker.client.sadd(f"{{test}}:{spoil}", "not a string")
        assert (await fetch_one(broker)).id == "b"
        found = await record(broker, "a")
        assert (found["state"], found.get("owner")) == ("waiting", None)
        assert found["blocker"].startswith(problem)
        due = await broker.client.zscore("{test}:tasks:delayed", "a")
        assert 55 < due / 1e6 - (await broker.now()).timestamp() <= 60
        assert await broker.client.xlen("{test}:tasks:normal:small") == 1
        assert await broker.client.exists("{test}:quarantine", "{test}:limiter:conc:x") == 0
        await broker.client.delete(f"{{test}}:{spoil}")
        await records.hset(broker.client, "{test}:t:a", "locks", "")
        await until_due(broker, "a")
        again = await fetch_one(broker)
        assert (again.id, again.attempt) == ("a", 1)

    async def test_dying_tasks_take_no_slot(self, broker: Broker) -> None:
        """A worker gets as many of them as it asks for beside its slots."""
        await broker.submit([task(f"dying-{n}") for n in range(5)])
        for delivery in await fetch(broker):
            await broker.settle(delivery, "dying", b"error")
            await broker.settle(delivery, "back")
        await broker.submit([task("a"), task("b")])
        got, more = await broker.fetch("small-a", "small", 1, burials=2)
        assert [item.id for item in got] == ["a", "dying-0", "dying-1"]
        assert [takes_slot(item.stream_key) for item in got] == [True, False, False]
        assert not more
        got, _ = await broker.fetch("small-a", "small", 0, burials=10)
        assert [item.id for item in got] == ["dying-2", "dying-3", "dying-4"]

    async def test_a_dying_task_that_an_older_release_queued_is_moved(self, broker: Broker) -> None:
        """It is handed over where dying tasks are, not among the others."""
        await broker.submit([task("a")])
        key = "{test}:t:a"
        await records.hset(
            broker.client, key, mapping={"state": "dying", "ticket": "1", "reason": "crash"}
        )
        assert await broker.fetch("small-a", "small", 1) == ([], False)
        (dying,) = await fetch(broker)
        assert (dying.id, dying.state, dying.reason) == ("a", "dying", "crash")

    async def test_fences_grow_when_the_clock_steps_back(self, broker: Broker) -> None:
        """A fence handed out by a clock that was ahead is not handed out again."""
        ahead = await in_an_hour(broker)
        await broker.client.set("{test}:fence", ahead)
        fences = []
        for id in "abc":
            await broker.submit([task(id)])
            fences.append(int((await fetch_one(broker)).fence))
        assert ahead < fences[0] < fences[1] < fences[2]


class TestWake:
    async def wakes(self, broker: Broker, worker: str) -> int:
        return int(await broker.client.llen(f"{broker.prefix}wake:{worker}"))

    async def register(self, broker: Broker, url: str, *workers: str) -> None:
        for worker in workers:
            beat(url, worker=worker)
            assert await fetch(broker, worker=worker) == []

    async def test_a_submit_wakes_the_last_idle_one(self, broker: Broker, redis_url: str) -> None:
        """The most recent one that lives and did not get all it asked for; the others sleep on."""
        await self.register(broker, redis_url, *(f"small-{w}" for w in "abcde"))
        await broker.client.zadd("{test}:workers", {"small-e": 1})
        assert await fetch(broker, worker="small-a") == [], "a poll in vain does not move it up"
        await broker.submit([task("1")])
        assert [await self.wakes(broker, f"small-{w}") for w in "abcde"] == [0, 0, 0, 1, 0]
        assert len(await fetch(broker, 1, "small-c")) == 1
        await broker.submit([task("2")])
        assert [await self.wakes(broker, f"small-{w}") for w in "abcde"] == [0, 1, 0, 1, 0]


class TestWait:
    async def test_waiters_that_gave_up_are_forgotten(self, broker: Broker, redis_url: str) -> None:
        """Clients that no longer ask leave the list; a client that waits is woken by the end."""
        await broker.submit([task("a")])
        gone = [f"client-{n}" for n in range(10)]
        for client in gone:
            await broker.scripts.run("wait", "a", client)
        age = round((await broker.now()).timestamp() * 1e6) - 21_000_000
        await broker.client.zadd("{test}:waiters:a", dict.fromkeys(gone, age))
        results = Results(broker)
        waiting = asyncio.create_task(results.wait("a", WAIT_SECONDS))
        delivery = await fetch_one(broker)
        while await broker.client.zcard("{test}:waiters:a") != 1:
            assert not waiting.done()
        await broker.settle(delivery, "done", b"")
        assert await waiting is not None
        await results.aclose()

    @pytest.mark.server
    async def test_a_wait_for_a_frozen_redis_times_out(self) -> None:
        """A timeout is kept, and reads the same, when Redis does not answer at all."""
        with RedisServer() as server:
            broker = make_broker(server.url)
            await broker.submit([task("a")])
            results = Results(broker)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError, match="task a has not ended after 1 s"):
                    await results.wait("a", 1)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            with pytest.raises(TimeoutError, match="after 0 s"):
                await results.wait("a", 0)
            await broker.settle(await fetch_one(broker), "done", b"")
            assert await results.wait("a", 0) is not None
            await results.aclose()
            await broker.aclose()


class TestDelayed:
    async def test_a_submit_wakes_the_promoter_for_what_is_due_soon(self, broker: Broker) -> None:
        """The promoter looks once a second; a task that is due before that wakes it."""
        now = (await broker.now()).timestamp() * 1e6
        for id, seconds, woken in (("a", 100, 0), ("b", 0.9, 1), ("c", 100, 0)):
            await broker.client.delete("{test}:wake:promoter")
            await broker.submit([task(id, due_us=round(now + seconds * 1e6))])
            assert await broker.client.llen("{test}:wake:promoter") == woken


class TestReclaim:
    async def test_a_dead_entry_behind_many_live_ones_is_found(self, broker: Broker) -> None:
        """The cursor is carried on, so a sweep sees every entry in the end."""
        await broker.submit([task(f"live-{i}") for i in range(1500)])
        deliveries = await fetch(broker, 1500)
        await lapse(broker, deliveries[-1])
        cursors, reclaimed, rounds = new_cursors(), 0, 0
        while not reclaimed:
            reclaimed, cursors = await broker.reclaim("small-b", "small", cursors)
            rounds += 1
            assert rounds < 10
        assert (await fetch_one(broker, "small-b")).id == "live-1499"

    async def test_a_death_before_the_first_beat_is_noticed(self, broker: Broker) -> None:
        """A worker that fetched after a loss of data, and never registered, is forgotten."""
        await broker.submit([task("a")])
        delivery = await fetch_one(broker, "small-dead")
        await lapse(broker, delivery)
        for _ in range(2):  # the first sweep registers it, as gone since then
            await broker.reclaim("small-b", "small", new_cursors())
            await broker.client.zadd("{test}:workers", {"small-dead": 1}, xx=True)
        consumers = await broker.client.xinfo_consumers("{test}:tasks:normal:small", "workers")
        assert "small-dead" not in str(consumers)

    async def test_leaving_removes_the_worker(self, broker: Broker, redis_url: str) -> None:
        """A worker that stops cleanly leaves nothing behind."""
        await TestWake().register(broker, redis_url, "small-a")
        await broker.leave("small-a", "small")
        assert [key async for key in broker.client.scan_iter("*small-a*")] == []
        assert await broker.client.xinfo_consumers("{test}:tasks:normal:small", "workers") == []
        assert await broker.client.zcard("{test}:workers") == 0
        assert await broker.client.zcard("{test}:idle:small") == 0


class TestOversized:
    async def test_an_oversized_checkpoint_is_not_handed_over(self, redis_url: str) -> None:
        """No worker gets more than an attempt of its own may save."""
        broker = make_broker(redis_url, message_limit=1024)
        await broker.submit([task("long"), task("fine")])
        for id, size in (("long", 5000), ("fine", 1000)):
            await broker.client.set(f"{{test}}:c:{id}", bytes(size))
            await records.hset(broker.client, f"{{test}}:t:{id}", "saved", 1)
        assert {item.id: len(item.saved) for item in await fetch(broker)} == {
            "long": 0,
            "fine": 1000,
        }
        await broker.aclose()

    @pytest.mark.parametrize("part", ["envelope", "locks"])
    async def test_an_oversized_message_ends_dead(self, redis_url: str, part: str) -> None:
        """No worker gets an envelope or locks beyond the limit; the reason names the size."""
        broker = make_broker(redis_url, message_limit=1024)
        long = Submission("long", "probe:Task", "normal:small", b"long" * 50)
        await broker.submit([long, task("fine")])
        await records.hset(broker.client, "{test}:t:long", part, bytes(5000))
        assert [delivery.id for delivery in await fetch(broker)] == ["fine"]
        assert (await broker.client.get("{test}:r:long")).startswith(b"dead|")
        ((_, kept),) = await broker.client.xrange("{test}:quarantine")
        assert kept[b"task"] == b"long" and b"exceeds 1280" in kept[b"reason"]
        await broker.aclose()


async def test_a_stale_worker_changes_nothing(broker: Broker) -> None:
    """After a reclaim the first worker's settle is refused; only one with the fence counts."""
    await broker.submit([task("a")])
    first = await fetch_one(broker)
    await lapse(broker, first)
    assert (await broker.reclaim("small-b", "small", new_cursors()))[0] == 1
    second = await fetch_one(broker, "small-b")
    assert await broker.settle(first, "done", b"first") == "STALE"
    await broker.submit([task("b")])
    for delivery in (second, await fetch_one(broker)):
        older = replace(delivery, fence=first.fence)  # of data that Redis has lost since
        for outcome in ("done", "retry"):
            assert await broker.settle(older, outcome, b"older") == "STALE"
    assert await broker.settle(second, "done", b"second") == "OK"
    assert await broker.settle(first, "done", b"first") == "STALE"
    assert (await broker.client.get("{test}:r:a")).endswith(b"|second")
