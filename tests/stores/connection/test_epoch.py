"""What an emptied Redis, or one with older data, is noticed by, and what follows for locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from stores.beats import beat

from nonet.rules.explanation import explain
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import ConcurrencyLimiter, MutexLock, encode_locks

LOCKED = Submission("locked", "p:T", "normal:small", b"e", encode_locks([MutexLock("job", 7)]))
FREE = Submission("free", "p:T", "normal:small", b"e")


@pytest.fixture
async def newcomer(redis_url: str) -> AsyncIterator[Broker]:
    """A process that has never seen this Redis before."""
    opened = Broker(redis_url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    yield opened
    await opened.aclose()


async def fetched(broker: Broker) -> list[str]:
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    return sorted(delivery.id for delivery in deliveries)


async def calm_seconds(broker: Broker) -> float:
    calm = await broker.client.hget("{test}:epoch", "calm")
    ends = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(calm))
    return (ends - await broker.now()).total_seconds()


async def test_a_redis_that_was_used_before_grants_locks_at_once(broker: Broker) -> None:
    """Where no data were lost nobody waits."""
    await broker.submit([LOCKED])
    assert await fetched(broker) == ["locked"]
    assert broker.epoch.since > 0


async def test_first_use_of_a_redis_rests_its_locks_for_a_moment(broker: Broker) -> None:
    """Who knows of no earlier data waits until those would have told who do."""
    await broker.client.delete("{test}:epoch")
    await broker.submit([LOCKED, FREE])
    assert await fetched(broker) == ["free"]
    assert 1 < await calm_seconds(broker) <= 2


async def test_who_has_started_an_empty_redis_rests_no_locks(broker: Broker) -> None:
    """It knows that there was no holder before, and begins the epoch without a pause."""
    await broker.client.flushall()
    await broker.begin()
    await broker.submit([LOCKED])
    assert await fetched(broker) == ["locked"]


async def test_an_epoch_that_has_begun_is_not_begun_anew(broker: Broker, newcomer: Broker) -> None:
    """Another process may have been faster; its pause stays."""
    await broker.client.flushall()
    await broker.presence([])
    await newcomer.begin()
    assert broker.epoch.since == newcomer.epoch.since
    assert 1 < await calm_seconds(broker) <= 2


async def test_a_loss_is_told_although_no_locks_rested(broker: Broker, newcomer: Broker) -> None:
    """Who held locks by earlier data rests them, whoever has begun the epoch, and however."""
    await fetched(broker)
    await broker.client.flushall()
    await newcomer.begin()
    assert await calm_seconds(broker) <= 0
    await broker.presence([])
    assert 28 < await calm_seconds(broker) <= 30


def test_all_workers_of_a_process_are_told_of_a_new_epoch() -> None:
    """They share what was seen, and each has leases to renew; none is told after its end."""
    seen, told = EpochSeen(), list[str]()
    with seen.telling(lambda: told.append("small")):
        with seen.telling(lambda: told.append("medium")):
            seen.see([b"5", b"5"])
            assert told == [], "the first is not new"
            seen.see([b"7", b"7"])
        seen.see([b"9", b"9"])
    seen.see([b"11", b"11"])
    assert told == ["small", "medium", "small"]


async def test_a_loss_is_told_by_whoever_comes_second(broker: Broker, newcomer: Broker) -> None:
    """What a newcomer has begun rests its locks for long as soon as an old hand sees it."""
    await fetched(broker)
    await broker.client.flushall()
    await newcomer.presence([])
    assert await calm_seconds(broker) <= 2
    await broker.presence([])
    assert 28 < await calm_seconds(broker) <= 30
    assert broker.epoch.since == newcomer.epoch.since
    (event,) = await Events(broker.client, "test").last(10)
    assert event.text == "Redis has lost its data"
    calm = await calm_seconds(broker)
    await newcomer.presence([])
    await broker.presence([])
    assert await calm_seconds(broker) <= calm


async def test_a_lock_of_a_longer_ttl_rests_for_longer(broker: Broker) -> None:
    """Who held it may believe so for its own TTL."""
    lock = MutexLock("job", 7, ttl_ms=90_000)
    long = Submission("long", "p:T", "normal:small", b"e", encode_locks([lock]))
    await fetched(broker)
    await broker.client.flushall()
    await broker.submit([long])
    assert await fetched(broker) == []
    why = explain(await TaskFacts(broker.client, "test").read("long"))
    assert why.until is not None
    assert 85 < (why.until - await broker.now()).total_seconds() <= 90


async def test_an_emptied_redis_begins_a_new_epoch_and_rests_its_locks(broker: Broker) -> None:
    """After a flush no structural lock is granted for one lock TTL, and everything else is."""
    await fetched(broker)
    first = broker.epoch.since
    await broker.client.flushall()
    limited = ConcurrencyLimiter("job", 1, limit=1)
    many = Submission("limited", "p:T", "normal:small", b"e", encode_locks([limited]))
    await broker.submit([LOCKED, FREE, many])
    assert await fetched(broker) == ["free", "limited"]
    assert broker.epoch.since > first
    assert 28 < await calm_seconds(broker) <= 30
    assert await broker.client.hget("{test}:t:locked", "state") == b"waiting"
    why = explain(await TaskFacts(broker.client, "test").read("locked"))
    assert why.cause == "calm" and "Redis has lost its data" in why.text
    answer, detail = await broker.hold("hold-1", encode_locks([MutexLock("job", 8)]))
    lock, _, rest_us = detail.partition("|")
    assert (answer, lock) == ("CALM", "lock:mutex:job:8")
    assert 0 < int(rest_us) <= 30_000_000


async def test_locks_are_granted_when_the_calm_is_over(broker: Broker) -> None:
    """Who waited for the calm to end is woken then."""
    await fetched(broker)
    await broker.client.flushall()
    await broker.submit([LOCKED])
    assert await fetched(broker) == []
    await broker.client.hset("{test}:epoch", mapping={"calm": 1, "lost": 1})
    watched = await broker.client.zrange("{test}:watch", 0, -1)
    await broker.client.zadd("{test}:watch", dict.fromkeys(watched, 0))
    await broker.promote()
    assert await fetched(broker) == ["locked"]


@pytest.mark.parametrize("who", ["worker", "watchdog", "leader", "hold"])
async def test_whoever_knows_of_the_loss_tells(
    broker: Broker, newcomer: Broker, redis_url: str, who: str
) -> None:
    """A process that knew the old data begins the new epoch, for those who do not know, too."""
    await fetched(broker)
    await broker.client.flushall()
    if who == "worker":
        await fetched(broker)
    elif who == "leader":
        await Leadership(broker, "test").lead("me", 30, "{}")
    elif who == "hold":
        await broker.hold("hold-1", encode_locks([MutexLock("job", 8)]))
    else:
        beat(redis_url, worker="small-b", epoch=broker.epoch)
    await newcomer.submit([LOCKED])
    assert await fetched(newcomer) == []


async def test_older_data_begin_a_new_epoch(broker: Broker) -> None:
    """Data whose sequence is below one that was seen are known to be older, and said to be."""
    leadership = Leadership(broker, "test")
    await leadership.lead("me", 30, "{}")
    older = await broker.client.dump("{test}:epoch")
    await leadership.lead("me", 30, "{}")
    first = broker.epoch.since
    await broker.client.restore("{test}:epoch", 0, older, replace=True)
    await broker.presence([])
    assert broker.epoch.since > first
    (event,) = await Events(broker.client, "test").last(10)
    assert (event.kind, event.text) == ("epoch", "Redis came back with older data")


async def test_the_same_data_stay_the_same_epoch(broker: Broker, newcomer: Broker) -> None:
    """Nothing that happens in an intact Redis begins an epoch."""
    leadership = Leadership(broker, "test")
    await fetched(broker)
    first = broker.epoch.since
    for _ in range(3):
        await leadership.lead("me", 30, "{}")
        await newcomer.presence([])
        await fetched(broker)
    assert (broker.epoch.since, newcomer.epoch.since) == (first, first)


async def test_presence_tells_records_and_remembered_ends(broker: Broker) -> None:
    """An id is known while it lives and while its end is remembered."""
    await broker.submit([FREE, LOCKED])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    for delivery in deliveries:
        if delivery.id == "free":
            await broker.settle(delivery, "done")
    epoch, known = await broker.presence(["free", "locked", "never"])
    assert epoch == broker.epoch.since
    assert known == [Presence.ENDED, Presence.LIVE, Presence.UNKNOWN]
    await broker.client.flushall()
    again, known = await broker.presence(["free", "locked", "never"])
    assert again > epoch and set(known) == {Presence.UNKNOWN}


async def test_a_leader_of_a_clock_that_was_set_back_is_replaced(broker: Broker) -> None:
    """A lease that ends hours ahead was written under another clock, and keeps nobody out."""
    leadership = Leadership(broker, "test")
    assert await leadership.lead("old", 30, "{}")
    assert await leadership.lead("new", 30, "{}") is None
    await broker.client.hincrby("{test}:leader", "expiry", 3600 * 10**6)
    assert await leadership.lead("new", 30, "{}")


async def test_a_loss_after_the_clock_was_set_back_is_noticed(broker: Broker) -> None:
    """The name of an epoch is above all earlier ones, whatever the clock says."""
    await fetched(broker)
    broker.epoch.see([b"9000000000000000", b"9000000000000005"])
    await broker.client.flushall()
    await broker.submit([LOCKED])
    assert await fetched(broker) == []
    assert broker.epoch.since > 9000000000000005
