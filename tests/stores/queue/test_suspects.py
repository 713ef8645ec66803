"""Which task is blamed for the death of a process, and how suspects are handed over."""

from __future__ import annotations

import records
from stores.queue.test_broker import lapse, task

from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery, takes_slot

P = "{test}:"


async def fetch(broker: Broker, worker: str = "small-a", free: int = 10, room: int = 10) -> str:
    """Ids in the order of their hand-over; those of suspects in brackets."""
    found = await fetched(broker, worker, free, room)
    return " ".join(item.id if takes_slot(item.stream_key) else f"({item.id})" for item in found)


async def fetched(
    broker: Broker, worker: str = "small-a", free: int = 10, room: int = 10
) -> list[Delivery]:
    return (await broker.fetch(worker, worker.partition("-")[0], free, room))[0]


async def die(broker: Broker, *deliveries: Delivery, size: str = "small") -> None:
    """The worker that runs these dies, and another one takes them back."""
    for item in deliveries:
        await lapse(broker, item)
    await broker.reclaim(f"{size}-sweeper", size, new_cursors())


async def suspected(broker: Broker, *ids: str, size: str = "small") -> None:
    """Make suspects: a worker died that ran all of these for the first time."""
    await broker.submit([task(id, f"normal:{size}") for id in ids])
    await die(broker, *await fetched(broker, f"{size}-first", len(ids)), size=size)


async def found_in(broker: Broker, id: str, *names: str) -> list[str]:
    values = await records.hmget(broker.client, f"{P}t:{id}", *names, "state")
    return [(value or b"").decode() for value in values[:-1]]


async def test_the_only_suspect_has_crashed(broker: Broker) -> None:
    """Its policy is asked next, although the worker ran other tasks beside it."""
    await suspected(broker, "a")
    await broker.submit([task("b")])
    b, a = await fetched(broker)
    await broker.accuse("small-a", ["a"])
    await die(broker, a, b)
    assert await found_in(broker, "a", "crashes", "judge", "suspect") == ["1", "1", "1"]
    assert await found_in(broker, "b", "crashes", "judge", "suspect") == ["", "", "1"]
    judged = next(item for item in await fetched(broker, room=20) if item.id == "a")
    assert (judged.crashes, judged.judge) == (1, True)


async def test_ordinary_work_goes_before_suspects(broker: Broker) -> None:
    """Work of their priority, or above, also if the worker has no free slot for it."""
    await suspected(broker, "a")
    await broker.submit([task("n"), task("b", "background:small")])
    assert await fetch(broker, free=0) == ""
    assert await fetch(broker, free=1, room=0) == "n"
    assert await fetch(broker, free=0) == "(a)"
    assert await fetch(broker) == "b"


async def test_a_worker_without_room_leaves_suspects_to_others(broker: Broker) -> None:
    """A worker with room finds all of them."""
    await suspected(broker, *"abcde")
    assert await fetch(broker, room=0) == ""
    assert await fetch(broker, room=2) == "(a) (b)"
    assert await broker.client.exists(f"{P}suspected:small") == 1
    assert await fetch(broker, "small-b") == "(c) (d) (e)"
    assert await broker.client.exists(f"{P}suspected:small") == 0


async def test_suspects_of_two_dead_workers_come_as_one_group(broker: Broker) -> None:
    """No more are handed over than may share a process."""
    ids = [f"a{n:02}" for n in range(90)]
    await suspected(broker, *ids)
    await die(broker, *await fetched(broker, room=100))
    assert len(await fetched(broker, room=100)) == 50


async def test_large_suspects_come_one_at_a_time(broker: Broker) -> None:
    """Each has a process of its own anyway."""
    await suspected(broker, "a", "b", size="large")
    await die(broker, *await fetched(broker, "large-a"), size="large")
    assert await fetch(broker, "large-a") == "(a)"


async def test_the_last_crash_ends_a_task(broker: Broker) -> None:
    """At the limit it is dying, reason worker-lost, and no policy is asked."""
    await suspected(broker, "a")
    for crashes in range(broker.settings.crash_limit):
        assert await found_in(broker, "a", "crashes") == [str(crashes or "")]
        (a,) = await fetched(broker)
        await broker.accuse("small-a", ["a"])
        await die(broker, a)
    assert await found_in(broker, "a", "state", "reason") == ["dying", "worker-lost"]
