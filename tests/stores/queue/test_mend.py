"""Records that are in no place, and how they get back into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from stores.beats import beat, lease_of

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks

NOW = timedelta(0)
MUTEX = encode_locks([MutexLock("job", 7)])


def task(id: str, locks: str = "", due_us: int = 0) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", locks, due_us)


async def fetched(broker: Broker, worker: str = "small-b") -> list[str]:
    deliveries, _ = await broker.fetch(worker, "small", 10, room=10, graves=10)
    return [delivery.id for delivery in deliveries]


async def lose_streams(broker: Broker) -> None:
    kinds = ("tasks", "woken", "suspects")
    await broker.client.delete(*(f"{{test}}:{kind}:normal:small" for kind in kinds))


async def queued(broker: Broker) -> None:
    await broker.submit([task("a")])
    await lose_streams(broker)


async def woken(broker: Broker) -> None:
    await broker.submit([task("a")])
    deliveries, _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(deliveries[0], "back")
    await lose_streams(broker)


async def running_on_the_dead(broker: Broker) -> None:
    await broker.submit([task("a")])
    await fetched(broker, "small-a")
    await lose_streams(broker)


async def delayed(broker: Broker) -> None:
    await broker.submit([task("a", due_us=2**52)])
    await broker.client.delete("{test}:tasks:delayed")


async def waiting(broker: Broker) -> None:
    await broker.submit([task("b", MUTEX), task("a", MUTEX)])
    (holder,), _ = await broker.fetch("small-a", "small", 10)
    await broker.client.delete("{test}:tasks:delayed")
    await broker.client.delete("{test}:queue:lock:mutex:job:7")
    await broker.settle(holder, "done")


async def dying(broker: Broker) -> None:
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, "dying", b"document")
    await lose_streams(broker)


@pytest.mark.parametrize("lose", [queued, woken, running_on_the_dead, waiting, dying])
async def test_what_is_in_no_place_is_queued_again(
    broker: Broker, lose: Callable[[Broker], Awaitable[None]]
) -> None:
    """Whatever its place lost, an accepted task is executed, or goes on dying."""
    await lose(broker)
    assert await fetched(broker) == []
    assert await broker.mend(NOW) == (1, False)
    await broker.promote()
    assert await fetched(broker) == ["a"]
    assert await broker.mend(NOW) == (0, False)


async def test_what_is_delayed_stays_so(broker: Broker) -> None:
    """Its time is in its record, too: nothing runs early because its place was lost."""
    await delayed(broker)
    assert await broker.mend(NOW) == (1, False)
    assert await broker.client.zscore("{test}:tasks:delayed", "a") == 2**52


async def test_what_is_in_its_place_stays(broker: Broker) -> None:
    """Tasks of every state are left alone while they are where their record says."""
    await broker.submit([task("q"), task("d", due_us=2**52), task("w", MUTEX), task("r", MUTEX)])
    await fetched(broker, "small-a")
    await broker.hold("hold-1", MUTEX, wait=True)
    await broker.submit([task("q2")])
    before = {id: await broker.client.hget(f"{{test}}:t:{id}", "gen") for id in "qdwr"}
    assert await broker.mend(NOW) == (0, False)
    assert before == {id: await broker.client.hget(f"{{test}}:t:{id}", "gen") for id in "qdwr"}


async def lose(broker: Broker, how: str) -> None:
    if how == "group":
        await broker.client.xgroup_destroy("{test}:tasks:normal:small", "workers")
    else:
        await lose_streams(broker)


@pytest.mark.parametrize("how", ["group", "stream"])
async def test_a_living_worker_keeps_what_it_runs(broker: Broker, redis_url: str, how: str) -> None:
    """A stream that vanished takes nothing from a worker that beats for it: it will settle."""
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await lose(broker, how)
    for _ in range(3):
        assert beat(redis_url, lease_of(delivery)) == set()
        await broker.client.hset("{test}:t:a", mapping={"started": 1, "missed": 2})
        assert await broker.mend(NOW) == (0, False)
    assert await broker.settle(delivery, "done") == "OK"


@pytest.mark.parametrize("how", ["group", "stream"])
async def test_what_no_worker_has_heard_of_is_queued_again(broker: Broker, how: str) -> None:
    """A reply was lost and its stream deleted: after a lease nobody has beaten for it."""
    await broker.submit([task("a")])
    await fetched(broker, "small-a")
    await broker.client.zadd("{test}:workers", {"small-a": 2**52})
    await lose(broker, how)
    assert await broker.mend(NOW) == (0, False)
    await broker.client.hset("{test}:t:a", mapping={"started": 1, "missed": 2})
    assert await broker.mend(NOW) == (1, False)
    assert await fetched(broker) == ["a"]


async def test_deaths_are_counted(broker: Broker) -> None:
    """What a dead worker ran when its stream vanished is a suspect of its death."""
    await running_on_the_dead(broker)
    await broker.mend(NOW)
    found = await broker.client.hmget("{test}:t:a", "state", "deaths", "suspect")
    assert found == [b"queued", b"1", b"1"]


async def test_workers_share_one_walk(broker: Broker) -> None:
    """Pages are carried on, whoever asks, and a walk that has ended rests."""
    await broker.submit([task(f"t{i}") for i in range(3000)])
    await lose_streams(broker)
    pages = mended = 0
    more = True
    while more:
        count, more = await broker.mend(timedelta(hours=1))
        pages, mended = pages + 1, mended + count
    assert mended == 3000 and pages > 3
    await lose_streams(broker)
    assert await broker.mend(timedelta(hours=1)) == (0, False)


async def test_the_walk_keeps_its_pace_whoever_walks(broker: Broker) -> None:
    """Who comes too early for the next page leaves it to the one that walks."""
    await broker.submit([task(f"t{i}") for i in range(1000)])
    slow, cursor = timedelta(hours=1), ("{test}:mend", "cursor")
    assert (await broker.mend(slow, slow))[1] is True
    before = await broker.client.hget(*cursor)
    assert await broker.mend(slow, slow) == (0, False)
    assert await broker.client.hget(*cursor) == before
    assert (await broker.mend(slow, NOW))[1] is True
    assert await broker.client.hget(*cursor) != before


async def test_parts_without_a_record_end(broker: Broker) -> None:
    """An envelope whose record somebody deleted is kept for a day, not for ever."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"long" * 50, MUTEX)])
    await broker.client.delete("{test}:t:a")
    await broker.mend(NOW)
    for name in ("b:a", "l:a"):
        assert 86_000 < await broker.client.ttl(f"{{test}}:{name}") <= 86_400


async def test_a_record_of_another_type_costs_nobody(broker: Broker) -> None:
    """One broken key does not keep the others in no place."""
    await queued(broker)
    await broker.client.set("{test}:t:broken", "x")
    await broker.client.hset("{test}:t:half", mapping={"state": "queued", "gen": "1"})
    assert (await broker.mend(NOW))[0] == 1
    assert await fetched(broker) == ["a"]
