"""Fetches that wait in Redis for a wake-up: what they are given, and how they end."""

from __future__ import annotations

import asyncio
import time

import pytest
from servers import RedisServer
from stores.beats import beat
from stores.queue.test_broker import task
from waits import until

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.fetching import Awoken
from nonet.stores.queue.workers import drain


class Site:
    """Idle workers that wait for a wake-up."""

    def __init__(self, broker: Broker, server: RedisServer) -> None:
        self.broker, self.server = broker, server

    async def falls_asleep(self, worker: str) -> asyncio.Task[Awoken]:
        beat(self.broker.url, worker=worker)
        assert await self.broker.fetch(worker, "small", 10) == ([], False)
        return await self.waits(worker)

    async def waits(self, worker: str) -> asyncio.Task[Awoken]:
        asleep = self.number_asleep()
        waiting = asyncio.create_task(self.broker.fetch_when_woken(worker, "small", 10))
        await until(lambda: self.number_asleep() > asleep, "Redis lets it wait")
        return waiting

    def number_asleep(self) -> int:
        with self.server.client() as looking:
            return sum(each["cmd"] == "blpop" for each in looking.client_list())


@pytest.fixture
def site(broker: Broker, redis_server: RedisServer) -> Site:
    return Site(broker, redis_server)


async def test_a_wake_up_brings_the_task(site: Site, broker: Broker) -> None:
    """It is admitted as by any fetch."""
    waiting = await site.falls_asleep("small-a")
    await broker.submit([task("a")])
    found = await waiting
    (delivery,) = found.deliveries
    assert (delivery.id, delivery.state, found.more) == ("a", "running", False)
    assert found.is_woken and found.since <= time.monotonic()
    assert await broker.settle(delivery, "done") == "OK"


async def test_a_wait_takes_nothing_of_the_next_lease(site: Site, broker: Broker) -> None:
    """The lease begins with what ends the wait, however long the wait before it was."""
    began = time.monotonic()
    await site.falls_asleep("small-a")
    unknown = time.monotonic() - began  # when within this time Redis read its clock
    await asyncio.sleep(0.3)  # the wait in vain
    await broker.rouse("small-a")
    waiting = await site.waits("small-a")
    await asyncio.sleep(0.3)  # the wait that a lease must not begin with
    submitted = time.monotonic()
    await broker.submit([task("a")])
    assert (await waiting).since > submitted - unknown - 0.001


async def test_a_cancelled_wait_takes_no_task(site: Site, broker: Broker) -> None:
    """Another worker gets it."""
    waiting = await site.falls_asleep("small-a")
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(lambda: site.number_asleep() == 0, "Redis has noticed")
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-b", "small", 10)
    assert delivery.id == "a"


async def lose_wake_ups(broker: Broker, *workers: str) -> None:
    """As after a loss of data: tasks are queued, and no worker is woken."""
    client, prefix = broker.client, broker.prefix
    idle = await client.zrange(f"{prefix}idle:small", 0, -1, withscores=True)
    await client.delete(f"{prefix}idle:small")
    await broker.submit([task(f"for {worker}") for worker in workers])
    await client.zadd(f"{prefix}idle:small", dict(idle))


async def poll(broker: Broker, worker: str) -> Awoken:
    """Let a worker sleep in vain. (A client in its name ends the wait sooner than its limit.)"""
    asleep = asyncio.create_task(broker.fetch_when_woken(worker, "small", 1))
    await asyncio.sleep(0)
    await broker.rouse(worker)
    return await asleep


async def test_one_idle_worker_polls_for_all(site: Site, broker: Broker) -> None:
    """The others are relieved of it; the next one polls when that one is busy."""
    for name in "ab":
        (await site.falls_asleep(f"small-{name}")).cancel()
    assert not (await poll(broker, "small-a")).is_relieved
    await lose_wake_ups(broker, "a", "b")
    found = await poll(broker, "small-b")
    assert found.is_relieved and not found.deliveries
    assert [item.id for item in (await poll(broker, "small-a")).deliveries] == ["for a"]
    found = await poll(broker, "small-b")
    assert not found.is_relieved and [item.id for item in found.deliveries] == ["for b"]


async def test_a_dead_worker_on_duty_is_replaced(site: Site, broker: Broker) -> None:
    """Its turn ends by itself within three seconds."""
    for name in "ab":
        (await site.falls_asleep(f"small-{name}")).cancel()
    await poll(broker, "small-a")
    assert 0 < await broker.client.pttl(f"{broker.prefix}duty:small") <= 3000
    assert (await poll(broker, "small-b")).is_relieved
    await broker.client.delete(f"{broker.prefix}duty:small")  # as when it expires
    assert not (await poll(broker, "small-b")).is_relieved


async def test_an_order_to_drain_wakes_a_worker(site: Site, broker: Broker) -> None:
    """So an idle worker need not poll for orders."""
    waiting = await site.falls_asleep("small-a")
    assert await drain(broker.scripts, ["small-a"], "bob") == 1
    assert (await waiting).is_woken
