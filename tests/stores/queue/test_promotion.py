"""Promotion: bounded calls, each task once, and who may do it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

BATCH = 100
STREAM = "{test}:tasks:normal:small"
DELAYED = "{test}:tasks:delayed"
PROMOTED = "{test}:promoted"
HOUR_US = 3_600_000_000


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[Broker]:
    """Another process of the same namespace."""
    opened = Broker(redis_url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    yield opened
    await opened.aclose()


async def delay(broker: Broker, number: int) -> set[str]:
    """So many tasks that are all due by now; their ids."""
    due = time.time_ns() // 1000 + HOUR_US
    ids = [f"task-{n}" for n in range(number)]
    for start in range(0, number, 5000):
        await broker.submit(
            [
                Submission(id, "probe:Task", "normal:small", b"envelope", due_us=due)
                for id in ids[start : start + 5000]
            ]
        )
    assert await broker.client.zcard(DELAYED) == number
    await broker.client.zunionstore(DELAYED, {DELAYED: 0})
    return set(ids)


async def queued(broker: Broker) -> list[str]:
    return [fields[b"id"].decode() for _, fields in await broker.client.xrange(STREAM)]


@pytest.mark.parametrize("number", [1_250, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_tasks_due_at_once_are_promoted_in_bounded_batches(
    broker: Broker, number: int
) -> None:
    """However many are due, a call moves so many at most, says that more are left, and ends."""
    ids = await delay(broker, number)
    moved, more = [], True
    began = time.perf_counter()
    while more:
        promoted = await broker.promote(batch=BATCH)
        moved.append(promoted.moved)
        more = promoted.next_in == 0
        assert len(moved) <= number, "it never ends"
    took = time.perf_counter() - began
    print(f"\n{number} tasks promoted in {took:.2f} s by {len(moved)} calls")
    full, rest = divmod(number, BATCH)
    assert moved == [BATCH] * full + [rest] * bool(rest)
    found = await queued(broker)
    assert len(found) == number
    assert set(found) == ids


async def test_promoters_side_by_side_move_each_task_once(broker: Broker, other: Broker) -> None:
    """Two processes that promote at the same time put nothing into the streams twice."""
    ids = await delay(broker, 1_000)
    moved = 0
    while await broker.client.zcard(DELAYED):
        answers = await asyncio.gather(*(who.promote(batch=30) for who in (broker, other) * 3))
        moved += sum(answer.moved for answer in answers)
        assert moved <= 1_000, "promoted twice"
    assert moved == 1_000
    assert sorted(await queued(broker)) == sorted(ids)


async def test_workers_promote_only_while_no_leader_does(broker: Broker, other: Broker) -> None:
    """Workers begin five seconds after a leader's last promotion, and end with its next one."""
    leadership = Leadership(broker, "test")
    term = await leadership.lead("one", 30, "{}")
    assert term is not None
    await delay(broker, 10)
    assert (await broker.promote(term, batch=1)).moved == 1
    refused = await other.promote(batch=1)
    assert (refused.allowed, refused.moved) == (False, 0)

    await _age_promotion(broker, 4_900_000)
    assert not (await other.promote(batch=1)).allowed
    await _age_promotion(broker, 200_000)
    helped = await other.promote(batch=1)
    assert (helped.allowed, helped.moved) == (True, 1)
    helped = await other.promote(batch=1)
    assert helped.moved == 1, "a worker that helps goes on helping"

    assert (await broker.promote(term, batch=1)).moved == 1
    assert not (await other.promote(batch=1)).allowed
    assert len(set(await queued(broker))) == 4


async def test_a_deposed_leader_promotes_nothing(broker: Broker, other: Broker) -> None:
    """The term is looked at in the call itself, so that who was stopped and resumed is refused."""
    first, second = Leadership(broker, "test"), Leadership(other, "test")
    old = await first.lead("one", 30, "{}")
    assert old is not None
    await first.resign("one", old)
    new = await second.lead("two", 30, "{}")
    assert new is not None
    await delay(broker, 2)
    refused = await broker.promote(old)
    assert (refused.allowed, refused.moved) == (False, 0)
    assert (await other.promote(new)).moved == 2


async def _age_promotion(broker: Broker, microseconds: int) -> None:
    """As if the last promotion by a leader had been so much earlier."""
    await broker.client.decrby(PROMOTED, microseconds)
