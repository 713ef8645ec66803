"""Cancelling tasks in each state, with all that was arranged around them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import records
from servers import RedisServer
from stores.queue.test_broker import fetch, fetch_one, in_an_hour, record, task
from waits import WAIT_SECONDS, until

from nonet.base.messages.encryption import NO_KEYS
from nonet.base.messages.message import ResultDocument, encode
from nonet.stores.namespace.cancellation import Cancellation, CancelledTasks
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.lock_board import LockBoard
from nonet.stores.queue.broker import Broker, Order
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.places import UNFINISHED, TaskFilter
from nonet.stores.queue.results import Results, parse_ended
from nonet.tasks.locks import MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
WHO = "ann@host 7"


@pytest.fixture
def cancellation(broker: Broker) -> Cancellation:
    return Cancellation(broker, None, lambda: False)


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
    @pytest.mark.parametrize("is_woken", [False, True])
    async def test_a_waiting_task_leaves_its_queues(
        self, broker: Broker, cancellation: Cancellation, *, is_woken: bool
    ) -> None:
        """The task behind it gets the lock, at once also if a place was kept for the first."""
        await broker.submit([task(id, locks=MUTEX) for id in "abc"])
        (holder,) = await fetch(broker)
        await broker.client.zadd("{test}:workers", {"small-a": 2**52})  # for which places are kept
        if is_woken:
            await broker.settle(holder, "done")
            assert (await record(broker, "b"))["places"]
        assert await cancellation.cancel(["b"], WHO) == {"b": "cancelled"}
        assert await left_of(broker, "b") == []
        if not is_woken:
            await broker.settle(holder, "done")
        assert [item.id for item in await fetch(broker)] == ["c"]

    async def test_a_hold_is_no_task(self, broker: Broker, cancellation: Cancellation) -> None:
        """It is not cancelled by its id."""
        await broker.hold("h1", MUTEX)
        await broker.hold("h2", MUTEX, wait=True)
        assert await cancellation.cancel(["h1", "h2"], WHO) == {"h1": "", "h2": ""}
        await broker.unhold("h2")
        await broker.unhold("h1")

    async def test_an_unread_entry_is_removed(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """A fetch that was cut had read it."""
        await broker.submit([task("a")])
        stream = "{test}:tasks:normal:small"
        await broker.client.xgroup_create(stream, "workers", "0")
        await broker.client.xreadgroup("workers", "small-a", {stream: ">"})
        assert await cancellation.cancel(["a"], WHO) == {"a": "cancelled"}
        assert (await broker.client.xpending(stream, "workers"))["pending"] == 0
        assert await broker.client.xlen(stream) == 0


class TestRunning:
    """A running task: its worker is ordered to cancel it, and it is never executed again."""

    async def order(self, broker: Broker, cancellation: Cancellation, locks: str = "") -> Delivery:
        await broker.submit([task("a", locks=locks)])
        delivery = await fetch_one(broker)
        for reason in ("not needed", "again"):
            answer = await cancellation.cancel(["a"], WHO, reason, running=True)
            assert answer == {"a": "cancelling"}
        return delivery

    async def test_the_worker_is_ordered(self, broker: Broker, cancellation: Cancellation) -> None:
        """Until the task has ended, each poll names the first who cancelled it, and why."""
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
    async def test_the_task_ends_cancelled(
        self, broker: Broker, cancellation: Cancellation, results: Results, outcome: str
    ) -> None:
        """However its worker settles an attempt that did not succeed; its lock is free."""
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

    async def test_a_requeued_task_ends(
        self, broker: Broker, cancellation: Cancellation, results: Results
    ) -> None:
        """A fetch ends a task that lost its lock to an operator."""
        delivery = await self.order(broker, cancellation, MUTEX)
        await LockBoard(broker.client, "test").release("lock:mutex:job:1", WHO)
        assert (await record(broker, "a"))["state"] == "queued"
        assert await fetch(broker) == []
        found = await results.status("a")
        assert found is not None and found.state == "cancelled"
        assert await broker.settle(delivery, "back") == "STALE"
        assert await left_of(broker, "a") == ["{test}:orders:small-a"]

    async def test_running_tasks_are_named(
        self, broker: Broker, cancellation: Cancellation
    ) -> None:
        """It ends them only if that is asked for."""
        await broker.submit([task("r")])
        await fetch_one(broker)
        await broker.submit([task("q")])
        selection = TaskFilter("Task", states=UNFINISHED)
        assert await cancellation.cancel_all(selection, WHO) == CancelledTasks(2, ("r",))
        assert [text[:8] for _, text in await kinds(broker)] == ["2 tasks "]

    async def test_orders_have_an_end(self, broker: Broker, cancellation: Cancellation) -> None:
        """With a worker that leaves, or by a TTL."""
        await self.order(broker, cancellation)
        assert 0 < await broker.client.pttl("{test}:orders:small-a") <= 3_600_000
        await broker.leave("small-a", "small")
        assert not await broker.client.exists("{test}:orders:small-a")


class TestNotice:
    async def test_a_waiting_client_is_woken(
        self,
        broker: Broker,
        cancellation: Cancellation,
        results: Results,
        redis_server: RedisServer,
    ) -> None:
        """It learns who cancelled the task and why."""
        await broker.submit([task("a")])
        waiting = asyncio.create_task(results.wait("a", 600))
        with redis_server.client() as client:
            await until(lambda: records.hget(client, "{test}:t:a", "waited"), "a client waits")
        await cancellation.cancel(["a"], WHO, "not needed")
        ended = await asyncio.wait_for(waiting, WAIT_SECONDS)
        assert ended is not None and ended.document is not None
        assert ended.state == "cancelled"
        assert ended.document.name == "probe:Task"
        assert ended.document.error == "cancelled by ann@host 7: not needed"

    async def test_a_command_is_one_event(self, broker: Broker, cancellation: Cancellation) -> None:
        """With the number, some of the tasks, the author and the reason."""
        await broker.submit([task(f"a{n}") for n in range(250)])
        await cancellation.cancel([f"a{n}" for n in range(250)], WHO, "by mistake")
        assert await kinds(broker) == [("tasks-cancelled", "250 tasks (a0, a1, a2 …): by mistake")]


async def test_moving_tasks_are_cancelled_once(
    broker: Broker, cancellation: Cancellation, results: Results
) -> None:
    """Although they are fetched, handed back or promoted meanwhile; none is missed."""
    due = await in_an_hour(broker)
    ids = [f"a{n}" for n in range(400)]
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


async def test_a_cancellation_leaves_only_ends(broker: Broker, cancellation: Cancellation) -> None:
    """Of tasks that never ran; a repetition changes nothing."""
    due, terms = await in_an_hour(broker), "start_by|+60000000|"
    await broker.submit([task("a"), task("b", due_us=due), task("c", "realtime:large")])
    await broker.submit([task("d", terms=terms), task("e", locks=MUTEX)])
    for _ in range(2):
        states = await cancellation.cancel([*"abcde", "a"], WHO, "by mistake")
        assert states == dict.fromkeys("abcde", "cancelled")
    assert await broker.submit([task("a")]) == [False]
    assert await left_of(broker, *"abcde") == []
    stored = {id: await broker.client.get(f"{{test}}:r:{id}") for id in "abcde"}
    ends = [parse_ended(id, value, NO_KEYS) for id, value in stored.items()]
    for end in ends:
        assert end.document is not None
        assert (end.state, end.document.name) == ("cancelled", "probe:Task")
        assert end.document.error == f"cancelled by {WHO}: by mistake"
    assert await broker.client.hgetall("{test}:active") == {}
