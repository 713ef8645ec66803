"""The short ways of submit and fetch, where random histories of the state machines rarely go."""

from __future__ import annotations

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import BaseLock, MutexLock, RateLimiter, encode_locks


def task(id: str, *locks: BaseLock) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", encode_locks(locks))


async def test_one_fetch_gives_a_mutex_to_one_task(broker: Broker) -> None:
    """Although a task before them, which a limiter refuses, has found the mutex free."""
    mutex = MutexLock("job", 1)
    limiter = RateLimiter("job", "mail", limit=1, window_seconds=60)
    await broker.submit([task("uses the limiter up", limiter), task("refused", mutex, limiter)])
    await broker.submit([task("plain", mutex), task("other", mutex, MutexLock("job", 2))])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    assert [item.id for item in deliveries] == ["uses the limiter up", "plain"]


async def test_five_hundred_tasks_with_locks_take_one_call(broker: Broker) -> None:
    """Neither Lua nor Redis limits the arguments below that."""
    tasks = [task(f"t{number}", MutexLock("job", number)) for number in range(500)]
    assert await broker.submit(tasks) == [True] * 500
    deliveries, _ = await broker.fetch("small-a", "small", 500)
    assert len(deliveries) == 500 and all(item.locks for item in deliveries)
