"""Deliveries that end at the same time are settled together, and know nothing of each other."""

from __future__ import annotations

import asyncio

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
    nobody = ("", "0", "0", "tasks:normal:small", "0-1", "")
    assert await broker.scripts.run("settle", "1|1|0", 1, 1, *nobody) == [
        b"STALE"
    ]  # Redis knows it now
    return deliveries


async def left_keys(broker: Broker) -> set[str]:
    keys = {key.decode().removeprefix(broker.prefix) for key in await broker.client.keys("*")}
    return {
        key for key in keys if key.split(":")[0] in ("t", "b", "l", "e", "h", "c", "r", "active")
    }


async def test_what_ends_in_one_step_is_settled_in_one_call(broker: Broker) -> None:
    """A hundred tasks that end together take one call; of them no more than their ids is left."""
    deliveries = await fetched(broker, 100)
    before = await calls(broker)
    answers = [broker.settle(each, "done") for each in deliveries]
    assert await asyncio.gather(*answers) == ["OK"] * 100
    assert await calls(broker) - before == 1
    assert await left_keys(broker) == {f"r:t{n}" for n in range(100)}
    assert await broker.client.xlen(f"{broker.prefix}tasks:normal:small") == 0


async def test_what_ends_meanwhile_goes_with_the_next(broker: Broker) -> None:
    """What ends while a call is under way is settled by one more call."""
    deliveries = await fetched(broker, 50)
    before = await calls(broker)
    answers = [broker.settle(deliveries[0], "done")]
    await asyncio.sleep(0)  # it is on its way
    await asyncio.sleep(0)
    answers += [broker.settle(each, "done") for each in deliveries[1:]]
    assert await asyncio.gather(*answers) == ["OK"] * 50
    assert await calls(broker) - before == 2


async def test_many_are_settled_by_several_calls(broker: Broker) -> None:
    """No call settles more than 100 tasks, or is much longer than 1 MiB."""
    deliveries = await fetched(broker, 250)
    before = await calls(broker)
    long = b"x" * 600_000
    answers = [broker.settle(each, "done") for each in deliveries[:247]]
    answers += [broker.settle(each, "done", long) for each in deliveries[247:]]
    assert await asyncio.gather(*answers) == ["OK"] * 250
    assert await calls(broker) - before == 5  # 100, 100, 47 and a long one, and two alone


async def test_each_has_his_own_answer(broker: Broker) -> None:
    """Who is not the owner, or has lost a lock, is told; the others are settled."""
    deliveries = await fetched(broker, 4, locked=True)
    assert await broker.settle(deliveries[0], "retry", b"error") == "OK"
    await broker.client.delete(f"{broker.prefix}lock:mutex:job:1")
    other = msgspec.structs.replace(deliveries[2], fence="1")  # somebody else's by now
    answers = [broker.settle(each, "done") for each in (*deliveries, other)]
    assert await asyncio.gather(*answers) == ["OK", "LOST", "OK", "OK", "STALE"]


async def test_a_settlement_that_is_asked_for_twice_is_settled_once(broker: Broker) -> None:
    """In one call, too, a repetition is answered as the first one was."""
    delivery, *_ = await fetched(broker, 3)
    both = [broker.settle(delivery, "done") for _ in range(2)]
    assert await asyncio.gather(*both) == ["OK", "OK"]
    counted = await broker.client.hvals(f"{broker.prefix}active")
    assert counted == [b"2"]  # that have not ended


async def test_a_broken_one_takes_no_other_along(broker: Broker) -> None:
    """Whose settlement fails is told why; those that came with it are settled."""
    deliveries = await fetched(broker, 3)
    await broker.client.set(f"{broker.prefix}h:t1", "not a list")
    before = await calls(broker)
    answers = [broker.settle(each, "retry", b"error") for each in deliveries]
    first, second, third = await asyncio.gather(*answers, return_exceptions=True)
    assert (first, third) == ("OK", "OK")
    assert isinstance(second, NonetError)
    assert "WRONGTYPE" in str(second)
    assert await calls(broker) - before == 2  # it alone was tried again


async def test_a_caller_who_goes_away_settles_nevertheless(broker: Broker) -> None:
    """A cancelled wait undoes nothing: the delivery ends."""
    deliveries = await fetched(broker, 2)
    answers = [broker.settle(each, "done") for each in deliveries]
    answers[0].cancel()
    assert await answers[1] == "OK"
    assert await left_keys(broker) == {"r:t0", "r:t1"}


async def test_without_redis_each_is_told(redis_url: str) -> None:
    """When Redis does not answer, each caller gets that error, and may ask again."""
    broker = make_broker(redis_url)
    try:
        deliveries = await fetched(broker, 3)
        unreachable = make_broker("redis://127.0.0.1:1/0")
        try:
            answers = [unreachable.settle(each, "done") for each in deliveries]
            for error in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(error, ServerUnreachableError)
        finally:
            await unreachable.aclose()
        answers = [broker.settle(each, "done") for each in deliveries]
        assert await asyncio.gather(*answers) == ["OK"] * 3
    finally:
        await broker.aclose()


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_what_follows_a_task_is_submitted_with_its_end(broker: Broker, count: int) -> None:
    """In a call with others each settlement submits what is its own."""
    deliveries = await fetched(broker, 3)
    children = [[task(f"c{n}-{m}") for m in range(count)] for n in range(3)]
    answers = [
        broker.settle(each, "done", submissions=those)
        for each, those in zip(deliveries, children, strict=True)
    ]
    assert await asyncio.gather(*answers) == ["OK"] * 3
    next_ones, _ = await broker.fetch("small-a1", "small", 20)
    assert [each.id for each in next_ones] == [child.id for those in children for child in those]
