"""Which task is blamed for the death of a process, and how suspects are handed over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stores.queue.test_broker import task

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
        place = (P + item.stream_key, "workers", "gone", 0, [item.entry])
        await broker.client.xclaim(*place, idle=60_000, justid=True)
    await broker.reclaim(f"{size}-sweeper", size, new_cursors())


async def suspected(broker: Broker, *ids: str, size: str = "small") -> None:
    """Make suspects: a worker died that ran all of these for the first time."""
    await broker.submit([task(id, f"normal:{size}") for id in ids])
    await die(broker, *await fetched(broker, f"{size}-first", len(ids)), size=size)


async def found_in(broker: Broker, id: str, *names: str) -> list[str]:
    values = await broker.client.hmget(f"{P}t:{id}", names)
    return [(value or b"").decode() for value in values]


async def test_a_first_death_blames_no_task(broker: Broker) -> None:
    """A task that ran when its worker died is a suspect, and has not crashed."""
    await suspected(broker, "a")
    assert await found_in(broker, "a", "deaths", "suspect", "crashes", "judge") == [
        "1",
        "1",
        "",
        "",
    ]
    (again,) = await fetched(broker)
    assert (again.used, again.suspect, again.crashes, again.judge) == (0, 1, 0, False)


async def test_a_deleted_group_of_suspects_is_made_again(broker: Broker) -> None:
    """Its void pointers are dropped."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    assert await fetch(broker) == ""
    await broker.client.xgroup_destroy(P + a.stream_key, "workers")
    await broker.reclaim("small-a", "small", new_cursors())
    assert await fetch(broker) == ""
    assert await broker.client.xlen(P + a.stream_key) == 0


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


async def test_an_ended_suspect_is_no_longer_accused(broker: Broker) -> None:
    """Of two that ran together, the one left when the worker dies has crashed."""
    await suspected(broker, "a", "b")
    a, b = await fetched(broker)
    await broker.accuse("small-a", ["a", "b"])
    await broker.settle(a, "done")
    await die(broker, b)
    assert await found_in(broker, "b", "crashes", "judge") == ["1", "1"]


async def test_an_attempt_that_ends_clears_a_suspect(broker: Broker) -> None:
    """Its process lived: the retry is ordinary work again."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    await broker.settle(a, "retry", b"error")
    assert await fetch(broker) == "a"


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


@pytest.mark.parametrize("way", ["delayed", "woken"])
async def test_a_suspect_that_waited_is_still_a_suspect(broker: Broker, way: str) -> None:
    """Handed back with a delay, or woken for its lock, it comes after ordinary work."""
    await broker.client.zadd(f"{P}workers", {"small-a": 2**52})
    await broker.submit([task("a", locks="M|lock:mutex:job:1|30000|||" * (way == "woken"))])
    await die(broker, *await fetched(broker, "small-first"))
    if way == "woken":
        assert await fetch(broker) == ""  # its lock is still its dead worker's
        await broker.client.delete(f"{P}lock:mutex:job:1")
        await broker.client.zadd(f"{P}watch", {"lock:mutex:job:1": 1})
    else:
        (a,) = await fetched(broker)
        await broker.settle(a, "back", delay=timedelta(seconds=60))
        await broker.client.zadd(f"{P}tasks:delayed", {"a": 1})
    await broker.promote()
    await broker.submit([task("n")])
    assert await fetch(broker) == "n (a)"


async def test_the_last_crash_ends_a_task(broker: Broker) -> None:
    """At the limit it is dying, reason worker-lost, and no policy is asked."""
    await suspected(broker, "a")
    for crashes in range(broker.crash_limit):
        assert await found_in(broker, "a", "crashes") == [str(crashes or "")]
        (a,) = await fetched(broker)
        await broker.accuse("small-a", ["a"])
        await die(broker, a)
    assert await found_in(broker, "a", "state", "reason") == ["dying", "worker-lost"]
