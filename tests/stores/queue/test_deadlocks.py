"""Awaiting a task that needs a lock which the awaiting code holds, on a real server."""

from __future__ import annotations

import pytest

from nonet.base.errors import DeadlockError
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.limits import Limits
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import (
    BaseLock,
    ConcurrencyLimiter,
    ExclusiveRWLock,
    MutexLock,
    SharedRWLock,
    encode_locks,
)

A, B = MutexLock("job", "a"), MutexLock("job", "b")
READER, WRITER = SharedRWLock("job", 1), ExclusiveRWLock("job", 1)
SLOT, SLOTS = ConcurrencyLimiter("job", 1, limit=1), ConcurrencyLimiter("job", 1, limit=2)


async def submit(broker: Broker, id: str, *locks: BaseLock) -> None:
    await broker.submit([Submission(id, "p:T", "normal:small", b"e", encode_locks(locks))])


async def start(broker: Broker, id: str, *locks: BaseLock) -> Delivery:
    await submit(broker, id, *locks)
    (delivery,), _ = await broker.fetch("small-a", "small", 10)
    assert delivery.id == id
    return delivery


async def park(broker: Broker, id: str, *locks: BaseLock) -> None:
    await submit(broker, id, *locks)
    assert (await broker.fetch("small-a", "small", 10))[0] == []


async def look(results: Results, id: str, *holders: str) -> None:
    """Ask for the result as code in `holders` does; it has not ended."""
    with pytest.raises(TimeoutError):
        await results.wait(id, 0, holders)


async def awaits(broker: Broker, id: str, *others: str) -> None:
    """As if code in a task waited for the ends of others, and went on to wait."""
    await broker.client.zadd(f"{{test}}:awaits:{id}", dict.fromkeys(others, 2**52))


@pytest.mark.parametrize(
    ("held", "needed", "at"),
    [
        (A, A, "lock:mutex:job:a"),
        (WRITER, READER, "lock:rw:job:1"),
        (READER, WRITER, "lock:rw:job:1"),
        (WRITER, WRITER, "lock:rw:job:1"),
        (SLOT, SLOT, "limiter:conc:job:1"),
    ],
)
@pytest.mark.parametrize("parked", [True, False])
async def test_a_child_that_needs_the_lock_of_its_parent(
    broker: Broker, results: Results, held: BaseLock, needed: BaseLock, at: str, parked: bool
) -> None:
    """Refused at once, parked or not: it can never run while its parent waits."""
    await start(broker, "parent", held)
    await submit(broker, "child", needed)
    if parked:
        assert (await broker.fetch("small-a", "small", 10))[0] == []
    with pytest.raises(DeadlockError, match=rf"task child can never end.* {at}"):
        await results.wait("child", 5, ["parent"])
    await look(results, "child")  # code that holds nothing may wait


@pytest.mark.parametrize(
    ("held", "needed"), [(A, B), (READER, READER), (SLOTS, SLOTS), (A, WRITER)]
)
async def test_a_child_that_can_run_beside_its_parent(
    broker: Broker, results: Results, held: BaseLock, needed: BaseLock
) -> None:
    """Compatible locks are no deadlock."""
    await start(broker, "parent", held)
    await submit(broker, "child", needed)
    await look(results, "child", "parent")


async def test_a_child_behind_a_task_that_needs_the_lock(broker: Broker, results: Results) -> None:
    """It waits, in fair order, behind an older task that waits for the parent."""
    await start(broker, "parent", A)
    await park(broker, "older", A, B)
    await submit(broker, "child", B)
    with pytest.raises(DeadlockError, match="lock:mutex:job:b"):
        await results.wait("child", 5, ["parent"])


async def test_a_grandchild_that_needs_the_first_lock(broker: Broker, results: Results) -> None:
    """Each of the tasks that a task awaits counts, whichever it asked for last."""
    await start(broker, "parent", A)
    await start(broker, "child", B)
    await awaits(broker, "parent", "child")
    await submit(broker, "grandchild", A)
    with pytest.raises(DeadlockError):
        await results.wait("grandchild", 5, ["child"])
    # The parent is refused, too, if it began to wait before the chain was closed.
    await look(results, "grandchild")
    await awaits(broker, "child", "grandchild", "long")
    with pytest.raises(DeadlockError):
        await results.wait("child", 5, ["parent"])


async def test_a_full_limiter_of_others_is_no_deadlock(broker: Broker, results: Results) -> None:
    """A slot comes back without the parent."""
    await start(broker, "parent", SLOTS)
    await start(broker, "other", SLOTS)
    await park(broker, "child", SLOTS)
    await look(results, "child", "parent")
    await awaits(broker, "parent", "child")
    with pytest.raises(DeadlockError):  # now both of them would wait for it
        await results.wait("child", 5, ["other"])


async def test_a_limiter_is_full_by_its_limit_in_the_configuration(
    broker: Broker, results: Results
) -> None:
    """The limit of the class would make this one full, and its only slot is the parent's."""
    term = await Leadership(broker, "test").lead("me", 30, "{}")
    assert await Limits(broker.client, "test").publish(
        term or "", {LimitAddress("job", "1"): Limit(2)}, "a test"
    )
    await start(broker, "parent", SLOT)
    await submit(broker, "child", SLOT)
    await look(results, "child", "parent")


async def test_code_without_locks_leaves_no_record(broker: Broker, results: Results) -> None:
    """Code outside tasks that holds nothing may wait; a hold counts as the locks of a task."""
    await submit(broker, "child", A)
    await look(results, "child", "call-1")
    assert not await broker.client.exists("{test}:t:call-1")
    await broker.hold("hold-1", encode_locks([A]))
    with pytest.raises(DeadlockError):
        await results.wait("child", 5, ["hold-1"])


async def test_a_hold_in_a_task_that_has_the_lock(broker: Broker) -> None:
    """It is refused, and nothing is left of the try; for another lock it may wait."""
    await start(broker, "task", A)
    await start(broker, "other", B)
    both = encode_locks([B, A])
    answer = await broker.hold("hold-1", both, wait=True, holders=["task"])
    assert answer == ("DEADLOCK", "lock:mutex:job:a")
    assert not await broker.client.exists("{test}:t:hold-1", "{test}:l:hold-1")
    assert (await broker.hold("hold-1", both, holders=["task"]))[0] == "REFUSED"
    answer = await broker.hold("hold-1", encode_locks([B]), wait=True, holders=["task"])
    assert answer == ("REFUSED", "lock:mutex:job:b")
    # If the other one asked for the lock of the task, each would wait for the other.
    await awaits(broker, "task", "other")
    answer = await broker.hold("hold-2", encode_locks([A]), wait=True, holders=["other"])
    assert answer[0] == "DEADLOCK"


async def test_a_wait_that_timed_out_is_no_deadlock(broker: Broker, results: Results) -> None:
    """The task has given up and continues."""
    await start(broker, "first", A)
    await start(broker, "second", B)
    await submit(broker, "child", B)
    await look(results, "child", "first")  # and gave up
    await submit(broker, "other", A)
    await look(results, "other", "second")
