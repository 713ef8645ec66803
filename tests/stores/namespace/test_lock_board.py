"""What is seen of locks and of tasks that do not run, and what a forced release does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio
from stores.beats import lease_of, leases_of

from nonet import InvalidArgumentsError, NotFoundError
from nonet.messages.message import ErrorDocument, encode
from nonet.rules.explanation import Explanation, explain
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.lock_board import LockBoard, LockStatus
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
        self.broker = Broker(url, "test", lock_ttl=lock_ttl, lease=45, result_ttl=60, dedup_ttl=60)
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

    async def only(self) -> LockStatus:
        (found,) = await self.board.in_use()
        return found


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    made = Bench(redis_url)
    yield made
    await made.aclose()


async def test_a_mutex_shows_holder_and_waiters_in_order(bench: Bench) -> None:
    """Who holds it, with task and worker; who waits, by rank, those who were told first."""
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


async def test_a_lock_is_renewed_until_its_worker_is_dead(bench: Bench) -> None:
    """A dead or frozen process is told from one that holds a lock for long."""
    bench.beat()
    await bench.run("a", MUTEX)
    (holder,) = (await bench.only()).holders
    assert holder.is_renewed
    await bench.client.zadd("{test}:workers", {"small-a": 1})  # its registration ended
    (holder,) = (await bench.only()).holders
    assert (holder.is_live, holder.is_renewed) == (True, False)


@pytest.mark.parametrize(("ttl_ms", "is_renewed"), [(30_000, False), (24_000, True)])
async def test_a_lock_that_misses_renewals_is_not_renewed(
    bench: Bench, ttl_ms: int, is_renewed: bool
) -> None:
    """Less than a third of its lease is left, and the lease is the one that the lock declares."""
    bench.beat()
    await bench.run("a", MutexLock("job", 7, ttl_ms=ttl_ms))
    key = "{test}:lock:mutex:job:7"
    owner, expiry = (await bench.client.get(key)).rsplit(b"|", 1)
    await bench.client.set(key, owner + b"|%d" % (int(expiry) - (ttl_ms - 9000) * 1000))
    (holder,) = (await bench.only()).holders
    assert holder.is_renewed == is_renewed and holder.ttl_seconds < 9


async def test_both_sides_of_a_reader_writer_lock_are_one_lock(bench: Bench) -> None:
    """Readers are counted and named; then a writer."""
    readers = [await bench.run(f"r{n}", READER) for n in range(3)]
    await bench.park("w", lock=WRITER)
    found = (await bench.board.in_use(show=2))[0]
    assert (found.lock, found.side, found.holding) == ("lock:rw:job:7", "readers", 3)
    assert [item.id for item in found.holders] == ["r0", "r1"]
    for delivery in readers:
        await bench.broker.settle(delivery, "done", b"")
    assert [item.id for item in await bench.fetch()] == ["w"]
    found = await bench.only()
    assert (found.side, [item.id for item in found.holders]) == ("writer", ["w"])


async def test_limiters_show_what_is_used_of_the_limit_that_holds(bench: Bench) -> None:
    """The class's own limit, unless the configuration says another; a VO's counter has its own."""
    await bench.run("a", SLOT, RATE)
    await bench.park("b", lock=SLOT)
    rows = {item.lock: item for item in await bench.board.in_use()}
    conc, rate = rows["limiter:conc:job:7"], rows["limiter:rate:job:7"]
    assert (conc.used, conc.limit, conc.waiting) == (1, 1, 1)
    assert (rate.used, rate.limit, rate.window_seconds) == (1, 2, 60)
    assert 50 < (rate.back_seconds or 0) <= 60
    await bench.client.hset("{test}:limits", "C||job|7|", "5")
    await bench.client.hset("{test}:limits", "C|lhcb|job|7|", "3")
    await bench.run("v", SLOT, vo="lhcb")
    rows = {item.lock: item for item in await bench.board.in_use("job")}
    assert (rows["limiter:conc:job:7"].limit, rows["limiter:conc:job:7"].used) == (5, 1)
    mine = rows["limiter:conc:@lhcb:job:7"]
    assert (mine.limit, mine.used, [item.id for item in mine.holders]) == (3, 1, ["v"])
    await bench.client.hdel("{test}:limits", "C|lhcb|job|7|")
    mine = await bench.board.get("limiter:conc:@lhcb:job:7")
    assert (mine.limit, mine.used) == (None, 1)
    assert await bench.board.in_use("task") == []


async def test_a_limit_that_nobody_can_tell_is_unknown(bench: Bench) -> None:
    """When who asked for it has ended, the grants are still shown, without a limit."""
    await bench.broker.settle(await bench.run("a", RATE), "done", b"")
    found = await bench.only()
    assert (found.used, found.limit, found.waiting) == (1, None, 0)


async def test_many_locks_are_looked_at_in_small_scripts(bench: Bench) -> None:
    """All are found, the most wanted first."""
    locks = [MutexLock("job", n) for n in range(120)]
    await bench.run("a", *locks)
    await bench.park("b", lock=locks[77])
    found = await bench.board.in_use()
    assert len(found) == 120 and found[0].lock == "lock:mutex:job:77"


async def test_running_names_the_worker(bench: Bench) -> None:
    """A running task is explained by its worker, also one that no longer answers."""
    await bench.run("a")
    assert "no longer answers" in (await bench.explain("a")).text
    bench.beat()
    found = await bench.explain("a")
    assert (found.cause, found.worker) == ("running", "7@host")
    assert found.text.startswith("running on 7@host for ")


async def test_a_parked_task_is_explained_by_what_refuses_it_now(bench: Bench) -> None:
    """The holder; then those who came first; the stored blocker is not asked."""
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


async def test_a_second_lock_is_named_when_the_first_is_free(bench: Bench) -> None:
    """The lock that is named is the one that refuses, not the one that did when it was parked."""
    first, second = await bench.run("a", MUTEX), await bench.run("b", WRITER)
    await bench.submit("c", MUTEX, WRITER)
    assert await bench.fetch() == []
    assert (await bench.explain("c")).lock == NAME
    await bench.client.delete("{test}:" + NAME)  # gone, and nobody was told
    assert (await bench.explain("c")).lock == "lock:rw:job:7"
    assert {first.id, second.id} == {"a", "b"}


async def test_a_reader_waits_for_the_writer_that_came_first(bench: Bench) -> None:
    """A reader beside readers is kept by a waiting writer."""
    await bench.run("r", READER)
    await bench.park("w", lock=WRITER)
    await bench.park("late", "later", lock=READER)
    assert (await bench.explain("w")).cause == "lock"
    found = await bench.explain("later")
    assert (found.cause, found.ahead, "first is task w" in found.text) == ("turn", 1, True)


async def test_what_a_dead_worker_left_is_called_so(bench: Bench) -> None:
    """A lock whose attempt no longer owns its task is held by a lost attempt, until its TTL."""
    await bench.run("a", MUTEX)
    await bench.client.hset("{test}:t:a", "gen", "1")
    await bench.park("b")
    found = await bench.explain("b")
    assert "a lost attempt of task a (p:T). The lock expires in " in found.text
    assert not found.holders[0].is_live


async def test_code_that_holds_is_named_by_its_process(bench: Bench) -> None:
    """A hold is no task, and shows where it is held."""
    assert (await bench.broker.hold("hold-1", encode_locks([MUTEX]), "8@host"))[0] == "OK"
    await bench.park("b")
    assert "a program that is not a task (8@host, hold-1)" in (await bench.explain("b")).text
    assert (await bench.only()).holders[0].worker == "8@host"
    with pytest.raises(NotFoundError, match="code that holds locks"):
        await bench.explain("hold-1")


async def test_limiters_say_how_much_is_used_and_when_it_comes_back(bench: Bench) -> None:
    """8 of 8 in use; a rate's next token; who came first; what can never be."""
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


