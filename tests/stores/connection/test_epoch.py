"""How an emptied Redis, or one with older data, is noticed, and what follows for locks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import records
from clients import broker_at
from stores.beats import beat

from nonet.base.errors import NonetError
from nonet.rules.findings.explanation import explain
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
    opened = broker_at(redis_url)
    yield opened
    await opened.aclose()


async def fetched(broker: Broker) -> list[str]:
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    return sorted(delivery.id for delivery in deliveries)


async def withheld_seconds(broker: Broker) -> float:
    """How long locks rest, from the beginning of the epoch."""
    since, withheld = await broker.client.hmget("{test}:epoch", "since", "withheld")
    return (int(withheld) - int(since)) / 1e6


async def test_a_first_use_rests_locks_for_a_moment(broker: Broker) -> None:
    """Processes that know of earlier data would report them meanwhile."""
    await broker.client.delete("{test}:epoch")
    await fetched(broker)
    assert await withheld_seconds(broker) == 2


async def test_the_starter_of_an_empty_redis_rests_no_locks(broker: Broker) -> None:
    """There was no holder before."""
    await broker.client.flushall()
    await broker.begin()
    await broker.submit([LOCKED])
    assert await fetched(broker) == ["locked"]


async def test_an_epoch_begins_once(broker: Broker, newcomer: Broker) -> None:
    """Another process may be faster; its pause stays."""
    await broker.client.flushall()
    await broker.presence([])
    await newcomer.begin()
    assert broker.epoch.since == newcomer.epoch.since
    assert await withheld_seconds(broker) == 2


def test_all_workers_of_a_process_hear_of_a_new_epoch() -> None:
    """Each has leases to renew; none is called after its end."""
    seen, told = EpochSeen(), list[str]()
    with seen.telling(lambda: told.append("small")):
        with seen.telling(lambda: told.append("medium")):
            seen.see([b"5", b"5"])
            assert told == [], "the first is not new"
            seen.see([b"7", b"7"])
        seen.see([b"9", b"9"])
    seen.see([b"11", b"11"])
    assert told == ["small", "medium", "small"]


async def test_a_process_that_knew_the_data_rests_locks(broker: Broker, newcomer: Broker) -> None:
    """For a whole lock TTL, although a newcomer has begun the epoch."""
    await fetched(broker)
    await broker.client.flushall()
    await newcomer.presence([])
    assert await withheld_seconds(broker) <= 2
    await broker.presence([])
    assert await withheld_seconds(broker) >= 30
    assert broker.epoch.since == newcomer.epoch.since
    (event,) = await Events(broker.client, "test").last(10)
    assert event.text == "Redis has lost its data"
    withheld = await withheld_seconds(broker)
    await newcomer.presence([])
    await broker.presence([])
    assert await withheld_seconds(broker) == withheld


async def test_a_lock_of_a_longer_ttl_rests_for_longer(broker: Broker) -> None:
    """Its holder may believe to have it for its own TTL."""
    lock = MutexLock("job", 7, ttl_ms=90_000)
    long = Submission("long", "p:T", "normal:small", b"e", encode_locks([lock]))
    await fetched(broker)
    await broker.client.flushall()
    await broker.submit([long])
    assert await fetched(broker) == []
    why = explain(await TaskFacts(broker.client, "test").read("long"))
    assert why.until is not None
    assert 85 < (why.until - await broker.now()).total_seconds() <= 90


async def test_an_emptied_redis_rests_its_locks(broker: Broker) -> None:
    """For one lock TTL; everything else is granted."""
    await fetched(broker)
    first = broker.epoch.since
    await broker.client.flushall()
    limited = ConcurrencyLimiter("job", 1, limit=1)
    many = Submission("limited", "p:T", "normal:small", b"e", encode_locks([limited]))
    await broker.submit([LOCKED, FREE, many])
    assert await fetched(broker) == ["free", "limited"]
    assert broker.epoch.since > first
    assert await withheld_seconds(broker) == 30
    assert await records.hget(broker.client, "{test}:t:locked", "state") == b"waiting"
    why = explain(await TaskFacts(broker.client, "test").read("locked"))
    assert why.cause == "withheld" and "Redis has lost its data" in why.text
    answer, detail = await broker.hold("hold-1", encode_locks([MutexLock("job", 8)]))
    lock, _, rest_us = detail.partition("|")
    assert (answer, lock) == ("WITHHELD", "lock:mutex:job:8")
    assert 0 < int(rest_us) <= 30_000_000


@pytest.mark.parametrize("who", ["worker", "watchdog", "leader", "hold"])
async def test_every_process_reports_a_loss(
    broker: Broker, newcomer: Broker, redis_url: str, who: str
) -> None:
    """One that knew the old data begins the epoch, for newcomers, too."""
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


async def test_presence_knows_records_and_ends(broker: Broker) -> None:
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


async def test_a_lease_far_in_the_future_is_void(broker: Broker) -> None:
    """It was written under another clock."""
    leadership = Leadership(broker, "test")
    assert await leadership.lead("old", 30, "{}")
    assert await leadership.lead("new", 30, "{}") is None
    await broker.client.hincrby("{test}:leader", "expiry", 3600 * 10**6)
    assert await leadership.lead("new", 30, "{}")


async def test_a_loss_after_a_clock_was_set_back_is_noticed(broker: Broker) -> None:
    """The name of an epoch is above all earlier ones, whatever the clock says."""
    await fetched(broker)
    broker.epoch.see([b"9000000000000000", b"9000000000000005"])
    await broker.client.flushall()
    await broker.submit([LOCKED])
    assert await fetched(broker) == []
    assert broker.epoch.since > 9000000000000005


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


@pytest.mark.parametrize("layout", [None, 7])
async def test_data_of_another_layout_are_refused(broker: Broker, layout: int | None) -> None:
    """No task is handed over; the error names the layout, and what to do."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"e")])
    await broker.client.hdel("{test}:epoch", "layout")
    if layout:
        await broker.client.hset("{test}:epoch", "layout", layout)
    with pytest.raises(
        NonetError, match=rf"have layout {layout or 0}.* choose another NONET_NAMESPACE"
    ):
        await broker.fetch("small-a", "small", 1)
    assert await broker.client.xlen("{test}:tasks:normal:small") == 1
