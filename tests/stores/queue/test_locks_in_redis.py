"""Locks and limiters as the scripts take, renew and release them, on a real server."""

from __future__ import annotations

import pytest
import records
from clients import broker_at
from stores.beats import beat, lease_of

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
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

MUTEX = MutexLock("job", 1)
WRITER = ExclusiveRWLock("job", 1)
READER = SharedRWLock("job", 1)


async def hold(broker: Broker, id: str, *locks: BaseLock) -> str | None:
    """Fence of the hold, or None if a lock refused."""
    answer, detail = await broker.hold(id, encode_locks(locks))
    return detail if answer == "OK" else None


async def submit_and_fetch(broker: Broker, id: str, *locks: BaseLock) -> list[Delivery]:
    await broker.submit([Submission(id, "p:T", "normal:small", b"e", encode_locks(locks))])
    return (await broker.fetch("small-a", "small", 10))[0]


@pytest.mark.parametrize(
    ("held", "wanted", "free"),
    [
        (MUTEX, MUTEX, False),
        (WRITER, WRITER, False),
        (WRITER, READER, False),
        (READER, WRITER, False),
        (READER, READER, True),
        # A mutex and a reader/writer lock on one object are different locks.
        (MUTEX, WRITER, True),
        (MUTEX, READER, True),
        (MUTEX, MutexLock("job", 2), True),
        (MUTEX, MutexLock("task", 1), True),
        (MutexLock("job", "a:b", "c"), MutexLock("job", "a", "b:c"), True),
    ],
)
async def test_a_lock_excludes_incompatible_ones(
    broker: Broker, held: BaseLock, wanted: BaseLock, free: bool
) -> None:
    """A lock is refused exactly while an incompatible one on the same name is held."""
    fence = await hold(broker, "first", held)
    assert fence is not None
    assert (await hold(broker, "second", wanted) is not None) == free
    await broker.unhold("first")
    assert await hold(broker, "third", held) is not None or free


async def test_a_waiting_task_is_checked_less_and_less(broker: Broker) -> None:
    """Each refusal in a row doubles the pause before the next check, up to a cap."""
    await hold(broker, "holder", MUTEX)
    await submit_and_fetch(broker, "a", MUTEX)
    await records.hset(broker.client, "{test}:t:a", "aged", 1)  # else it is looked at when of age
    pauses = []
    for _ in range(8):
        await broker.client.zadd("{test}:tasks:delayed", {"a": 0})
        await broker.promote()
        now = (await broker.now()).timestamp()
        due = await broker.client.zscore("{test}:tasks:delayed", "a")
        pauses.append(due / 1e6 - now)
    assert 15 < pauses[0] < 90
    assert 299 < max(pauses) <= 900
    assert pauses[3] > 115


@pytest.mark.parametrize("lock", [MUTEX, WRITER, READER, ConcurrencyLimiter("job", 1, limit=1)])
async def test_a_beat_extends_every_lock(broker: Broker, redis_url: str, lock: BaseLock) -> None:
    """A beat gives a held lock its whole TTL again, and reports a lost one."""
    (delivery,) = await submit_and_fetch(broker, "a", lock)
    key = f"{{test}}:{lock.redis_key}" + {"W": ":w", "R": ":r"}.get(lock.kind.letter, "")
    await broker.client.pexpire(key, 20_000)
    assert beat(redis_url, lease_of(delivery)) == set()
    assert await broker.client.pttl(key) > 20_000
    await broker.client.delete(key)
    assert beat(redis_url, lease_of(delivery)) == {lease_of(delivery).key}
    assert await broker.client.exists(key) == 0


async def test_the_longest_locks_are_taken_and_renewed(broker: Broker, redis_url: str) -> None:
    """The bounds of ttl and window are numbers that every script can work with."""
    locks = [kind("job", 1, ttl_ms=2**31 - 1) for kind in (MutexLock, ExclusiveRWLock)]
    limits = (
        ConcurrencyLimiter("job", 1, limit=1, ttl_ms=2**31 - 1),
        RateLimiter("job", 1, limit=1, window_seconds=366 * 24 * 3600),
    )
    (delivery,) = await submit_and_fetch(broker, "a", *locks, *limits)
    assert beat(redis_url, lease_of(delivery)) == set()
    assert await submit_and_fetch(broker, "b", limits[1]) == []
    assert await broker.settle(delivery, "done", b"") == "OK"


