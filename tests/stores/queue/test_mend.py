"""Records that are in no place, pointers without a record, and how the walk mends both."""

from __future__ import annotations

from datetime import timedelta

import pytest
import records
from stores.beats import beat, lease_of

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks

NOW = timedelta(0)
MUTEX = encode_locks([MutexLock("job", 7)])


def task(id: str, locks: str = "", due_us: int = 0) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e" * 200, locks, due_us)


async def fetched(broker: Broker, worker: str = "small-b") -> list[str]:
    deliveries, _ = await broker.fetch(worker, "small", 10, room=10, burials=10)
    return [delivery.id for delivery in deliveries]


async def lose_streams(broker: Broker) -> None:
    kinds = ("tasks", "woken", "suspects")
    await broker.client.delete(*(f"{{test}}:{kind}:normal:small" for kind in kinds))


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("how", ["group", "stream"])
async def test_a_living_worker_keeps_what_it_beats_for(
    broker: Broker, redis_url: str, how: str, *, beats: bool
) -> None:
    """Its stream vanished: the task is queued again if no beat named it for a lease."""
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.client.zadd("{test}:workers", {"small-a": 2**52})
    if how == "group":
        await broker.client.xgroup_destroy("{test}:tasks:normal:small", "workers")
    else:
        await lose_streams(broker)
    assert await broker.mend(NOW) == (0, False)
    await records.hset(broker.client, "{test}:t:a", mapping={"started": 1, "missed": 2})
    if beats:
        assert beat(redis_url, lease_of(delivery)) == set()
    assert await broker.mend(NOW) == (0 if beats else 1, False)
    assert await broker.settle(delivery, "done") == ("OK" if beats else "STALE")
    assert await fetched(broker) == ["a"] * (not beats)


async def test_workers_share_one_walk(broker: Broker) -> None:
    """Each continues where the last one stopped; a finished walk pauses."""
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


async def test_the_walk_keeps_its_pace(broker: Broker) -> None:
    """A worker that comes too early leaves the next page to another one."""
    await broker.submit([task(f"t{i}") for i in range(1000)])
    slow, cursor = timedelta(hours=1), ("{test}:mend", "cursor")
    assert (await broker.mend(slow, slow))[1] is True
    before = await broker.client.hget(*cursor)
    assert await broker.mend(slow, slow) == (0, False)
    assert await broker.client.hget(*cursor) == before
    assert (await broker.mend(slow, NOW))[1] is True
    assert await broker.client.hget(*cursor) != before


async def test_parts_without_a_record_expire(broker: Broker) -> None:
    """An envelope whose record was deleted is kept for a day."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"long" * 500, MUTEX)])
    await broker.client.delete("{test}:t:a")
    await broker.mend(NOW)
    assert 86_000 < await broker.client.ttl("{test}:b:a") <= 86_400


@pytest.mark.parametrize("place", ["stream", "delayed", "pending"])
async def test_a_deleted_record_is_counted(broker: Broker, place: str) -> None:
    """Wherever its pointer is met; clients that wait for the task are woken."""
    await broker.submit([task("a", MUTEX, due_us=2**52 * (place == "delayed"))])
    if place == "pending":
        await fetched(broker, "small-a")
    await broker.scripts.run("wait", "a", "client")
    await broker.client.delete("{test}:t:a")
    if place == "delayed":
        await broker.mend(NOW)
    elif place == "pending":
        await broker.disown("small-a", "small", [])
    await fetched(broker)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") == b"1"
    assert await broker.client.lrange("{test}:wake:client", 0, -1) == [b"a"]


async def test_an_ended_task_is_not_unknown(broker: Broker) -> None:
    """A pointer to it is void and is not counted."""
    await broker.submit([task("a")])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, "done")
    await broker.client.xadd("{test}:tasks:normal:small", {"id": "a", "gen": delivery.gen})
    await broker.fetch("small-a", "small", 1)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") is None
