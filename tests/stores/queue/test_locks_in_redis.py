"""Locks and limiters as the scripts take, renew and release them, on a real server."""

from __future__ import annotations

import asyncio

import pytest
from stores.beats import beat, lease_of, leases_of
from waits import WAIT_SECONDS

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Lease
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


def make_broker(url: str, lock_ttl: float = 30) -> Broker:
    return Broker(url, "test", lock_ttl=lock_ttl, lease=45, result_ttl=60, dedup_ttl=60)


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
async def test_who_excludes_whom(
    broker: Broker, held: BaseLock, wanted: BaseLock, free: bool
) -> None:
    """A lock is refused exactly while an incompatible one on the same name is held."""
    fence = await hold(broker, "first", held)
    assert fence is not None
    assert (await hold(broker, "second", wanted) is not None) == free
    await broker.unhold("first")
    assert await hold(broker, "third", held) is not None or free


async def test_all_or_nothing(broker: Broker) -> None:
    """A task that is refused one lock takes none of its others, whatever their order."""
    await hold(broker, "holder", MUTEX)
    limiter = ConcurrencyLimiter("task", "x", limit=1)
    rate = RateLimiter("task", "x", limit=1, window_seconds=60)
    other = MutexLock("job", 2)
    assert await submit_and_fetch(broker, "a", other, limiter, rate, READER, MUTEX) == []
    assert await hold(broker, "b", other, limiter, rate, WRITER) is not None


async def test_a_refused_task_waits_without_a_slot_and_runs_later(broker: Broker) -> None:
    """Refusal costs neither slot nor attempt; the blocker can be read; it runs after release."""
    fence = await hold(broker, "holder", MUTEX)
    assert fence is not None
    assert await submit_and_fetch(broker, "a", MUTEX) == []
    record = await broker.client.hgetall("{test}:t:a")
    assert (record[b"state"], record[b"blocker"]) == (b"waiting", b"lock:mutex:job:1")
    assert await broker.client.xlen("{test}:tasks:normal:small") == 0
    await broker.unhold("holder")
    while not (deliveries := (await broker.fetch("small-a", "small", 1))[0]):
        await broker.promote()
    assert (deliveries[0].id, deliveries[0].attempt) == ("a", 1)


async def test_looks_at_a_waiting_task_grow_rare(broker: Broker) -> None:
    """Each refusal in a row doubles the pause before the next look without a wake-up, to a cap."""
    await hold(broker, "holder", MUTEX)
    await submit_and_fetch(broker, "a", MUTEX)
    await broker.client.hset("{test}:t:a", "aged", 1)  # else it is looked at when of age
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


async def test_lock_ends_at_its_ttl_and_the_late_settle_is_refused(redis_url: str) -> None:
    """A holder that stops renewing loses its lock after the TTL; then its settle is LOST."""
    broker = make_broker(redis_url, lock_ttl=0.2)
    (late,) = await submit_and_fetch(broker, "late", MUTEX, READER)
    while (await hold(broker, "next", MUTEX, WRITER)) is None:
        pass
    assert await broker.settle(late, "done", b"") == "LOST"
    assert await broker.client.hget("{test}:t:late", "state") == b"running"
    assert await broker.settle(late, "back") == "OK"
    assert await hold(broker, "third", MUTEX) is None
    await broker.aclose()


async def test_an_expired_lease_excludes_nobody_even_if_its_key_is_still_there(
    broker: Broker, redis_url: str
) -> None:
    """Expiry is a comparison of times; the TTL of a key only collects garbage."""
    slot = ConcurrencyLimiter("job", 1, limit=1)
    await broker.client.set("{test}:lock:mutex:job:1", "dead/1/1|1000")
    await broker.client.set("{test}:lock:rw:job:1:w", "dead/1/1|1000")
    await broker.client.zadd("{test}:lock:rw:job:1:r", {"dead/1/1": 1000})
    await broker.client.zadd("{test}:limiter:conc:job:1", {"dead/1/1": 1000})
    assert await hold(broker, "a", MUTEX, WRITER, slot) is not None
    fence = await hold(broker, "b", SharedRWLock("job", 2))
    lease = Lease("b", "0", fence or "", 30)
    assert beat(redis_url, lease) == set()
    await broker.client.zadd("{test}:lock:rw:job:2:r", {f"b/0/{fence}": 1000})
    assert beat(redis_url, lease) == {"b/0"}


async def test_a_hold_that_ran_out_is_asked_anew(redis_url: str) -> None:
    """Who asks again with an id whose locks ran out gets them only if nobody else holds them."""
    broker = make_broker(redis_url, lock_ttl=30)
    mutex = MutexLock("job", 1, ttl_ms=100)
    first = await hold(broker, "a", mutex, WRITER)
    while (other := await hold(broker, "b", mutex)) is None:
        pass
    assert await hold(broker, "a", mutex, WRITER) is None
    assert await hold(broker, "c", WRITER) is not None
    assert other > (first or "")
    await broker.aclose()


