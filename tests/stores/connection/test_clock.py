"""The clock of Redis is set: what the scripts do then. The real step is in tests/faults.

What is added to the clock is changed here instead of the clock. For the scripts that is the same,
but for idle times of pending entries and TTLs of keys, which are by the server's own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
import records
from clients import broker_at
from stores.beats import beat, lease_of
from waits import WAIT_SECONDS

from nonet.base.clock import Reading, steady
from nonet.stores.connection.clock import microseconds
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import (
    BaseLock,
    ConcurrencyLimiter,
    ExclusiveRWLock,
    MutexLock,
    RateLimiter,
    SharedRWLock,
    encode_locks,
)

HOUR = timedelta(hours=1)
LEASE = 1.5


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """With a lease that a test can wait for."""
    opened = broker_at(redis_url)
    opened._lease_ms = round(LEASE * 1000)  # settings refuse one that is shorter than locks
    yield opened
    await opened.aclose()


class Site:
    """A leader that has looked at the clock, and a hand that sets it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.leadership = Leadership(broker, "test")
        self.term = ""
        self.before = 0

    async def lead(self) -> None:
        sent = steady()
        self.term = await self.leadership.lead("me", 30, "{}") or ""
        assert self.leadership.clock
        self.before = self.leadership.clock.now
        self.broker.epoch.clock.look(Reading(sent, steady(), self.before))

    async def step(self, by: timedelta) -> None:
        await self.broker.client.set("{test}:clock", by // timedelta(microseconds=1))

    async def correct(self, by: timedelta, *, term: str = "") -> bool:
        offset = by // timedelta(microseconds=1)
        self.term = await self.leadership.lead("me", 30, "{}") or ""  # its lease may have ended
        return await self.leadership.set_clock(
            term or self.term, offset, by, self.before, "somebody"
        )

    async def submit(self, id: str, *locks: BaseLock, due: datetime | None = None) -> None:
        due_us = microseconds(due) if due else 0
        lines = encode_locks(locks)
        await self.broker.submit([Submission(id, "p:T", "normal:small", b"e", lines, due_us)])

    async def fetch(self) -> list[Delivery]:
        return (await self.broker.fetch("small-a", "small", 10, room=10))[0]

    async def fetch_one(self) -> Delivery:
        (delivery,) = await self.fetch()
        return delivery

    async def due_in(self, id: str) -> float:
        """Seconds until a task is due, by logical time."""
        due = await self.broker.client.zscore("{test}:tasks:delayed", id)
        return float(due - microseconds(await self.broker.logical_now())) / 1e6

    async def reclaim(self) -> int:
        return (await self.broker.reclaim("small-b", "small", new_cursors()))[0]


@pytest.fixture
async def site(broker: Broker) -> Site:
    opened = Site(broker)
    await opened.lead()
    return opened


async def test_a_correction_takes_the_step_out_of_time(site: Site) -> None:
    """Once, by the leader alone; it is an event."""
    before = await site.broker.logical_now()
    await site.step(HOUR)
    assert await site.broker.logical_now() - before > HOUR
    assert not await site.correct(HOUR, term="1")
    assert await site.correct(HOUR)
    assert not await site.correct(HOUR)
    assert await site.broker.client.get("{test}:clock") == b"0"
    (event,) = await Events(site.broker.client, "test").last(10, kind="clock")
    assert (event.who, event.text) == ("somebody", "the clock of Redis was set forward by 3600.0 s")


@pytest.mark.parametrize("by", [HOUR, -HOUR])
async def test_the_leader_keeps_its_lease(site: Site, by: timedelta) -> None:
    """It ends when it would have ended without the step."""
    await site.step(by)
    await site.correct(by)
    leader = await site.leadership.leader()
    assert leader
    left = leader.expiry - await site.broker.logical_now()
    assert timedelta(seconds=20) < left <= timedelta(seconds=30)


async def test_a_time_of_day_is_by_the_wall_clock(site: Site) -> None:
    """For what is due, and for what people are shown."""
    await site.step(-HOUR)
    due = await site.broker.now() + timedelta(seconds=50)
    await site.submit("later", due=due)
    assert 20 < await site.due_in("later") < 51
    results = Results(site.broker)
    status = await results.status("later")
    assert status and status.due == due
    facts = await TaskFacts(site.broker.client, "test").read("later")
    assert facts.due == due.timestamp()
    assert facts.due - facts.now < 51


async def test_a_task_delayed_by_the_wrong_time_is_not_late(site: Site) -> None:
    """A retry, or a task submitted for later, between step and correction."""
    far = await site.broker.now() + timedelta(hours=3)
    await site.submit("far", due=far)
    await site.submit("retried")
    delivery = await site.fetch_one()
    await site.step(HOUR)
    await site.broker.settle(delivery, "retry", b"", delay=timedelta(seconds=50))
    await site.submit("submitted", due=await site.broker.now() + timedelta(seconds=50))
    await site.correct(HOUR)
    assert 20 < await site.due_in("retried") < 51
    assert 20 < await site.due_in("submitted") < 51
    assert 3 * 3600 - 40 < await site.due_in("far") < 3 * 3600 + 1


async def test_a_task_waits_for_locks_since_a_time_that_has_come(site: Site) -> None:
    """Also one that began to wait between step and correction: its age gives it its place."""
    lock = MutexLock("job", 7, ttl_ms=3 * 3_600_000)
    await site.submit("holds", lock)
    await site.fetch_one()
    await site.step(HOUR)
    await site.submit("waits", lock)
    assert await site.fetch() == []
    await site.correct(HOUR)
    since = await records.hget(site.broker.client, "{test}:t:waits", "since")
    now = microseconds(await site.broker.logical_now())
    assert now - WAIT_SECONDS * 1e6 < int(since) <= now


async def test_a_deadline_by_the_wrong_time_is_not_late(site: Site) -> None:
    """Of a task submitted between step and correction; others stay."""
    before = await site.broker.logical_now()
    for id in ("early", "wrong"):
        item = Submission(id, "p:T", "normal:small", b"e", terms="start_by|+7200000000|")
        await site.broker.submit([item])
        await site.step(HOUR)
    await site.correct(HOUR)
    client = site.broker.client
    for id in ("early", "wrong"):
        deadline = int(await client.zscore("{test}:deadlines", id))
        assert await records.hget(client, f"{{test}}:t:{id}", "start_by") == f"{deadline}|".encode()
        assert abs(deadline - microseconds(before + 2 * HOUR)) < 60e6


async def test_a_registration_by_the_wrong_time_ends(site: Site, redis_url: str) -> None:
    """As if the clock had not been set."""
    await site.step(HOUR)
    beat(redis_url)
    await site.correct(HOUR)
    ends = await site.broker.client.zscore("{test}:workers", "small-a")
    assert ends - microseconds(await site.broker.logical_now()) <= 30e6


@pytest.mark.parametrize(
    "limiter",
    [
        pytest.param(RateLimiter("job", 1, limit=1, window_seconds=LEASE), id="rate"),
        pytest.param(ConcurrencyLimiter("job", 1, limit=1, ttl_ms=500), id="concurrency"),
        pytest.param(MutexLock("job", 1, ttl_ms=500), id="mutex"),
    ],
)
async def test_a_lock_taken_by_the_wrong_time_ends(site: Site, limiter: BaseLock) -> None:
    """A dead worker took it between step and correction."""
    await site.step(HOUR)
    await site.submit("first", limiter)
    await site.fetch_one()
    await site.correct(HOUR)
    await site.submit("second", limiter)
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := await site.fetch()):
            await site.broker.client.zadd("{test}:tasks:delayed", {"second": 0})
            await site.broker.promote(site.term)
    assert found[0].id == "second"