async def test_delays_retries_and_hand_backs_tell_when(bench: Bench) -> None:
    """`at_time`, a retry with its error, a hand-back with its reason."""
    seconds, _ = await bench.client.time()
    await bench.submit("later", due=(seconds + 3601) * 1_000_000)
    found = await bench.explain("later")
    assert found.cause == "time" and "(in 1 h)" in found.text
    retried = await bench.run("retried")
    await bench.broker.settle(
        retried, "retry", b"doc", text="ValueError: no", delay=timedelta(seconds=20)
    )
    found = await bench.explain("retried")
    assert (
        found.cause == "retry"
        and "attempt 2. The last attempt failed: ValueError: no" in found.text
    )
    back = await bench.run("back", MUTEX)
    await bench.broker.settle(
        back, "back", text="a worker does not know p:T", delay=timedelta(seconds=20)
    )
    found = await bench.explain("back")
    assert found.cause == "hand-back"
    assert found.text.startswith("waiting, handed back: a worker does not know p:T. Next try in ")
    dying = await bench.run("dying")
    failure = ErrorDocument("retries", "ValueError", "no", "", 1, 0.0)
    await bench.broker.settle(dying, "dying", encode(failure))
    await bench.broker.settle(dying, "back", text="SQL: away", delay=timedelta(seconds=20))
    found = await bench.explain("dying")
    assert found.cause == "sql" and found.text.startswith("dying (ValueError: no)")
    assert "cannot be written to SQL: away. Next try in" in found.text


