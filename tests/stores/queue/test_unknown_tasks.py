"""Pointers to tasks that Redis does not know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks

NOW = timedelta(0)
MUTEX = encode_locks([MutexLock("job", 7)])
LONG = b"e" * 200  # in a key of its own


def task(id: str, locks: str = "", due_us: int = 0, group: str = "") -> Submission:
    return Submission(id, "p:T", "normal:small", LONG, locks, due_us, group)


async def queued(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX)])


async def delayed(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX, due_us=2**52)])


async def running(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX)])
    await broker.fetch("small-a", "small", 10)


@pytest.mark.parametrize("place", ["stream", "delayed", "pending"])
async def test_a_deleted_record_is_counted_and_those_who_wait_are_told(
    broker: Broker, redis_url: str, place: str
) -> None:
    """A pointer to a task that Redis does not know leaves a count, wherever it is met."""
    await {"stream": queued, "delayed": delayed, "pending": running}[place](broker)
    await broker.scripts.run("wait", "a", "client")
    await broker.client.delete("{test}:t:a")
    if place == "delayed":
        await broker.mend(NOW)
    elif place == "pending":
        await broker.disown("small-a", "small", [])
    else:
        await broker.fetch("small-b", "small", 10)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") == b"1"
    assert await broker.client.lrange("{test}:wake:client", 0, -1) == [b"a"]


async def test_a_known_end_is_no_unknown_task(broker: Broker) -> None:
    """A pointer to a task that has ended a moment ago is void, as always, and is not counted."""
    await queued(broker)
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, "done")
    await broker.client.xadd("{test}:tasks:normal:small", {"id": "a", "gen": delivery.gen})
    await broker.fetch("small-a", "small", 1)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") is None