async def test_a_beat_never_shortens_a_lock(site: Site, redis_url: str) -> None:
    """By a clock that was set back; after the correction its holder still holds."""
    locks = (MutexLock("job", 1), ConcurrencyLimiter("job", 2, limit=1))
    await site.submit("locked", *locks)
    delivery = await site.fetch_one()
    beat(redis_url)
    await site.step(-HOUR)
    assert beat(redis_url, lease_of(delivery, 1.0)) == set()
    await site.correct(-HOUR)
    ends = await site.broker.client.zscore("{test}:workers", "small-a")
    assert ends > microseconds(await site.broker.logical_now())
    assert await site.broker.settle(delivery, "done", b"") == "OK"


async def test_nothing_runs_early_before_the_correction(site: Site) -> None:
    """Neither a leader nor a worker promotes, or reclaims, by an impossible time."""
    await site.submit("running")
    delivery = await site.fetch_one()
    await idle(site, HOUR, delivery)
    await site.submit("later", due=await site.broker.now() + timedelta(minutes=30))
    await site.step(HOUR)
    for term in (site.term, ""):
        assert (await site.broker.promote(term)).moved == 0
    assert await site.reclaim() == 0
    await site.correct(HOUR)
    assert (await site.broker.promote(site.term)).allowed
    assert await site.fetch() == []