@pytest.mark.parametrize("lock", [MUTEX, WRITER, READER, ConcurrencyLimiter("job", 1, limit=1)])
async def test_renewing_keeps_every_kind_of_lock(redis_url: str, lock: BaseLock) -> None:
    """A renewed lock outlives its TTL many times; a lost one is reported, not revived."""
    broker = make_broker(redis_url, lock_ttl=0.2)
    (delivery,) = await submit_and_fetch(broker, "a", lock)
    leases, lease = leases_of(redis_url, lock_ttl=0.2), lease_of(delivery, 0.2)
    key = f"{{test}}:{lock.redis_key}" + {"W": ":w", "R": ":r"}.get(lock.kind.letter, "")
    rival: BaseLock = WRITER if lock.kind.letter in "RW" else lock
    start = await broker.now()
    while (await broker.now() - start).total_seconds() < 1:
        assert leases.renew([lease]) == set()
        assert await hold(broker, "rival", rival) is None
    await broker.client.delete(key)
    assert leases.renew([lease]) == {lease.key}
    assert await broker.client.exists(key) == 0
    leases.close()
    await broker.aclose()


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


async def test_a_lock_key_of_another_type_costs_its_own_lease(
    broker: Broker, redis_url: str
) -> None:
    """One broken key makes its holder lose the lock; the same beat renews the others."""
    others = [f"b{n}" for n in range(2)]
    held = {id: await hold(broker, id, MutexLock("job", id)) or "" for id in ("a", *others)}
    await broker.client.delete("{test}:lock:mutex:job:a")
    await broker.client.sadd("{test}:lock:mutex:job:a", "not a string")
    for id in others:
        await broker.client.pexpire(f"{{test}}:lock:mutex:job:{id}", 5000)
    leases = [Lease(id, "0", fence, 30) for id, fence in held.items()]
    assert beat(redis_url, *leases) == {"a/0"}
    for id in others:
        assert await broker.client.pttl(f"{{test}}:lock:mutex:job:{id}") > 20_000


async def test_release_and_renewal_check_the_owner(broker: Broker, redis_url: str) -> None:
    """Renewing with somebody else's fence, or releasing as somebody else, changes nothing."""
    fence = await hold(broker, "a", MUTEX)
    assert fence is not None
    assert beat(redis_url, Lease("a", "0", str(int(fence) + 1), 30)) == {"a/0"}
    await broker.unhold("b")
    assert await hold(broker, "b", MUTEX) is None


async def test_changed_locks_are_readmitted_all_or_none(broker: Broker) -> None:
    """A worker that computes other locks than the submitter gets exactly those, or none."""
    (delivery,) = await submit_and_fetch(broker, "a", MUTEX)
    assert await broker.admit(delivery, encode_locks([WRITER])) == (True, "")
    assert await hold(broker, "b", MUTEX) is not None
    assert await hold(broker, "c", READER) is None
    assert await broker.admit(delivery, encode_locks([READER, MUTEX])) == (
        False,
        "lock:mutex:job:1",
    )
    assert await hold(broker, "d", WRITER) is not None


async def test_rate_is_never_exceeded_in_any_window(broker: Broker) -> None:
    """Over many windows no window of the limiter's length sees more grants than its limit."""
    rate = RateLimiter("task", "x", limit=3, window_seconds=0.2)
    grants: list[int] = []  # µs: as seconds, two that are 0.2 s apart may differ by less
    count = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while len(grants) < 12:
            count += 1
            if await hold(broker, f"r{count}", rate) is not None:
                key = "{test}:limiter:rate:task:x"
                scores = await broker.client.zrange(key, -1, -1, withscores=True)
                grants.append(round(scores[0][1]))
    for first, fourth in zip(grants, grants[3:], strict=False):
        assert fourth - first >= 200_000


async def test_rate_tokens_come_back_when_the_attempt_never_started(broker: Broker) -> None:
    """A hand-back before the start returns the token; a started attempt has used it."""
    rate = RateLimiter("task", "x", limit=1, window_seconds=60)
    (delivery,) = await submit_and_fetch(broker, "a", rate)
    await broker.settle(delivery, "back", started=False)
    ((again,), _) = await broker.fetch("small-a", "small", 1)
    await broker.settle(again, "done", b"")
    assert await submit_and_fetch(broker, "b", rate) == []


async def test_the_sum_of_a_rate_is_that_of_its_grants(broker: Broker) -> None:
    """Whatever expires or is lost of the two keys, the next check knows the true sum."""
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


async def test_no_lock_key_outlives_its_use(broker: Broker) -> None:
    """Every lock key carries a TTL of its own, whatever happens to its holder."""
    kinds: list[BaseLock] = [MUTEX, WRITER, SharedRWLock("job", 3)]
    kinds += [
        ConcurrencyLimiter("job", 1, limit=9),
        RateLimiter("job", 1, limit=9, window_seconds=1),
    ]
    await hold(broker, "a", *kinds)
    keys = [key async for key in broker.client.scan_iter("{test}:l*")]
    keys += [key async for key in broker.client.scan_iter("{test}:[st]*:*")]
    assert len(keys) == len(kinds) + 3  # lines and record of the hold, and the sum of the rate
    for key in keys:
        assert 0 < await broker.client.pttl(key) <= 61_000
