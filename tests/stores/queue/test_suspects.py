"""Who is to blame for the death of a process, and how suspects come back, on a real server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery, takes_slot
from nonet.stores.queue.submissions import Submission

P = "{test}:"


def task(id: str, stream: str = "normal:small", locks: str = "") -> Submission:
    return Submission(id, "probe:Task", stream, b"envelope", locks=locks)


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


async def test_a_first_death_blames_nobody(broker: Broker) -> None:
    """A task that ran alone when its worker died was perhaps only near: it is a suspect."""
    await suspected(broker, "a")
    assert await found_in(broker, "a", "deaths", "suspect", "crashes", "judge") == [
        "1",
        "1",
        "",
        "",
    ]
    (again,) = await fetched(broker)
    assert (again.used, again.suspect, again.crashes, again.judge) == (0, 1, 0, False)


async def test_pointers_of_suspects_whose_group_was_deleted_are_dropped(broker: Broker) -> None:
    """Nobody looks at these streams unless there may be something unread: then there is."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    assert await fetch(broker) == ""
    await broker.client.xgroup_destroy(P + a.stream_key, "workers")
    await broker.reclaim("small-a", "small", new_cursors())
    assert await fetch(broker) == ""
    assert await broker.client.xlen(P + a.stream_key) == 0


async def test_the_only_suspect_of_a_dead_worker_has_crashed(broker: Broker) -> None:
    """Its policy is asked next, whatever innocent tasks the worker ran beside it."""
    await suspected(broker, "a")
    await broker.submit([task("b")])
    b, a = await fetched(broker)
    await broker.accuse("small-a", ["a"])
    await die(broker, a, b)
    assert await found_in(broker, "a", "crashes", "judge", "suspect") == ["1", "1", "1"]
    assert await found_in(broker, "b", "crashes", "judge", "suspect") == ["", "", "1"]
    judged = next(item for item in await fetched(broker, room=20) if item.id == "a")
    assert (judged.crashes, judged.judge) == (1, True)


@pytest.mark.parametrize("begun", [["a", "b"], [], ["b"]])
async def test_one_suspect_among_others_has_not_crashed(broker: Broker, begun: list[str]) -> None:
    """Nor has one that had not begun: either of them may be the culprit, or neither."""
    await suspected(broker, "a", "b")
    both = await fetched(broker)
    if begun:
        await broker.accuse("small-a", begun)
    await die(broker, *both)
    assert await found_in(broker, "a", "crashes", "suspect") == ["", "2"]


async def test_a_suspect_that_has_ended_is_no_longer_accused(broker: Broker) -> None:
    """Of two that ran together, the one that is left when the worker dies has crashed."""
    await suspected(broker, "a", "b")
    a, b = await fetched(broker)
    await broker.accuse("small-a", ["a", "b"])
    await broker.settle(a, "done")
    await die(broker, b)
    assert await found_in(broker, "b", "crashes", "judge") == ["1", "1"]


async def test_the_last_crash_ends_a_task(broker: Broker) -> None:
    """At the limit it is dying, reason worker-lost, and no policy is asked."""
    await suspected(broker, "a")
    for crashes in range(broker.crash_limit):
        assert await found_in(broker, "a", "crashes") == [str(crashes or "")]
        (a,) = await fetched(broker)
        await broker.accuse("small-a", ["a"])
        await die(broker, a)
    assert await found_in(broker, "a", "state", "reason") == ["dying", "worker-lost"]


async def test_an_attempt_that_ends_by_itself_clears_a_suspect(broker: Broker) -> None:
    """It has failed, and its process lived: its retry is ordinary work again."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    await broker.settle(a, "retry", b"error")
    assert await fetch(broker) == "a"


async def test_a_crash_leaves_a_suspect_one(broker: Broker) -> None:
    """Also after its policy has allowed another attempt."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    await broker.accuse("small-a", ["a"])
    await die(broker, a)
    (judged,) = await fetched(broker)
    await broker.settle(judged, "retry", b"error")
    (again,) = await fetched(broker)
    assert (again.judge, again.suspect, again.used) == (False, 1, 1)
    assert not takes_slot(again.stream_key)


async def test_suspects_go_after_ordinary_work_of_their_priority(broker: Broker) -> None:
    """And before that of the next one; they take no slot."""
    await suspected(broker, "a")
    more = [("n", "normal"), ("b", "background"), ("r", "realtime")]
    await broker.submit([task(id, f"{priority}:small") for id, priority in more])
    assert await fetch(broker) == "r n (a) b"


async def test_a_full_worker_takes_suspects_if_no_ordinary_work_waits(broker: Broker) -> None:
    """Without a free slot it looks whether work of their priority, or above, is unread."""
    await suspected(broker, "a")
    await broker.submit([task("n"), task("b", "background:small")])
    assert await fetch(broker, free=0) == ""
    assert await fetch(broker, free=1, room=0) == "n"
    assert await fetch(broker, free=0) == "(a)"
    assert await fetch(broker) == "b"


async def test_a_worker_without_room_leaves_suspects_to_others(broker: Broker) -> None:
    """Whoever has some finds all of them."""
    await suspected(broker, *"abcde")
    assert await fetch(broker, room=0) == ""
    assert await fetch(broker, room=2) == "(a) (b)"
    assert await broker.client.exists(f"{P}suspected:small") == 1
    assert await fetch(broker, "small-b") == "(c) (d) (e)"
    assert await broker.client.exists(f"{P}suspected:small") == 0


async def test_suspects_of_two_dead_workers_come_as_one_group(broker: Broker) -> None:
    """They run where nothing else does: no more are handed over than may share a process."""
    ids = [f"a{n:02}" for n in range(90)]
    await suspected(broker, *ids)
    await die(broker, *await fetched(broker, room=100))
    assert len(await fetched(broker, room=100)) == 50


async def test_large_suspects_of_two_dead_workers_come_alone(broker: Broker) -> None:
    """One at a time: each has a process of its own anyway."""
    await suspected(broker, "a", "b", size="large")
    await die(broker, *await fetched(broker, "large-a"), size="large")
    assert await fetch(broker, "large-a") == "(a)"


async def test_a_suspect_that_was_delayed_is_still_one(broker: Broker) -> None:
    """Handed back, it comes after ordinary work again."""
    await suspected(broker, "a")
    (a,) = await fetched(broker)
    await broker.settle(a, "back", delay=timedelta(seconds=60))
    await broker.client.zadd(f"{P}tasks:delayed", {"a": 1})
    await broker.promote()
    await broker.submit([task("n")])
    assert await fetch(broker) == "n (a)"


async def test_a_suspect_that_was_woken_is_still_one(broker: Broker) -> None:
    """It waits for its lock as any other task, and comes after ordinary work then."""
    mutex = "M|lock:mutex:job:1|30000|||"
    await broker.client.zadd(f"{P}workers", {"small-a": 2**52})
    await broker.submit([task("a", locks=mutex)])
    await die(broker, *await fetched(broker, "small-first"))
    assert await fetch(broker) == ""  # its lock is still its dead worker's
    await broker.client.delete(f"{P}lock:mutex:job:1")
    await broker.client.zadd(f"{P}watch", {"lock:mutex:job:1": 1})
    await broker.promote()
    await broker.submit([task("n")])
    assert await fetch(broker) == "n (a)"