@pytest.mark.parametrize(
    "lock",
    [
        pytest.param(MutexLock("job", 1), id="mutex"),
        pytest.param(ExclusiveRWLock("job", 1), id="writer"),
        pytest.param(ConcurrencyLimiter("job", 1, limit=1), id="slot"),
        pytest.param(RateLimiter("job", 1, limit=1, window_seconds=600), id="window"),
    ],
)
async def test_no_lock_is_lost_before_the_correction(
    site: Site, redis_url: str, lock: BaseLock
) -> None:
    """No other task gets it, its holder may renew it, and what the holder did counts."""
    await site.submit("first", lock)
    delivery = await site.fetch_one()
    await site.step(HOUR)
    await site.submit("second", lock)
    assert await site.fetch() == []
    assert beat(redis_url, lease_of(delivery), epoch=site.broker.epoch) == set()
    assert await site.broker.settle(delivery, "done", b"") == "OK"


async def test_no_reader_is_lost_before_the_correction(site: Site) -> None:
    """A writer waits for it; a script that knows no time of its caller removes no lease."""
    await site.submit("reads", SharedRWLock("job", 1))
    await site.submit("other", MutexLock("job", 2))
    await site.submit("writes", ExclusiveRWLock("job", 1), MutexLock("job", 2))
    reads, other = await site.fetch()
    assert await site.fetch() == []
    await site.step(HOUR)
    await site.broker.settle(other, "dead", b"")
    held = await site.broker.hold("h", encode_locks([ExclusiveRWLock("job", 1)]))
    assert held == ("REFUSED", "lock:rw:job:1")
    assert await site.fetch() == []
    assert await site.broker.settle(reads, "done", b"") == "OK"


async def idle(site: Site, by: timedelta, *deliveries: Delivery) -> None:
    """Let pending entries be as old as they are after the clock of the server was set."""
    key, entries = site.broker.prefix + deliveries[0].stream_key, [one.entry for one in deliveries]
    then = microseconds(await site.broker.now() - by) // 1000
    await site.broker.client.xclaim(key, "workers", "small-a", 0, entries, time=then, justid=True)


async def test_after_a_step_forward_reclaims_wait_a_lease(site: Site) -> None:
    """Live workers renew meanwhile, and the delivery of the dead one is taken."""
    await site.submit("running")
    await site.submit("lost")
    deliveries = await site.fetch()
    await idle(site, HOUR, *deliveries)
    await site.step(HOUR)
    await site.correct(HOUR)
    stepped = await site.broker.logical_now()
    reclaimed = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while not reclaimed:
            await idle(site, timedelta(0), deliveries[0])
            reclaimed = await site.reclaim()
    assert await site.broker.logical_now() - stepped > timedelta(seconds=LEASE * 0.9)
    assert reclaimed == 1
    assert [delivery.id for delivery in await site.fetch()] == ["lost"]


async def test_after_a_step_back_each_lease_begins_anew_once(site: Site) -> None:
    """Page by page, so that deliveries with times in the future are reclaimed a lease later."""
    many = [Submission(f"task-{n}", "p:T", "normal:small", b"e") for n in range(1200)]
    await site.broker.submit(many)
    deliveries, _ = await site.broker.fetch("small-a", "small", 1200)
    await idle(site, HOUR, *deliveries)
    await site.step(-HOUR)
    await site.correct(-HOUR)
    key = site.broker.prefix + deliveries[0].stream_key
    for left in (700, 200, 0):
        assert await site.reclaim() == 0
        old = await site.broker.client.xpending_range(
            key, "workers", "-", "+", 1200, idle=1_800_000
        )
        assert len(old) == left
    await idle(site, HOUR, deliveries[0])
    async with asyncio.timeout(WAIT_SECONDS):
        while not await site.reclaim():
            pass
