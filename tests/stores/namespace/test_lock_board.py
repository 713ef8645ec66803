"""What operators see of locks and of tasks that do not run, and what a forced release does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import records
import redis.asyncio
from clients import broker_at
from stores.beats import lease_of, leases_of

from nonet import InvalidArgumentsError, NotFoundError
from nonet.base.messages.message import ErrorDocument, encode
from nonet.operate import locks
from nonet.operate.locks import LockQuery
from nonet.rules.findings.explanation import Explanation, explain
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.lock_board import LockBoard, LockStatus
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

MUTEX = MutexLock("job", 7)
NAME = "lock:mutex:job:7"
WRITER = ExclusiveRWLock("job", 7)
READER = SharedRWLock("job", 7)
SLOT = ConcurrencyLimiter("job", 7, limit=1)
RATE = RateLimiter("job", 7, limit=2, window_seconds=60)
WHO = "me@here 1"


class Bench:
    """A broker and a registered worker, without processes."""

    def __init__(self, url: str, lock_ttl: float = 30) -> None:
        self.broker = broker_at(url, lock_ttl=lock_ttl)
        self.board = LockBoard(self.broker.client, "test")
        self.client: redis.asyncio.Redis = self.broker.client
        self.leases = leases_of(url, info=json.dumps({"name": "7@host"}), lock_ttl=lock_ttl)

    async def aclose(self) -> None:
        self.leases.close()
        await self.broker.aclose()

    def beat(self, *held: Delivery) -> set[str]:
        """Register the worker; the ids of those deliveries that are lost."""
        lost = self.leases.renew([lease_of(item) for item in held])
        return {key.partition("/")[0] for key in lost}

    async def submit(
        self, id: str, *locks: BaseLock, stream: str = "normal:small", vo: str = "", due: int = 0
    ) -> None:
        lines = encode_locks(locks, vo=vo)
        await self.broker.submit([Submission(id, "p:T", stream, b"e", lines, due)])

    async def fetch(self, free: int = 10) -> list[Delivery]:
        return (await self.broker.fetch("small-a", "small", free))[0]

    async def run(self, id: str, *locks: BaseLock, **options: Any) -> Delivery:
        """A task that runs."""
        await self.submit(id, *locks, **options)
        (delivery,) = await self.fetch()
        return delivery

    async def park(self, *ids: str, lock: BaseLock = MUTEX, **options: Any) -> None:
        """Tasks that are refused."""
        for id in ids:
            await self.submit(id, lock, **options)
        assert await self.fetch() == []

    async def explain(self, id: str) -> Explanation:
        return explain(await TaskFacts(self.broker.client, "test").read(id))

    async def in_use(self, **query: Any) -> Sequence[LockStatus]:
        stores: Any = SimpleNamespace(locks=self.board)
        return (await locks.find(stores, LockQuery(limit=1000, **query))).items

    async def only(self) -> LockStatus:
        (found,) = await self.in_use()
        return found


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    made = Bench(redis_url)
    yield made
    await made.aclose()


async def test_a_mutex_shows_holder_and_waiters(bench: Bench) -> None:
    """The holder with its task and worker; the waiters by rank, woken ones first."""
    bench.beat()
    held = await bench.run("a", MUTEX)
    await bench.park("b", "c")
    await bench.park("first", stream="realtime:small")
    found = await bench.only()
    assert (found.lock, found.kind, found.holding, found.waiting) == (NAME, "mutex", 1, 3)
    (holder,) = found.holders
    assert (holder.id, holder.task, holder.worker, holder.is_live) == ("a", "p:T", "7@host", True)
    assert 25 < holder.ttl_seconds <= 30 and 0 <= (holder.held_seconds or -1) < 20
    assert [item.id for item in found.waiters] == ["first", "b", "c"]
    assert not any(item.is_woken for item in found.waiters)
    assert 0 < (found.longest_wait_seconds or 0) < 20
    await bench.broker.settle(held, "done", b"")
    found = await bench.only()
    assert (found.holding, found.woken) == (0, 1)
    assert [(item.id, item.is_woken) for item in found.waiters][:2] == [
        ("first", True),
        ("b", False),
    ]


@pytest.mark.parametrize(("ttl_ms", "is_renewed"), [(30_000, False), (24_000, True)])
async def test_a_lock_that_misses_renewals_is_not_renewed(
    bench: Bench, ttl_ms: int, is_renewed: bool
) -> None:
    """Less than a third of its own lease is left, or the registration of its worker has ended."""
    bench.beat()
    await bench.run("a", MutexLock("job", 7, ttl_ms=ttl_ms))
    (holder,) = (await bench.only()).holders
    assert holder.is_renewed
    key = "{test}:lock:mutex:job:7"
    owner, expiry = (await bench.client.get(key)).rsplit(b"|", 1)
    await bench.client.set(key, owner + b"|%d" % (int(expiry) - (ttl_ms - 9000) * 1000))
    (holder,) = (await bench.only()).holders
    assert holder.is_renewed == is_renewed and holder.ttl_seconds < 9
    await bench.client.set(key, owner + b"|" + expiry)
    await bench.client.zadd("{test}:workers", {"small-a": 1})
    (holder,) = (await bench.only()).holders
    assert (holder.is_live, holder.is_renewed) == (True, False)


async def test_both_sides_of_a_reader_writer_lock_are_one_lock(bench: Bench) -> None:
    """Readers are counted and named; then a writer."""
    readers = [await bench.run(f"r{n}", READER) for n in range(3)]
    await bench.park("w", lock=WRITER)
    found = (await bench.in_use(show=2))[0]
    assert (found.lock, found.side, found.holding) == ("lock:rw:job:7", "readers", 3)
    assert [item.id for item in found.holders] == ["r0", "r1"]
    for delivery in readers:
        await bench.broker.settle(delivery, "done", b"")
    assert [item.id for item in await bench.fetch()] == ["w"]
    found = await bench.only()
    assert (found.side, [item.id for item in found.holders]) == ("writer", ["w"])


async def test_a_limiter_shows_what_is_used_of_its_limit(bench: Bench) -> None:
    """Of the class, unless one is configured; the counter of a VO has its own."""
    await bench.run("a", SLOT, RATE)
    await bench.park("b", lock=SLOT)
    rows = {item.lock: item for item in await bench.in_use()}
    conc, rate = rows["limiter:conc:job:7"], rows["limiter:rate:job:7"]
    assert (conc.used, conc.limit, conc.waiting) == (1, 1, 1)
    assert (rate.used, rate.limit, rate.window_seconds) == (1, 2, 60)
    assert 50 < (rate.back_seconds or 0) <= 60
    await bench.client.hset("{test}:limits", "C||job|7|", "5")
    await bench.client.hset("{test}:limits", "C|lhcb|job|7|", "3")
    await bench.run("v", SLOT, vo="lhcb")
    rows = {item.lock: item for item in await bench.in_use(object_type="job")}
    assert (rows["limiter:conc:job:7"].limit, rows["limiter:conc:job:7"].used) == (5, 1)
    mine = rows["limiter:conc:@lhcb:job:7"]
    assert (mine.limit, mine.used, [item.id for item in mine.holders]) == (3, 1, ["v"])
    await bench.client.hdel("{test}:limits", "C|lhcb|job|7|")
    mine = await bench.board.get("limiter:conc:@lhcb:job:7")
    assert (mine.limit, mine.used) == (None, 1)
    assert await bench.in_use(object_type="task") == []


async def test_many_locks_are_listed(bench: Bench) -> None:
    """The most wanted first."""
    many = [MutexLock("job", n) for n in range(120)]
    await bench.run("a", *many)
    await bench.park("b", lock=many[77])
    found = await bench.in_use()
    assert len(found) == 120 and found[0].lock == "lock:mutex:job:77"


async def test_a_running_task_names_its_worker(bench: Bench) -> None:
    """Also one that no longer answers."""
    await bench.run("a")
    assert "no longer answers" in (await bench.explain("a")).text
    bench.beat()
    assert (await bench.explain("a")).worker == "7@host"


async def test_a_parked_task_names_what_refuses_it_now(bench: Bench) -> None:
    """The holder, then the tasks before it; the stored blocker does not count."""
    bench.beat()
    held = await bench.run("a", MUTEX)
    await bench.park("b", "c")
    found = await bench.explain("c")
    assert (found.cause, found.lock, found.ahead) == ("lock", NAME, 1)
    assert [item.id for item in found.holders] == ["a"]
    assert " by task a (p:T on 7@host)" in found.text
    await bench.broker.settle(held, "done", b"")
    found = await bench.explain("c")
    assert (found.cause, found.ahead) == ("turn", 1) and "the first is task b" in found.text
    assert (await bench.explain("b")).cause == "woken"
    # As if its wake-up had been lost.
    await bench.client.zrem("{test}:queue:" + NAME, "b")
    assert (await bench.explain("c")).cause == "look"


async def test_a_reader_waits_for_an_earlier_writer(bench: Bench) -> None:
    """Beside readers that hold the lock."""
    await bench.run("r", READER)
    await bench.park("w", lock=WRITER)
    await bench.park("late", "later", lock=READER)
    assert (await bench.explain("w")).cause == "lock"
    found = await bench.explain("later")
    assert (found.cause, found.ahead, "first is task w" in found.text) == ("turn", 1, True)


async def test_a_lock_of_a_lost_attempt_is_named_so(bench: Bench) -> None:
    """A release drops it, and leaves the task, which was reclaimed meanwhile, alone."""
    await bench.run("a", MUTEX)
    await records.hset(bench.client, "{test}:t:a", "gen", "1")
    await bench.park("b")
    found = await bench.explain("b")
    assert "a lost attempt of task a (p:T). The lock expires in " in found.text
    assert not found.holders[0].is_live
    before = await records.hgetall(bench.client, "{test}:t:a")
    done = await bench.board.release(NAME, WHO)
    assert [item.is_live for item in done.voided] == [False]
    assert await records.hgetall(bench.client, "{test}:t:a") == before


async def test_a_hold_is_named_by_its_process(bench: Bench) -> None:
    """It is not a task."""
    assert (await bench.broker.hold("hold-1", encode_locks([MUTEX]), "8@host"))[0] == "OK"
    await bench.park("b")
    assert "a program that is not a task (8@host, hold-1)" in (await bench.explain("b")).text
    assert (await bench.only()).holders[0].worker == "8@host"
    with pytest.raises(NotFoundError, match="code that holds locks"):
        await bench.explain("hold-1")


async def test_a_limiter_refusal_has_numbers(bench: Bench) -> None:
    """What is in use, the next token of a rate, and the tasks before it."""
    await bench.run("a", SLOT)
    await bench.park("b", "c", lock=SLOT)
    found = await bench.explain("b")
    assert (found.cause, found.text) == ("limiter", "waiting for limiter:conc:job:7: 1 of 1 in use")
    assert [item.id for item in found.holders] == ["a"]
    assert (await bench.explain("c")).ahead == 1
    await bench.run("x", RATE)
    await bench.run("y", RATE)
    await bench.park("z", lock=RATE)
    found = await bench.explain("z")
    assert found.cause == "rate" and found.until is not None
    assert "limiter:rate:job:7: 2 of 2 used in 60 s. Next token in " in found.text
    await bench.client.hset("{test}:limits", "L||job|7|", "1|5000")
    assert "2 of 1 used in 5 s" in (await bench.explain("z")).text


async def test_delayed_tasks_say_until_when(bench: Bench) -> None:
    """A time, a retry with its error, a hand-back with its reason, an absent SQL."""
    seconds, _ = await bench.client.time()
    await bench.submit("later", due=(seconds + 3601) * 1_000_000)
    found = await bench.explain("later")
    assert found.cause == "time" and "(in 1 h)" in found.text
    delay = timedelta(seconds=20)
    retried = await bench.run("retried")
    await bench.broker.settle(retried, "retry", b"doc", text="ValueError: no", delay=delay)
    found = await bench.explain("retried")
    assert (found.cause, "failed: ValueError: no" in found.text) == ("retry", True)
    back = await bench.run("back", MUTEX)
    await bench.broker.settle(back, "back", text="a worker does not know p:T", delay=delay)
    found = await bench.explain("back")
    assert found.cause == "hand-back"
    assert found.text.startswith("waiting, handed back: a worker does not know p:T. Next try in ")
    dying = await bench.run("dying")
    failure = ErrorDocument("retries", "ValueError", "no", "", 1, 0.0)
    await bench.broker.settle(dying, "dying", encode(failure))
    await bench.broker.settle(dying, "back", text="SQL: away", delay=delay)
    found = await bench.explain("dying")
    assert found.cause == "sql" and found.text.startswith("dying (ValueError: no)")
    assert "cannot be written to SQL: away. Next try in" in found.text


async def test_a_due_task_needs_a_promoter(bench: Bench) -> None:
    """Without a scheduler and workers no process moves it."""
    await bench.submit("late", due=1)
    await records.hset(bench.client, "{test}:t:late", mapping={"state": "delayed", "ticket": "1"})
    await bench.client.zadd("{test}:tasks:delayed", {"late": 1})
    assert (await bench.explain("late")).cause == "promoter"
    bench.beat()
    assert (await bench.explain("late")).cause == "time"


async def test_a_queued_task_has_a_place(bench: Bench) -> None:
    """Without workers of its size, behind others, and first in its stream."""
    for id in ("a", "b", "c"):
        await bench.submit(id)
    found = await bench.explain("c")
    assert found.cause == "worker" and found.next == "task-worker --size small"
    bench.beat()
    found = await bench.explain("c")
    assert (found.cause, found.ahead) == ("queue", 2)
    await bench.submit("urgent", stream="realtime:small")
    await bench.submit("other", stream="realtime:large")
    await bench.submit("idle", stream="background:small")
    assert (await bench.explain("c")).ahead == 3
    assert (await bench.explain("idle")).ahead == 4
    assert [item.id for item in await bench.fetch(2)] == ["urgent", "a"]
    assert (await bench.explain("c")).ahead == 1
    assert [item.id for item in await bench.fetch(1)] == ["b"]
    found = await bench.explain("c")
    assert found.ahead == 0 and "The only live small worker is busy" in found.text
    await bench.fetch(3)
    await bench.submit("next")
    await bench.client.zadd("{test}:idle:small", {"small-a": 1})
    assert "An idle small worker is about to read the stream" in (await bench.explain("next")).text
    await bench.client.delete("{test}:tasks:normal:small")
    assert "in no stream" in (await bench.explain("next")).text


async def test_a_place_is_counted_up_to_a_thousand(bench: Bench) -> None:
    """A task behind has more than that ahead."""
    bench.beat()
    tasks = [Submission(f"t{n}", "p:T", "normal:small", b"e") for n in range(1500)]
    await bench.broker.submit(tasks)
    assert (await bench.explain("t999")).ahead == 999
    found = await bench.explain("t1200")
    assert found.ahead == 1000 and "more than 1000 ahead of it" in found.text


async def test_ended_and_unknown_tasks(bench: Bench) -> None:
    """An ended task says how; the errors for an unknown one and a group differ."""
    await bench.broker.settle(await bench.run("a"), "done", b"")
    assert (await bench.explain("a")).text == "done"
    await bench.broker.settle(await bench.run("b"), "dead", b"no document")
    found = await bench.explain("b")
    assert (found.cause, found.text) == ("ended", "dead: no error is kept")
    with pytest.raises(NotFoundError, match="task nobody is unknown"):
        await bench.explain("nobody")
    await bench.client.hset("{test}:g:g1", "state", "sealed")
    with pytest.raises(NotFoundError, match="task-run groups g1"):
        await bench.explain("g1")


async def test_explaining_and_listing_change_nothing(bench: Bench) -> None:
    """No task, lock or score."""
    bench.beat()
    await bench.run("a", MUTEX, SLOT)
    await bench.park("b", "c")
    await bench.submit("d")

    async def state() -> dict[bytes, Any]:
        return {key: await bench.client.dump(key) for key in await bench.client.keys("*")}

    before = await state()
    for id in "abcd":
        await bench.explain(id)
    await bench.in_use()
    assert await state() == before


async def test_a_released_mutex_goes_to_the_next(bench: Bench) -> None:
    """The old attempt loses its lease; its settle is stale; the task runs again."""
    bench.beat()
    old = await bench.run("a", MUTEX, WRITER)
    await bench.park("b", "c")
    done = await bench.board.release(NAME, WHO)
    assert [item.id for item in done.voided] == ["a"] and done.woken == ("b",)
    assert bench.beat(old) == {"a"}
    assert await bench.broker.settle(old, "done", b"") == "STALE"
    assert await bench.board.counters() == {"settle:stale": 1}
    # Its other lock stays until it expires: the old attempt may still be at work.
    assert [item.id for item in await bench.fetch()] == ["b"]
    found = await bench.explain("a")
    assert found.lock == NAME and " by task b" in found.text
    await bench.client.delete("{test}:lock:rw:job:7:w")
    waiting = (await bench.board.get(NAME)).waiters
    assert [item.id for item in waiting] == ["a", "c"]


async def test_many_readers_are_voided_in_small_scripts(bench: Bench) -> None:
    """All lose the lock and run again, after the writer who waited; counted in commands."""
    bench.beat()
    lines = encode_locks([READER])
    many = [Submission(f"r{n}", "p:T", "normal:small", b"e", lines) for n in range(600)]
    await bench.broker.submit(many)
    old = await bench.fetch(len(many))
    await bench.park("w", lock=WRITER)
    await bench.client.config_resetstat()
    done = await bench.board.release("lock:rw:job:7", WHO)
    stats = await bench.client.info("commandstats")
    scripts = stats["cmdstat_evalsha"]["calls"]
    assert {item.id for item in done.voided} == {item.id for item in many}
    assert done.woken == ("w",)
    assert scripts >= 5 and sum(stat["calls"] for stat in stats.values()) / scripts < 5_000
    assert bench.beat(*old) == {item.id for item in many}
    (writer,) = await bench.fetch(3)
    assert writer.id == "w" and await bench.broker.settle(writer, "done", b"") == "OK"
    await bench.client.zunionstore("{test}:tasks:delayed", {"{test}:tasks:delayed": 0})
    while (await bench.broker.promote()).moved:
        pass
    again = [item for _ in range(5) for item in await bench.fetch(500)]
    assert {item.id for item in again} == {item.id for item in many}
    events = [event[b"text"].decode() for _, event in await bench.client.xrange("{test}:events")]
    assert sum(len(text.split()) - 7 + int(text.split()[-2]) for text in events) == len(many)


async def test_a_released_hold_is_lost(bench: Bench) -> None:
    """Its next renewal fails; its other locks stay until their TTL."""
    _, fence = await bench.broker.hold("hold-1", encode_locks([MUTEX, WRITER]), "8@host")
    await bench.park("b")
    await bench.board.release(NAME, WHO)
    assert bench.leases.renew([Lease("hold-1", "0", fence, 30)]) == {"hold-1/0"}
    await bench.broker.unhold("hold-1")
    assert await bench.client.exists("{test}:lock:rw:job:7:w")
    assert [item.id for item in await bench.fetch()] == ["b"]


async def test_dropped_slots_do_not_stop_their_holders(bench: Bench) -> None:
    """They keep their leases and settle, and the next task may run."""
    old = await bench.run("a", MUTEX, SLOT)
    await bench.park("b", lock=SLOT)
    done = await bench.board.release("limiter:conc:job:7", WHO)
    assert (done.dropped, done.voided) == (1, ())
    assert [item.id for item in await bench.fetch()] == ["b"]
    assert bench.beat(old) == set()
    assert await bench.broker.settle(old, "done", b"") == "OK"
    assert (await bench.only()).used == 1


async def test_a_rate_limiter_counts_items(bench: Bench) -> None:
    """In what is shown, dropped and written down."""
    five = RateLimiter("job", 7, limit=9, window_seconds=60, n_items=5)
    for id, lock in (("a", RATE), ("b", five)):
        await bench.broker.settle(await bench.run(id, lock), "done", b"")
    await bench.client.delete("{test}:sum:limiter:rate:job:7")  # as a release in between leaves it
    assert (await bench.only()).used == 6
    assert (await bench.board.release("limiter:rate:job:7", WHO)).dropped == 6
    ((_, event),) = await bench.client.xrange("{test}:events")
    assert event[b"text"] == b"limiter:rate:job:7 emptied of 6"


async def test_hundreds_of_places_are_dropped(bench: Bench) -> None:
    """A limiter is emptied as a whole, in parts."""
    slots = ConcurrencyLimiter("job", 7, limit=999)
    rate = RateLimiter("job", 7, limit=999, window_seconds=60)
    lines = encode_locks([slots, rate])
    many = [Submission(f"r{n}", "p:T", "normal:small", b"e", lines) for n in range(450)]
    await bench.broker.submit(many)
    assert len(await bench.fetch(450)) == 450
    for lock in (slots, rate):
        assert (await bench.board.release(lock.redis_key, WHO)).dropped == 450
    assert await bench.in_use() == []


@pytest.mark.parametrize("lock", [MUTEX, RATE], ids=["mutex", "rate"])
async def test_a_repeated_release_takes_nothing_later(bench: Bench, lock: BaseLock) -> None:
    """The fence that was read first spares what was granted after a lost reply."""
    await bench.run("a", lock)
    _, fence = await bench.board._look([lock.redis_key], 1)
    release = ("break_lock", lock.redis_key, fence, WHO)
    if lock is RATE:
        later = await bench.run("b", lock)
    assert (await bench.broker.scripts.run(*release))[0 if lock is RATE else 1]
    if lock is MUTEX:
        (later,) = await bench.fetch()
    assert await bench.broker.scripts.run(*release) == [0, [], [], 0]
    assert bench.beat(later) == set()
    found = await bench.only()
    assert (found.used if lock is RATE else found.holding) == 1


async def test_a_release_is_an_event(bench: Bench) -> None:
    """It names author, lock and holder; a refused one leaves none."""
    with pytest.raises(NotFoundError, match="is not held"):
        await bench.board.release(NAME, WHO)
    await bench.run("a", MUTEX)
    await bench.board.release(NAME, WHO)
    ((_, event),) = await bench.client.xrange("{test}:events")
    assert (event[b"kind"], event[b"who"]) == (b"lock-released", WHO.encode())
    assert event[b"text"] == f"{NAME}, was held by a".encode()


async def test_only_locks_can_be_released(bench: Bench) -> None:
    """No other key can be reached by this name."""
    for name in ("", "t:a", "lock:mutex", "{test}:lock:mutex:job:7"):
        with pytest.raises(InvalidArgumentsError, match="not the name of a lock"):
            await bench.board.release(name, WHO)
