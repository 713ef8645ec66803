"""Deliveries that end at the same time are settled together, without affecting each other."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
from stores.queue.test_broker import make_broker
from stores.queue.test_submissions import calls, task

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.locks import MutexLock, encode_locks


async def fetched(broker: Broker, count: int, *, locked: bool = False) -> list[Delivery]:
    lines = [encode_locks([MutexLock("job", n)]) if locked else "" for n in range(count)]
    await broker.submit([task(f"t{n}", locks=lines[n]) for n in range(count)])
    deliveries, _ = await broker.fetch("small-a1", "small", count)
    assert len(deliveries) == count
    nobody = ("", "0", "0", "tasks:normal:small", "0-1", "done", "")
    # Redis knows the script now.
    assert await broker.scripts.run("settle", "1|1|0", 1, *nobody) == [b"STALE"]
    return deliveries


async def left_keys(broker: Broker) -> set[str]:
    keys = {key.decode().removeprefix(broker.prefix) for key in await broker.client.keys("*")}
    return {
        key for key in keys if key.split(":")[0] in ("t", "b", "l", "e", "h", "c", "r", "active")
    }


async def test_simultaneous_ends_are_settled_in_one_call(broker: Broker) -> None:
    """Only the ids of the tasks are left."""
    deliveries = await fetched(broker, 100)
    before = await calls(broker)
    answers = [broker.settle(each, "done") for each in deliveries]
    assert await asyncio.gather(*answers) == ["OK"] * 100
    assert await calls(broker) - before == 1
    assert await left_keys(broker) == {f"r:t{n}" for n in range(100)}
    assert await broker.client.xlen(f"{broker.prefix}tasks:normal:small") == 0


async def test_many_are_settled_by_several_calls(broker: Broker) -> None:
    """No call settles more than 100 tasks, or is much longer than 1 MiB."""
    deliveries = await fetched(broker, 250)
    before = await calls(broker)
    long = b"x" * 600_000
    answers = [broker.settle(each, "done") for each in deliveries[:247]]
    answers += [broker.settle(each, "done", long) for each in deliveries[247:]]
    assert await asyncio.gather(*answers) == ["OK"] * 250
    assert await calls(broker) - before == 5  # 100, 100, 47 and a long one, and two alone


async def test_each_caller_gets_its_own_answer(broker: Broker) -> None:
    """A stale settle and a lost lock are reported; the others settle, a repeated one once."""
    deliveries = await fetched(broker, 4, locked=True)
    assert await broker.settle(deliveries[0], "retry", b"error") == "OK"
    await broker.client.delete(f"{broker.prefix}lock:mutex:job:1")
    stale = msgspec.structs.replace(deliveries[2], fence="1")
    answers = [broker.settle(each, "done") for each in (*deliveries, stale, deliveries[3])]
    assert await asyncio.gather(*answers) == ["OK", "LOST", "OK", "OK", "STALE", "OK"]
    counted = await broker.client.hvals(f"{broker.prefix}active")
    assert counted == [b"2"]  # that have not ended


async def test_a_failing_settle_fails_no_other(broker: Broker) -> None:
    """Its caller gets the reason."""
    deliveries = await fetched(broker, 3)
    await broker.client.set(f"{broker.prefix}h:t1", "not a list")
    before = await calls(broker)
    answers = [broker.settle(each, "retry", b"error") for each in deliveries]
    first, second, third = await asyncio.gather(*answers, return_exceptions=True)
    assert (first, third) == ("OK", "OK")
    assert isinstance(second, NonetError)
    assert "WRONGTYPE" in str(second)
    assert await calls(broker) - before == 2  # it alone was tried again


async def test_a_cancelled_settle_is_carried_out(broker: Broker) -> None:
    """A cancelled wait undoes nothing: the delivery ends."""
    deliveries = await fetched(broker, 2)
    answers = [broker.settle(each, "done") for each in deliveries]
    answers[0].cancel()
    assert await answers[1] == "OK"
    assert await left_keys(broker) == {"r:t0", "r:t1"}


async def test_without_redis_each_settle_fails(redis_url: str) -> None:
    """Each caller may ask again."""
    broker = make_broker(redis_url)
    try:
        deliveries = await fetched(broker, 3)
        unreachable = make_broker("redis://127.0.0.1:1/0")
        try:
            answers = [unreachable.settle(each, "done") for each in deliveries]
            plain = list[str | BaseException]()
            unreachable.settle_done(deliveries[0], b"", plain.append)
            for error in (*await asyncio.gather(*answers, return_exceptions=True), *plain):
                assert isinstance(error, ServerUnreachableError)
            assert len(plain) == 1
        finally:
            await unreachable.aclose()
        answers = [broker.settle(each, "done") for each in deliveries]
        assert await asyncio.gather(*answers) == ["OK"] * 3
    finally:
        await broker.aclose()


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_followers_are_submitted_with_the_end(broker: Broker, count: int) -> None:
    """Each settle submits its own, in a call with others."""
    deliveries = await fetched(broker, 3)
    children = [[task(f"c{n}-{m}") for m in range(count)] for n in range(3)]
    answers = [
        broker.settle(each, "done", submissions=those)
        for each, those in zip(deliveries, children, strict=True)
    ]
    assert await asyncio.gather(*answers) == ["OK"] * 3
    next_ones, _ = await broker.fetch("small-a1", "small", 20)
    assert [each.id for each in next_ones] == [child.id for those in children for child in those]


async def test_a_plain_success_is_answered_without_a_future(broker: Broker) -> None:
    """Each delivery gets its own answer, in one call with those that wait for a future."""
    deliveries = await fetched(broker, 4, locked=True)
    await broker.client.delete(f"{broker.prefix}lock:mutex:job:1")
    stale = msgspec.structs.replace(deliveries[2], fence="1")
    before, answers = await calls(broker), dict[str, str | BaseException]()
    for name, each in zip("abc", (*deliveries[:2], stale), strict=True):
        broker.settle_done(each, b"", partial(answers.__setitem__, name))
    assert await broker.settle(deliveries[3], "done") == "OK"
    assert answers == {"a": "OK", "b": "LOST", "c": "STALE"}
    assert await calls(broker) - before == 1
