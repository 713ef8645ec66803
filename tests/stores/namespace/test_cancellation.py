"""Cancelling what does not run: each state, and all that was arranged around a task."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from servers import RedisServer
from stores.queue.test_broker import fetch, fetch_one, lapse, open_group, record, task
from waits import until

from nonet.messages.encryption import NO_KEYS
from nonet.messages.formats import FORMAT
from nonet.messages.message import Envelope, ResultDocument, encode
from nonet.stores.namespace.cancellation import Cancellation, CancelledTasks
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.lock_board import LockBoard
from nonet.stores.queue.broker import Broker, Order, new_cursors
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.places import UNFINISHED, TaskFilter
from nonet.stores.queue.results import Results, parse_ended
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import ConcurrencyLimiter, MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
WHO = "ann@host 7"


@pytest.fixture
def cancellation(broker: Broker) -> Cancellation:
    return Cancellation(broker, None, lambda: False)


async def far_away(broker: Broker) -> int:
    return int((await broker.now()).timestamp() * 1e6) + 3_600_000_000


async def left_of(broker: Broker, *ids: str) -> list[str]:
    """Keys and places that still name one of these tasks."""
    found = []
    async for key in broker.client.scan_iter(match="{test}:*", count=1000):
        name = key.decode()
        kind = (await broker.client.type(key)).decode()
        text = name
        if kind == "set":
            text = str([each.decode() for each in await broker.client.smembers(key)])
        elif kind == "zset":
            text = str(await broker.client.zrange(key, 0, -1))
        elif kind == "stream" and not name.endswith("events"):
            text = str(await broker.client.xrange(key))
        if any(f"'{id}'" in text or name.endswith(f":{id}") for id in ids):
            found.append(name)
    return sorted(name for name in found if not name.startswith("{test}:r:"))


async def kinds(broker: Broker) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in await Events(broker.client, "test").last(10)]


class TestStates:
    async def test_between_two_attempts(
        self, broker: Broker, cancellation: Cancellation, results: Results
    ) -> None:
        """A task that waits for a retry is cancelled, with its errors; its attempt is told."""
        await broker.submit([task("a")])
        delivery = await fetch_one(broker)
        await broker.settle(delivery, "retry", b"error", delay=timedelta(hours=1))
        assert await cancellation.cancel(["a"], WHO) == {"a": "cancelled"}
        assert await left_of(broker, "a") == []
        found = await results.status("a")
        assert found is not None
        assert (found.state, found.attempt, found.reason) == ("cancelled", 1, "cancelled")

    async def test_waiting(self, broker: Broker, cancellation: Cancellation) -> None:
        """A parked task leaves its queues, and who stood behind it gets the lock."""
        await broker.submit([task(id, locks=MUTEX) for id in "abc"])
        holder = (await fetch(broker))[0]
        assert await cancellation.cancel(["b"], WHO) == {"b": "cancelled"}
        assert await left_of(broker, "b") == []
        await broker.settle(holder, "done")
        assert [item.id for item in await fetch(broker)] == ["c"]

    async def test_woken(self, broker: Broker, cancellation: Cancellation) -> None:
        """The places of a woken task are offered to the next at once, not after five seconds."""
        await broker.submit([task(id, locks=MUTEX) for id in "abc"])
        (holder,) = await fetch(broker)
        # Without a registered worker no place would be kept.
        now = int((await broker.now()).timestamp() * 1e6)
        await broker.client.zadd("{test}:workers", {"small-a": now + 60_000_000})
        await broker.settle(holder, "done")
        assert (await record(broker, "b"))["state"] == "queued"
        assert (await record(broker, "b"))["places"]
        assert await cancellation.cancel(["b"], WHO) == {"b": "cancelled"}
        assert await left_of(broker, "b") == []
        assert [item.id for item in await fetch(broker)] == ["c"]

    async def test_running_and_dying(self, broker: Broker, cancellation: Cancellation) -> None:
        """Unless it is asked for, what a worker has stays as it is, and the answer says so."""
        await broker.submit([task("a"), task("b")])
        first, second = await fetch(broker)
        await broker.settle(second, "dying", b"error")
        before = [await record(broker, id) for id in "ab"]
        assert await cancellation.cancel(["a", "b"], WHO) == {"a": "running", "b": "dying"}
        assert [await record(broker, id) for id in "ab"] == before
        assert await broker.settle(first, "done", b"result") == "OK"
        assert await broker.settle(second, "dead", b"result") == "OK"
        assert await kinds(broker) == []

    async def test_ended_and_unknown(self, broker: Broker, cancellation: Cancellation) -> None:
        """An ended task keeps its end; an unknown one is none."""
        await broker.submit([task("a"), task("b")])
        first, second = await fetch(broker)
        await broker.settle(first, "done", b"result")
        await broker.settle(second, "dead", b"result")
        answer = await cancellation.cancel(["a", "b", "c"], WHO)
        assert answer == {"a": "done", "b": "dead", "c": ""}
        assert (await broker.client.get("{test}:r:a")).startswith(b"done|")

    async def test_a_hold_is_no_task(self, broker: Broker, cancellation: Cancellation) -> None:
        """Who waits with a hold is not cancelled by its id."""
        await broker.hold("h1", MUTEX)
        await broker.hold("h2", MUTEX, wait=True)
        assert await cancellation.cancel(["h1", "h2"], WHO) == {"h1": "", "h2": ""}
        await broker.unhold("h2")
        await broker.unhold("h1")

    async def test_twice(self, broker: Broker, cancellation: Cancellation) -> None:
        """Cancelling again answers as the first time; the id stays remembered."""
        await broker.submit([task("a")])
        for _ in range(2):
            assert await cancellation.cancel(["a", "a"], WHO) == {"a": "cancelled"}
        assert await broker.submit([task("a")]) == [False]
        assert await fetch(broker) == []

    async def test_read_but_not_delivered(self, broker: Broker, cancellation: Cancellation) -> None:
        """An entry that a cut fetch has read leaves the worker's hands, too."""
        await broker.submit([task("a")])
        stream = "{test}:tasks:normal:small"
        await broker.client.xgroup_create(stream, "workers", "0")
        await broker.client.xreadgroup("workers", "small-a", {stream: ">"})
        assert await cancellation.cancel(["a"], WHO) == {"a": "cancelled"}
        assert (await broker.client.xpending(stream, "workers"))["pending"] == 0
        assert await broker.client.xlen(stream) == 0


