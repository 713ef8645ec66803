"""Which task waits for which lock, and which one is woken when, on a real server.

No test waits: what time would bring about (a lease that ends, coming of age, a reservation that
lapses) is written into Redis, and a promotion does what is due.
"""

from __future__ import annotations

import pytest
import records
from clients import broker_at
from stores.beats import beat, lease_of

from nonet.base.errors import LimitImpossible
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

A, B = MutexLock("job", "a"), MutexLock("job", "b")
READER, WRITER = SharedRWLock("job", 1), ExclusiveRWLock("job", 1)
SLOT = ConcurrencyLimiter("job", 1, limit=1)
RATE = RateLimiter("job", 1, limit=1, window_seconds=3600)
WORKER = "small-a"
LONG_AGO = 10**12  # µs: before now, and long after a wait that began at 1000


class Queue:
    """One namespace, a worker without a process, and what it was given."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.redis = broker.client
        self.running: dict[str, Delivery] = {}

    async def submit(self, id: str, *locks: BaseLock, priority: str = "normal") -> None:
        lines = encode_locks(locks)
        await self.broker.submit([Submission(id, "p:T", f"{priority}:small", b"e", lines)])

    async def fetch(self, free: int = 100) -> list[str]:
        """Ids that were admitted, in the order in which the worker got them."""
        ids = []
        more = True
        while more and free > len(ids):
            deliveries, more = await self.broker.fetch(WORKER, "small", free - len(ids))
            ids += [delivery.id for delivery in deliveries]
            self.running |= {delivery.id: delivery for delivery in deliveries}
        return ids

    async def start(self, id: str, *locks: BaseLock, priority: str = "normal") -> None:
        await self.submit(id, *locks, priority=priority)
        assert await self.fetch() == [id]

    async def park(self, id: str, *locks: BaseLock, priority: str = "normal") -> None:
        await self.submit(id, *locks, priority=priority)
        assert await self.fetch() == []
        assert await self.state(id) == "waiting"

    async def end(self, *ids: str) -> None:
        for id in ids:
            assert await self.broker.settle(self.running.pop(id), "done", b"") == "OK"

    async def state(self, id: str) -> str:
        found = await records.hget(self.redis, f"{{test}}:t:{id}", "state")
        return str(found.decode())

    async def woken(self) -> list[str]:
        """Ids in the front streams that no worker has, in the order in which one would read."""
        entries = []
        for priority in ("realtime", "normal", "background"):
            entries += await self.redis.xrange(f"{{test}}:woken:{priority}:small")
        ids = [fields[b"id"].decode() for _, fields in entries]
        return [id for id in ids if id not in self.running]

    async def tick(self) -> None:
        while (await self.broker.promote()).next_in == 0:
            pass

    async def make_due(self, id: str) -> None:
        """A task's own look is due, or its reservation ends; nothing else is."""
        if await records.hget(self.redis, f"{{test}}:t:{id}", "reserved"):
            await records.hset(self.redis, f"{{test}}:t:{id}", "reserved", LONG_AGO)
        await self.redis.zadd("{test}:tasks:delayed", {id: LONG_AGO})
        await self.tick()

    async def age(self, id: str) -> None:
        """A waiting task has waited for so long that it counts as realtime."""
        await records.hset(self.redis, f"{{test}}:t:{id}", "since", 1000)
        await self.make_due(id)


@pytest.fixture
async def queue(broker: Broker) -> Queue:
    await broker.client.zadd("{test}:workers", {WORKER: 2**52})  # as if it beat
    return Queue(broker)


async def test_blocked_tasks_do_not_hold_up_others(queue: Queue) -> None:
    """Tasks behind them that need other locks, or none, start."""
    await queue.start("holder", A)
    for number in range(300):
        await queue.submit(f"blocked{number}", A, WRITER)
    await queue.submit("free", B)
    await queue.submit("none")
    assert await queue.fetch() == ["free", "none"]


async def test_a_script_wakes_at_most_32(queue: Queue) -> None:
    """Promotions wake the rest; none is forgotten."""
    await queue.start("w", WRITER)
    ids = [f"r{number:03}" for number in range(100)]
    for id in ids:
        await queue.submit(id, READER)
    assert await queue.fetch() == []
    await queue.end("w")
    assert await queue.woken() == ids[:32]
    await queue.tick()
    assert await queue.woken() == ids
    assert await queue.fetch() == ids