async def test_what_is_due_and_not_moved_needs_somebody_who_moves_it(bench: Bench) -> None:
    """Without a scheduler and workers a due task says that nobody moves it."""
    await bench.submit("late", due=1)
    await bench.client.hset("{test}:t:late", mapping={"state": "delayed", "ticket": "1"})
    await bench.client.zadd("{test}:tasks:delayed", {"late": 1})
    assert (await bench.explain("late")).cause == "promoter"
    bench.beat()
    assert (await bench.explain("late")).cause == "time"


async def test_queued_says_who_could_take_it_and_what_is_read_before(bench: Bench) -> None:
    """No worker of its size; then its place: what is older, or of a higher priority."""
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


async def test_the_place_in_a_long_queue_costs_little(bench: Bench) -> None:
    """Beyond the entries that one look reads it is only said that there are more."""
    bench.beat()
    tasks = [Submission(f"t{n}", "p:T", "normal:small", b"e") for n in range(1500)]
    await bench.broker.submit(tasks)
    assert (await bench.explain("t999")).ahead == 999
    found = await bench.explain("t1200")
    assert found.ahead == 1000 and "more than 1000 ahead of it" in found.text


async def test_an_entry_that_is_nowhere_is_told(bench: Bench) -> None:
    """A queued task without an entry does not pretend to have a place."""
    bench.beat()
    await bench.submit("a")
    await bench.client.delete("{test}:tasks:normal:small")
    assert "in no stream" in (await bench.explain("a")).text


async def test_ended_and_unknown_tasks(bench: Bench) -> None:
    """An ended task says how; an unknown one, and a group, are told apart."""
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


async def test_looking_changes_nothing(bench: Bench) -> None:
    """Neither explaining nor listing moves a task, a lock or a score."""
    bench.beat()
    await bench.run("a", MUTEX, SLOT)
    await bench.park("b", "c")
    await bench.submit("d")

    async def state() -> dict[bytes, Any]:
        return {key: await bench.client.dump(key) for key in await bench.client.keys("*")}

    before = await state()
    for id in "abcd":
        await bench.explain(id)
    await bench.board.in_use()
    assert await state() == before