class TestRunning:
    """What a worker has: it is told, and whatever it does then, it is never executed again."""

    async def order(self, broker: Broker, cancellation: Cancellation, locks: str = "") -> Delivery:
        await broker.submit([task("a", locks=locks)])
        delivery = await fetch_one(broker)
        for reason in ("not needed", "again"):
            answer = await cancellation.cancel(["a"], WHO, reason, running=True)
            assert answer == {"a": "cancelling"}
        return delivery

    async def test_the_worker_is_told(self, broker: Broker, cancellation: Cancellation) -> None:
        """Each look of its own worker tells who and why, the first one, until it has ended."""
        delivery = await self.order(broker, cancellation)
        for _ in range(2):
            assert await broker.orders("small-a") == [
                Order("a", delivery.gen, "by ann@host 7: not needed")
            ]
        assert await broker.orders("small-b") == []
        await broker.settle(delivery, "cancelled", encode(ResultDocument("probe:Task", 1, 0.0)))
        assert await broker.orders("small-a") == []
        assert await left_of(broker, "a") == []

    @pytest.mark.parametrize("outcome", ["cancelled", "back", "retry"])
    async def test_it_ends(
        self, broker: Broker, cancellation: Cancellation, results: Results, outcome: str
    ) -> None:
        """However its worker settles what did not succeed: cancelled, and its lock is free."""
        delivery = await self.order(broker, cancellation, MUTEX)
        await broker.submit([task("b", locks=MUTEX)])
        assert await fetch(broker) == []
        document = encode(
            ResultDocument("probe:Task", 1, 0.0, error="cancelled by x", reason="cancelled")
        )
        for _ in range(2):
            answer = await broker.settle(
                delivery, outcome, document, delay=timedelta(hours=outcome != "cancelled")
            )
            assert answer == "OK"
        found = await results.status("a")
        assert found is not None
        assert (found.state, found.attempt, found.reason) == ("cancelled", 1, "cancelled")
        assert found.error.startswith("cancelled by ")
        assert [item.id for item in await fetch(broker)] == ["b"]
        assert await broker.orders("small-a") == []
        assert await left_of(broker, "a") == []
        assert len(await kinds(broker)) == 2

    @pytest.mark.parametrize("outcome", ["done", "dead"])
    async def test_it_came_too_late(
        self, broker: Broker, cancellation: Cancellation, results: Results, outcome: str
    ) -> None:
        """What has succeeded, or failed for good, before its worker could obey has ended so."""
        delivery = await self.order(broker, cancellation)
        assert await broker.settle(delivery, outcome, b"") == "OK"
        found = await results.status("a")
        assert found is not None and found.state == outcome
        assert await cancellation.cancel(["a"], WHO, running=True) == {"a": outcome}

    async def test_one_that_dies_is_buried(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """On its way to SQL nothing is cancelled any more, also when that takes several tries."""
        delivery = await self.order(broker, cancellation)
        await broker.settle(delivery, "dying", b"error")
        await broker.settle(delivery, "back")
        (again,) = await fetch(broker)
        assert (again.state, again.error) == ("dying", b"error")
        answer = await cancellation.cancel(["a"], WHO, running=True)
        assert answer == {"a": "dying"}

    async def test_its_worker_died(
        self, broker: Broker, cancellation: Cancellation, results: Results
    ) -> None:
        """The sweep that would queue it again ends it; a late settle is stale."""
        delivery = await self.order(broker, cancellation)
        await lapse(broker, delivery)
        assert (await broker.reclaim("small-b", "small", new_cursors()))[0] == 1
        found = await results.status("a")
        assert found is not None and (found.state, found.error) == (
            "cancelled",
            "cancelled by ann@host 7: not needed",
        )
        assert await fetch(broker) == []
        assert await broker.settle(delivery, "done", b"late") == "STALE"
        assert (await results.status("a")) == found

    async def test_its_stream_is_gone(self, broker: Broker, cancellation: Cancellation) -> None:
        """The walk that would queue it again ends it."""
        await self.order(broker, cancellation)
        await broker.client.delete("{test}:tasks:normal:small")
        mended, _ = await broker.mend(timedelta(0))
        assert mended == 1
        assert await record(broker, "a") == {}
        assert await fetch(broker) == []

    async def test_what_is_queued_again_otherwise(
        self, broker: Broker, cancellation: Cancellation, results: Results
    ) -> None:
        """A task that lost its lock by hand is not executed again: who fetches it ends it."""
        delivery = await self.order(broker, cancellation, MUTEX)
        await LockBoard(broker.client, "test").release("lock:mutex:job:1", WHO)
        assert (await record(broker, "a"))["state"] == "queued"
        assert await fetch(broker) == []
        found = await results.status("a")
        assert found is not None and found.state == "cancelled"
        assert await broker.settle(delivery, "back") == "STALE"
        assert await left_of(broker, "a") == ["{test}:orders:small-a"]

    async def test_it_names_states(self, broker: Broker, cancellation: Cancellation) -> None:
        """A mass action ends what runs only if that is asked for, and says which they are."""
        await broker.submit([task("r")])
        await fetch_one(broker)
        await broker.submit([task("q")])
        selection = TaskFilter("Task", states=UNFINISHED)
        assert await cancellation.cancel_all(selection, WHO) == CancelledTasks(2, ("r",))
        assert [text[:8] for _, text in await kinds(broker)] == ["2 tasks "]

    async def test_orders_go_with_their_worker(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """A worker that leaves takes them along; one that nobody hears of has a TTL."""
        await self.order(broker, cancellation)
        assert 0 < await broker.client.pttl("{test}:orders:small-a") <= 3_600_000
        await broker.leave("small-a", "small")
        assert not await broker.client.exists("{test}:orders:small-a")

    async def test_its_group(self, broker: Broker, cancellation: Cancellation) -> None:
        """A running child that is cancelled counts as failed, once."""
        groups = await open_group(broker, 1, policy="all_done")
        await broker.submit([task("a", group="g")])
        await groups.seal("g", "")
        delivery = await fetch_one(broker)
        assert await groups.pending("g") == ["a"]
        await cancellation.cancel(["a"], WHO, running=True)
        await broker.settle(delivery, "back")
        assert (await groups.status("g")).failed == 1
        assert [item.id for item in await fetch(broker)] == ["g.ok"]


class TestWhoIsTold:
    async def test_who_waits_for_the_result(
        self,
        broker: Broker,
        cancellation: Cancellation,
        results: Results,
        redis_server: RedisServer,
    ) -> None:
        """A waiting client hears of it at once, with who did it and why."""
        await broker.submit([task("a")])
        waiting = asyncio.create_task(results.wait("a", 60))
        with redis_server.client() as client:
            await until(lambda: client.hget("{test}:t:a", "waited"), "a client waits")
        await cancellation.cancel(["a"], WHO, "not needed")
        ended = await asyncio.wait_for(waiting, 4)
        assert ended is not None and ended.document is not None
        assert ended.state == "cancelled"
        assert ended.document.name == "probe:Task"
        assert ended.document.error == "cancelled by ann@host 7: not needed"

    async def test_its_group(self, broker: Broker, cancellation: Cancellation) -> None:
        """A cancelled child is one that did not succeed: on_failure is submitted, once."""
        groups = await open_group(broker, 2)
        await broker.submit([task("a", group="g"), task("b", group="g")])
        await groups.seal("g", "")
        first = await fetch_one(broker)
        await broker.settle(first, "done", b"result")
        await cancellation.cancel(["b"], WHO)
        await cancellation.cancel(["b"], WHO)
        assert [item.id for item in await fetch(broker)] == ["g.bad"]

    async def test_a_parent_that_had_not_sealed(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """The open group of a parent that is cancelled before its next attempt has failed."""
        await broker.submit([task("parent")])
        delivery = await fetch_one(broker)
        await open_group(broker, 1, "parent", policy="all_done")
        await broker.settle(delivery, "back")
        await cancellation.cancel(["parent"], WHO)
        assert [item.id for item in await fetch(broker)] == ["g.bad"]

    async def test_one_event_for_one_command(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """However many tasks: one event says how many, some of them, who and why."""
        await broker.submit([task(f"a{n}") for n in range(250)])
        await cancellation.cancel([f"a{n}" for n in range(250)], WHO, "by mistake")
        assert await kinds(broker) == [("tasks-cancelled", "250 tasks (a0, a1, a2 …): by mistake")]


def labelled(id: str, name: str = "probe:Task", **labels: Any) -> Submission:
    envelope = Envelope(FORMAT, id, name, {}, labels, 0.0, "", "")
    return Submission(id, name, "normal:small", encode(envelope))


class TestMany:
    async def test_by_class_bare_or_full(self, broker: Broker, cancellation: Cancellation) -> None:
        """A class is meant by its full name, or in any category by its bare one."""
        names = ["m:One", "n:One", "m:Two", "m:OneMore"]
        await broker.submit([labelled(name.replace(":", "-"), name) for name in names])
        assert (await cancellation.cancel_all(TaskFilter("m:One"), WHO)).number == 1
        assert (await cancellation.cancel_all(TaskFilter("One"), WHO)).number == 1
        assert {item.id for item in await fetch(broker)} == {"m-Two", "m-OneMore"}
        assert await kinds(broker) == [
            ("tasks-cancelled", "1 task (m-One): of class m:One"),
            ("tasks-cancelled", "1 task (n-One): of class One"),
        ]

    async def test_by_labels(self, broker: Broker, cancellation: Cancellation) -> None:
        """All labels must be there with their values; unreadable envelopes have none."""
        await broker.submit(
            [
                labelled("a", vo="lhcb", run=7),
                labelled("b", vo="lhcb", run=8),
                labelled("c", vo="gridpp", run=7),
                labelled("d"),
                task("garbage"),
            ]
        )
        assert (
            await cancellation.cancel_all(TaskFilter(labels={"vo": "lhcb", "run": "7"}), WHO)
        ).number == 1
        assert (await cancellation.cancel_all(TaskFilter(labels={"run": 7}), WHO)).number == 1
        assert {item.id for item in await fetch(broker)} == {"b", "d", "garbage"}

    async def test_by_state(self, broker: Broker, cancellation: Cancellation) -> None:
        """Only the states that are asked for; what runs is never meant."""
        due = await far_away(broker)
        await broker.submit([task("r")])
        running = await fetch_one(broker)
        await broker.submit([task("q"), task("d", due_us=due)])
        assert (await cancellation.cancel_all(TaskFilter(states=["delayed"]), WHO)).number == 1
        assert (await cancellation.cancel_all(TaskFilter(), WHO)).number == 1
        assert await broker.settle(running, "done") == "OK"
        assert (await cancellation.cancel_all(TaskFilter(), WHO)).number == 0
        assert len(await kinds(broker)) == 2


async def test_a_slot_that_was_kept_is_given_to_the_next(
    broker: Broker, cancellation: Cancellation
) -> None:
    """A waiter of a limiter that is cancelled lets those behind it pass."""

    class Two(ConcurrencyLimiter):
        limit = 1

    lines = encode_locks([Two("job", 1)])
    await broker.submit([task(id, locks=lines) for id in "abc"])
    (holder,) = await fetch(broker)
    await cancellation.cancel(["b"], WHO)
    await broker.settle(holder, "done")
    assert [item.id for item in await fetch(broker)] == ["c"]


async def test_moving_tasks_are_cancelled_once(
    broker: Broker, cancellation: Cancellation, results: Results
) -> None:
    """Tasks that are fetched, handed back or promoted meanwhile are cancelled once, none missed."""
    due = await far_away(broker)
    ids = [f"a{n}" for n in range(3000)]
    await broker.submit([task(id, due_us=due * (n % 2)) for n, id in enumerate(ids)])
    is_over = asyncio.Event()

    async def move() -> None:
        while not is_over.is_set():
            for delivery in await fetch(broker, 20):
                await broker.settle(delivery, "back", delay=timedelta(milliseconds=1))
            await broker.promote(batch=20)

    moving = asyncio.create_task(move())
    tally = await cancellation.cancel_all(TaskFilter("Task", states=UNFINISHED), WHO)
    is_over.set()
    await moving
    assert tally.number == len(ids)
    for id in tally.running:  # a worker had it at this moment, and has handed it back since
        found = await results.status(id)
        assert found is not None and found.state == "cancelled"
    assert await broker.client.hget("{test}:active", "normal:small|probe:Task") is None
    assert await left_of(broker, *ids) in ([], ["{test}:orders:small-a"])  # these have a TTL


async def test_what_a_plain_cancellation_leaves(broker: Broker, cancellation: Cancellation) -> None:
    """Tasks that never ran leave nothing but their ends, also when they are ended together."""
    due, terms = await far_away(broker), "start_by|+60000000|"
    await broker.submit([task("a"), task("b", due_us=due), task("c", "realtime:large")])
    await broker.submit([task("d", terms=terms), task("e", locks=MUTEX)])
    states = await cancellation.cancel([*"abcde", "a"], WHO, "by mistake")
    assert states == dict.fromkeys("abcde", "cancelled")
    assert await left_of(broker, *"abcde") == []
    stored = {id: await broker.client.get(f"{{test}}:r:{id}") for id in "abcde"}
    ends = [parse_ended(id, value, NO_KEYS) for id, value in stored.items()]
    for end in ends:
        assert end.document is not None
        assert (end.state, end.document.name) == ("cancelled", "probe:Task")
        assert end.document.error == f"cancelled by {WHO}: by mistake"
    assert await broker.client.hgetall("{test}:active") == {}