async def test_promotions_rest_while_other_locks_refuse_all(queue: Queue) -> None:
    """An offer that wakes no waiter is not repeated at once."""
    await queue.start("a", A)
    await queue.start("w", WRITER)
    for number in range(250):
        await queue.submit(f"r{number:03}", READER, A)
    assert await queue.fetch() == []
    await queue.end("w")
    promoted = [await queue.broker.promote() for _ in range(3)]
    assert promoted[-1].next_in != 0
    await queue.end("a")
    assert await queue.fetch() == ["r000"]


async def test_a_lost_wake_up_costs_only_a_pause(queue: Queue) -> None:
    """A waiter whose lock is free is found by its own look, without any watch."""
    await queue.start("holder", A)
    await queue.park("next", A)
    await queue.redis.delete("{test}:lock:mutex:job:a", "{test}:watch")
    await queue.tick()
    assert await queue.woken() == []
    await queue.make_due("next")
    assert await queue.fetch() == ["next"]


@pytest.mark.parametrize(
    ("ghost", "waiting"),
    [
        ({"{test}:queue:lock:mutex:job:a": 1 - 4 * 10**15}, A),
        ({"{test}:writers:lock:rw:job:1": 1}, READER),
    ],
    ids=["woken", "writer"],
)
async def test_what_a_cut_script_left_in_a_queue_blocks_no_task(
    queue: Queue, ghost: dict[str, int], waiting: BaseLock
) -> None:
    """A woken task that is no longer queued, or a writer that waits nowhere: its lock is free."""
    for name, score in ghost.items():
        await queue.redis.zadd(name, {"ghost": score})
    await queue.park("waits", waiting)
    watched = await queue.redis.zrange("{test}:watch", 0, -1)
    await queue.redis.zadd("{test}:watch", dict.fromkeys(watched, LONG_AGO))
    await queue.tick()
    assert await queue.fetch() == ["waits"]


async def test_a_reservation_outlasts_a_check_of_its_queue(queue: Queue) -> None:
    """A woken task has the free lock until it is taken: no other one is woken for it."""
    await queue.start("holder", A)
    await queue.park("woken", A)
    await queue.park("next", A)
    await queue.end("holder")
    await queue.redis.zadd("{test}:watch", {A.redis_key: 0})
    await queue.tick()
    assert await queue.woken() == ["woken"]


async def test_a_reservation_lasts_five_seconds(queue: Queue) -> None:
    """By the clock of Redis, from the moment at which the lock comes back."""
    await queue.start("holder", A)
    await queue.park("woken", A)
    before = await queue.broker.logical_now()
    await queue.end("holder")
    after = await queue.broker.logical_now()
    lapses_us = await queue.redis.zscore("{test}:tasks:delayed", "woken")
    assert before.timestamp() + 5 <= lapses_us / 1e6 <= after.timestamp() + 5


async def test_nothing_is_reserved_for_a_size_without_workers(queue: Queue) -> None:
    """A woken task that no worker can fetch delays no other task by its reservation."""
    await queue.start("holder", A)
    for number in range(3):
        id = f"large{number}"
        await queue.broker.submit([Submission(id, "p:T", "normal:large", b"e", encode_locks([A]))])
        assert (await queue.broker.fetch("large-a", "large", 1))[0] == []
    await queue.park("small", A)
    await queue.end("holder")
    assert await queue.fetch() == ["small"]
    await queue.end("small")
    deliveries, _ = await queue.broker.fetch("large-b", "large", 1)
    assert [delivery.id for delivery in deliveries] == ["large0"]


async def test_waiters_age_in_the_order_of_their_tickets(queue: Queue, redis_url: str) -> None:
    """Of many that are parked at once, none counts as realtime before an older one."""
    broker = broker_at(redis_url, lock_recheck=600, lock_aging=0.001)
    await queue.start("holder", A)
    ids = [str(n * 37 % 50) for n in range(50)]
    for id in ids:
        await queue.submit(id, A)
    assert (await broker.fetch(WORKER, "small", 1))[0] == []
    aged: list[str] = []
    while len(aged) < len(ids):
        await broker.promote(batch=7)
        aged = [
            id for id in ids if await records.hget(queue.redis, f"{{test}}:t:{id}", "aged") == b"1"
        ]
        assert aged == ids[: len(aged)]
    await broker.aclose()