async def test_a_released_mutex_voids_its_holder_and_goes_to_the_next(bench: Bench) -> None:
    """The old attempt loses its lease, its settle is STALE and counted; the task runs again."""
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


async def test_thousands_of_readers_are_voided_in_small_scripts(bench: Bench) -> None:
    """Redis is not held up; all lose the lock and run again, after the writer who waited.

    Counted in commands per script: times would depend on the machine.
    """
    bench.beat()
    lines = encode_locks([READER])
    many = [Submission(f"r{n}", "p:T", "normal:small", b"e", lines) for n in range(1200)]
    await bench.broker.submit(many)
    old = await bench.fetch(len(many))
    assert len(old) == len(many)
    await bench.park("w", lock=WRITER)
    await bench.client.config_resetstat()
    done = await bench.board.release("lock:rw:job:7", WHO)
    stats = await bench.client.info("commandstats")
    commands = sum(stat["calls"] for stat in stats.values())
    scripts = stats["cmdstat_evalsha"]["calls"]
    assert {item.id for item in done.voided} == {item.id for item in many}
    assert done.woken == ("w",)
    assert scripts >= 10 and commands / scripts < 5_000
    assert bench.beat(*old) == {item.id for item in many}
    pending = await bench.client.xpending("{test}:tasks:normal:small", "workers")
    assert pending["pending"] == 0
    (writer,) = await bench.fetch(3)
    assert writer.id == "w" and await bench.broker.settle(writer, "done", b"") == "OK"
    for id in await bench.client.zrange("{test}:tasks:delayed", 0, -1):
        await bench.client.zadd("{test}:tasks:delayed", {id: 0})
    while (await bench.broker.promote()).moved:
        pass
    again = [item for _ in range(5) for item in await bench.fetch(500)]
    assert {item.id for item in again} == {item.id for item in many}
    events = [event[b"text"].decode() for _, event in await bench.client.xrange("{test}:events")]
    assert sum(len(text.split()) - 7 + int(text.split()[-2]) for text in events) == len(many)


@pytest.mark.parametrize(
    "lock",
    [
        ConcurrencyLimiter("job", 7, limit=9999),
        RateLimiter("job", 7, limit=9999, window_seconds=60),
    ],
    ids=["slots", "tokens"],
)
async def test_hundreds_of_places_are_all_dropped(bench: Bench, lock: BaseLock) -> None:
    """A limiter is emptied as a whole, in parts."""
    lines = encode_locks([lock])
    many = [Submission(f"r{n}", "p:T", "normal:small", b"e", lines) for n in range(450)]
    await bench.broker.submit(many)
    assert len(await bench.fetch(len(many))) == len(many)
    assert (await bench.board.release(lock.redis_key, WHO)).dropped == len(many)
    assert await bench.board.in_use() == []


async def test_a_released_hold_is_lost(bench: Bench) -> None:
    """A program's next renewal fails; its other locks stay until their TTL."""
    _, fence = await bench.broker.hold("hold-1", encode_locks([MUTEX, WRITER]), "8@host")
    await bench.park("b")
    await bench.board.release(NAME, WHO)
    assert bench.leases.renew([Lease("hold-1", "0", fence, 30)]) == {"hold-1/0"}
    await bench.broker.unhold("hold-1")
    assert await bench.client.exists("{test}:lock:rw:job:7:w")
    assert [item.id for item in await bench.fetch()] == ["b"]


async def test_what_a_lost_attempt_left_is_only_dropped(bench: Bench) -> None:
    """The task that was reclaimed meanwhile is not touched."""
    await bench.run("a", MUTEX)
    await bench.client.hset("{test}:t:a", "gen", "1")
    before = await bench.client.hgetall("{test}:t:a")
    done = await bench.board.release(NAME, WHO)
    assert [item.is_live for item in done.voided] == [False]
    assert await bench.client.hgetall("{test}:t:a") == before
    assert await bench.board.in_use() == []