async def test_the_sum_of_a_rate_is_that_of_its_grants(broker: Broker) -> None:
    """Whatever is lost of the two keys, the next check knows the true sum."""
    rate = RateLimiter("task", "x", limit=5, window_seconds=60, n_items=2)
    names = ["{test}:limiter:rate:task:x", "{test}:sum:limiter:rate:task:x"]
    assert await hold(broker, "a", rate) is not None
    await broker.client.delete(names[1])
    assert await hold(broker, "b", rate) is not None
    assert await hold(broker, "c", rate) is None
    assert await broker.client.get(names[1]) == b"4"
    await broker.client.delete(names[0])
    assert await hold(broker, "d", rate) is not None
    assert await broker.client.get(names[1]) == b"2"
    (delivery,) = await submit_and_fetch(broker, "e", rate)
    await broker.settle(delivery, "back", started=False)
    assert await hold(broker, "f", rate) is not None
    assert await hold(broker, "g", rate) is None


async def test_every_lock_key_has_a_ttl(broker: Broker) -> None:
    """It collects what a dead holder leaves, a day later."""
    kinds: list[BaseLock] = [MUTEX, WRITER, SharedRWLock("job", 3)]
    kinds += [
        ConcurrencyLimiter("job", 1, limit=9),
        RateLimiter("job", 1, limit=9, window_seconds=1),
    ]
    await hold(broker, "a", *kinds)
    keys = [key async for key in broker.client.scan_iter("{test}:l*")]
    keys += [key async for key in broker.client.scan_iter("{test}:[st]*:*")]
    assert len(keys) == len(kinds) + 2  # the record of the hold, and the sum of the rate
    for key in keys:
        assert 0 < await broker.client.pttl(key) <= 86_400_000 + 30_000


def task(id: str, *locks: BaseLock) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", encode_locks(locks))


async def test_one_fetch_gives_a_mutex_to_one_task(broker: Broker) -> None:
    """Although a task before them, which a limiter refuses, has found the mutex free."""
    mutex = MutexLock("job", 1)
    limiter = RateLimiter("job", "mail", limit=1, window_seconds=60)
    await broker.submit([task("uses the limiter up", limiter), task("refused", mutex, limiter)])
    await broker.submit([task("plain", mutex), task("other", mutex, MutexLock("job", 2))])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    assert [item.id for item in deliveries] == ["uses the limiter up", "plain"]


async def test_a_free_mutex_goes_to_the_task_that_waits_for_it(broker: Broker) -> None:
    """A later task that needs nothing else does not pass it."""
    await submit_and_fetch(broker, "holder", MUTEX)
    assert await submit_and_fetch(broker, "waits", MUTEX) == []
    await broker.client.delete("{test}:lock:mutex:job:1")
    assert await submit_and_fetch(broker, "later", MUTEX) == []


async def test_the_settle_of_an_ended_mutex_is_refused(broker: Broker) -> None:
    """Its key outlives the lease: what counts is the time in it."""
    (late,) = await submit_and_fetch(broker, "late", MUTEX)
    key = "{test}:lock:mutex:job:1"
    owner, _, _ = (await broker.client.get(key)).partition(b"|")
    await broker.client.set(key, owner + b"|1")
    assert await broker.settle(late, "done", b"") == "LOST"


async def test_five_hundred_tasks_with_locks_take_one_call(broker: Broker) -> None:
    """Neither Lua nor Redis limits the arguments below that."""
    tasks = [task(f"t{number}", MutexLock("job", number)) for number in range(500)]
    assert await broker.submit(tasks) == [True] * 500
    deliveries, _ = await broker.fetch("small-a", "small", 500)
    assert len(deliveries) == 500 and all(item.locks for item in deliveries)


async def test_lock_ends_at_its_ttl_and_the_late_settle_is_refused(redis_url: str) -> None:
    """A holder that stops renewing loses its lock after the TTL; then its settle is LOST."""
    broker = broker_at(redis_url, lock_ttl=0.2)
    (late,) = await submit_and_fetch(broker, "late", MUTEX, READER)
    while (await hold(broker, "next", MUTEX, WRITER)) is None:
        pass
    assert await broker.settle(late, "done", b"") == "LOST"
    assert await records.hget(broker.client, "{test}:t:late", "state") == b"running"
    assert await broker.settle(late, "back") == "OK"
    assert await hold(broker, "third", MUTEX) is None
    await broker.aclose()