async def test_an_impossible_task_is_refused_at_submit(queue: Queue) -> None:
    """A task of more items than a limit allows, and those submitted with it."""
    big = RateLimiter("job", 2, limit=5, window_seconds=60, n_items=6)
    fine = RateLimiter("job", 2, limit=5, window_seconds=60, n_items=5)
    items = [
        Submission(id, "p:T", "normal:small", b"e", encode_locks([lock]))
        for id, lock in (("fine", fine), ("big", big))
    ]
    with pytest.raises(LimitImpossible, match=r"task big .*rate:job:2 allows 5, one .* 6; lower"):
        await queue.broker.submit(items)
    assert not await queue.redis.exists("{test}:t:fine", "{test}:t:big")
    # What is configured counts, not what the class says.
    await queue.redis.hset("{test}:limits", "L||job|2|", "6|60000")
    assert await queue.broker.submit(items) == [True, True]
    await queue.redis.hset("{test}:limits", "L||job|2|", "3|60000")
    assert await queue.broker.submit(items) == [False, False]  # known: the same tasks


async def test_a_longer_window_keeps_its_grants(queue: Queue) -> None:
    """When a window is raised, the key of its grants lives as long."""
    brief = RateLimiter("job", 2, limit=1, window_seconds=5)
    key = "{test}:limiter:rate:job:2"
    await queue.start("first", brief)
    assert await queue.redis.pttl(key) < 10_000
    await queue.redis.hset("{test}:limits", "L||job|2|", "1|3600000")
    await queue.park("second", brief)
    assert await queue.redis.pttl(key) > 3_000_000


async def test_a_slot_too_short_to_renew_is_not_joined(queue: Queue, redis_url: str) -> None:
    """A limit that is set while a task runs must not end it."""
    await queue.start("runs", ConcurrencyLimiter("job", 2, ttl_ms=1000))
    delivery = queue.running["runs"]
    await queue.redis.hset("{test}:limits", "C||job|2|", "1")
    assert beat(redis_url, lease_of(delivery)) == set()
    assert not await queue.redis.exists("{test}:limiter:conc:job:2")


async def test_workers_promote_where_no_leader_does(queue: Queue, term: str) -> None:
    """Not beside a leader; a promotion in the future, by a clock that was set back, is none."""
    await queue.start("holder", A)
    await queue.park("waits", A)
    assert (await queue.broker.promote(term)).allowed
    assert not (await queue.broker.promote()).allowed
    await queue.redis.set("{test}:promoted", 2**52)
    assert (await queue.broker.promote()).allowed


async def test_a_hold_waits_in_the_same_queue(queue: Queue) -> None:
    """A program takes its turn as a task of the highest priority, and is woken."""
    await queue.start("holder", A)
    await queue.park("task", A)
    lines = encode_locks([A])
    assert await queue.broker.hold("hold-1", lines, "me", wait=True) == ("REFUSED", A.redis_key)
    await queue.end("holder")
    assert await queue.fetch() == []
    told = f"{{test}}:wake:{queue.broker.wakes.client}"
    assert await queue.redis.lrange(told, 0, -1) == [b"hold-1"]
    assert (await queue.broker.hold("hold-1", lines, "me", wait=True))[0] == "OK"
    await queue.broker.unhold("hold-1")
    assert await queue.fetch() == ["task"]


@pytest.mark.parametrize("woken", [True, False])
async def test_a_hold_that_no_longer_asks_is_forgotten(queue: Queue, woken: bool) -> None:
    """A program that died while it waited delays no task."""
    await queue.start("holder", A)
    lines = encode_locks([A])
    await queue.broker.hold("hold-1", lines, "me", wait=True)
    await queue.park("task", A)
    if woken:
        await queue.end("holder")
    await records.hset(queue.redis, "{test}:t:hold-1", "seen", 1000)
    await queue.make_due("hold-1")
    assert not await queue.redis.exists("{test}:t:hold-1", "{test}:l:hold-1")
    if not woken:
        await queue.end("holder")
    assert await queue.fetch() == ["task"]