async def test_slots_are_dropped_and_their_holders_go_on(bench: Bench) -> None:
    """A limiter is no safety: who runs keeps its lease and settles, and the next may run."""
    old = await bench.run("a", MUTEX, SLOT)
    await bench.park("b", lock=SLOT)
    done = await bench.board.release("limiter:conc:job:7", WHO)
    assert (done.dropped, done.voided) == (1, ())
    assert [item.id for item in await bench.fetch()] == ["b"]
    assert bench.beat(old) == set()
    assert await bench.broker.settle(old, "done", b"") == "OK"
    assert (await bench.only()).used == 1


async def test_dropped_slots_are_counted_again_under_a_configured_limit(bench: Bench) -> None:
    """Who goes on joins the limiter at its next renewal, as after any change of a limit."""
    await bench.client.hset("{test}:limits", "C||job|7|", "1")
    old = await bench.run("a", SLOT)
    await bench.board.release("limiter:conc:job:7", WHO)
    assert not (await bench.board.get("limiter:conc:job:7")).is_held
    assert bench.beat(old) == set()
    assert [item.id for item in (await bench.only()).holders] == ["a"]


async def test_a_rate_limiter_is_counted_in_items_everywhere(bench: Bench) -> None:
    """What is shown, what is dropped and what is written down is one number: items, not grants."""
    five = RateLimiter("job", 7, limit=9, window_seconds=60, n_items=5)
    for id, lock in (("a", RATE), ("b", five)):
        await bench.broker.settle(await bench.run(id, lock), "done", b"")
    await bench.client.delete("{test}:sum:limiter:rate:job:7")  # as a release in between leaves it
    assert (await bench.only()).used == 6
    assert (await bench.board.release("limiter:rate:job:7", WHO)).dropped == 6
    ((_, event),) = await bench.client.xrange("{test}:events")
    assert event[b"text"] == b"limiter:rate:job:7 emptied of 6"


async def test_a_repeated_release_leaves_those_who_came_after(bench: Bench) -> None:
    """A repeat after a lost reply, with the fence that was read before, voids nobody else."""
    await bench.run("a", MUTEX)
    _, fence = await bench.board._look([NAME], 1)
    assert (await bench.broker.scripts.run("break_lock", NAME, fence, WHO))[1]
    (again,) = await bench.fetch()
    assert await bench.broker.scripts.run("break_lock", NAME, fence, WHO) == [0, [], [], 0]
    assert bench.beat(again) == set()


async def test_a_repeated_release_leaves_later_tokens_counted(bench: Bench) -> None:
    """What was granted since is neither dropped nor forgotten in the sum."""
    await bench.run("a", RATE)
    _, fence = await bench.board._look(["limiter:rate:job:7"], 1)
    await bench.run("b", RATE)
    for dropped in (1, 0):
        answer = await bench.broker.scripts.run("break_lock", "limiter:rate:job:7", fence, WHO)
        assert answer[0] == dropped
    assert (await bench.only()).used == 1


async def test_a_release_is_written_down(bench: Bench) -> None:
    """The event stream says who took which lock from whom; a refused one leaves nothing."""
    with pytest.raises(NotFoundError, match="nobody holds"):
        await bench.board.release(NAME, WHO)
    await bench.run("a", MUTEX)
    await bench.board.release(NAME, WHO)
    ((_, event),) = await bench.client.xrange("{test}:events")
    assert (event[b"kind"], event[b"who"]) == (b"lock-released", WHO.encode())
    assert event[b"text"] == f"{NAME}, was held by a".encode()


@pytest.mark.parametrize("name", ["", "t:a", "lock:mutex", "{test}:lock:mutex:job:7", "fence"])
async def test_only_locks_can_be_released(bench: Bench, name: str) -> None:
    """No other key can be reached by this name."""
    with pytest.raises(InvalidArgumentsError, match="no name of a lock"):
        await bench.board.release(name, WHO)
