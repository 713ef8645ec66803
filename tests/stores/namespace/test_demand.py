"""What could run now: the script behind fleets and autoscalers, and the end of an idle worker."""

from __future__ import annotations

import json

import pytest
from stores.namespace.test_controls import of
from stores.queue.test_broker import fetch, task

from nonet.rules.demand import Demand
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.demand import Demands
from nonet.stores.queue.broker import Broker
from nonet.tasks.locks import (
    ConcurrencyLimiter,
    ExclusiveRWLock,
    MutexLock,
    SharedRWLock,
    encode_locks,
)

WORKER, OTHER = "small-a", "small-other"
WHO = "ann@host 7"


@pytest.fixture
def demands(broker: Broker) -> Demands:
    return Demands(broker.client, "test", 30_000)


async def register(broker: Broker, worker: str = WORKER, slots: int = 4, **said: str) -> None:
    """A worker that lives."""
    now = int((await broker.now()).timestamp() * 1e6)
    info = json.dumps({"size": "small", "concurrency": slots})
    await broker.client.hset(f"{{test}}:w:{worker}", mapping={"info": info, **said})
    await broker.client.zadd("{test}:workers", {worker: now + 60_000_000})


async def numbers(demands: Demands) -> tuple[int, int]:
    found = await demands.look("small")
    return found.runnable, found.running


async def test_an_empty_size_has_no_demand(demands: Demands) -> None:
    """And no workers."""
    assert await demands.look_at_all() == [
        Demand(size, 0, 0) for size in ("small", "medium", "large")
    ]


async def test_queued_tasks_are_runnable(broker: Broker, demands: Demands) -> None:
    """Of all priorities, but not delayed ones; delivered tasks run and use slots."""
    await register(broker)
    await broker.submit([task(f"t{n}") for n in range(5)])
    await broker.submit([of("probe:A", "r", "realtime:small"), of("probe:A", "l", "normal:large")])
    assert len(await fetch(broker, 3)) == 3
    await broker.submit([task("later", due_us=2**52)])
    found = await demands.look("small")
    assert (found.runnable, found.running, found.free, found.live) == (3, 3, 1, 1)
    (worker,) = found.workers
    assert (worker.id, worker.slots, worker.busy) == (WORKER, 4, 3)
    assert (await demands.look("large")).runnable == 1


async def test_a_draining_worker_has_no_free_slot(broker: Broker, demands: Demands) -> None:
    """A dead worker does not count at all."""
    await register(broker, off="draining")
    await broker.client.zadd("{test}:workers", {OTHER: 1})
    found = await demands.look("small")
    assert (found.free, found.live, len(found.workers)) == (0, 0, 1)


MUTEX, READER = [MutexLock("job", 1)], [SharedRWLock("job", 1)]


@pytest.mark.parametrize(
    ("locks", "together"),
    [
        (MUTEX, 1),
        ([ExclusiveRWLock("job", 1)], 1),
        (READER, 6),
        ([ConcurrencyLimiter("job", 1, limit=2)], 2),
        ([], 6),
    ],
)
async def test_tasks_that_exclude_each_other_count_once(
    broker: Broker, demands: Demands, locks: list[MutexLock], together: int
) -> None:
    """Of six queued tasks with one lock as many count as may run at a time."""
    lines = encode_locks(locks)
    await broker.submit([of("probe:A", f"t{n}", locks=lines) for n in range(6)])
    assert await numbers(demands) == (together, 0)
    assert len(await fetch(broker, 10)) == together
    assert await numbers(demands) == (0, together)


async def test_tasks_whose_lock_is_held_are_not_runnable(broker: Broker, demands: Demands) -> None:
    """Neither queued nor parked, until they are woken."""
    await register(broker)
    await broker.submit([of("probe:A", f"t{n}", locks=encode_locks(MUTEX)) for n in range(3)])
    (held,) = await fetch(broker, 1)
    assert await numbers(demands) == (0, 1)  # no fetch has read them yet
    assert await fetch(broker, 10) == []  # parked
    assert await numbers(demands) == (0, 1)
    await broker.settle(held, "done")
    assert await numbers(demands) == (1, 0)  # woken


@pytest.mark.parametrize("what", ["all", "stream:normal:small", "task:A"])
async def test_paused_tasks_are_not_runnable(broker: Broker, demands: Demands, what: str) -> None:
    """No worker is started for them."""
    await broker.submit([of("probe:A", f"t{n}") for n in range(3)])
    controls = Controls(broker.client, "test")
    await controls.pause([what], WHO)
    assert await numbers(demands) == (0, 0)
    await controls.resume([what], WHO)
    assert await numbers(demands) == (3, 0)


async def test_a_long_backlog_is_estimated(broker: Broker, demands: Demands) -> None:
    """Tasks behind those that are read are taken to be alike, and never nothing."""
    await broker.submit([task(f"t{n}") for n in range(500)])
    assert await numbers(demands) == (500, 0)
    blocked = [of("probe:B", f"b{n}", "normal:large", encode_locks(MUTEX)) for n in range(200)]
    await broker.submit(blocked)
    assert 1 < (await demands.look("large")).runnable < 10
    await broker.client.set("{test}:lock:mutex:job:1", f"x/1/1|{10**17}")
    assert (await demands.look("large")).runnable == 1


async def test_published_numbers_expire(broker: Broker, demands: Demands, term: str) -> None:
    """They end when no scheduler leads; the slots of a worker of each size outlive them."""
    assert await demands.published() == {}
    assert await demands.publish(term, {"small": 3, "large": 0}, {"small": 7, "large": 2}, failed=2)
    assert await demands.publish(term, {"small": 3, "large": 0}, {"large": 3})
    assert await demands.published() == {"small": 3, "large": 0}
    assert 0 < await broker.client.pttl("{test}:desired") <= 60_000
    assert await broker.client.hget("{test}:counters", "overflow:failed") == b"2"
    assert [item.known_slots for item in await demands.look_at_all()] == [7, 0, 3]


async def test_a_retired_worker_is_not_woken(broker: Broker, demands: Demands) -> None:
    """A submit wakes the next one."""
    await register(broker)
    await register(broker, OTHER)
    await broker.fetch(OTHER, "small", 1)
    await broker.fetch(WORKER, "small", 1)
    assert await demands.retire(WORKER, "small")
    await broker.submit([task("t")])
    assert await broker.client.exists(f"{{test}}:wake:{OTHER}")
    assert not await broker.client.exists(f"{{test}}:wake:{WORKER}")


async def test_a_woken_worker_does_not_retire(broker: Broker, demands: Demands) -> None:
    """Not while a task, or its wake-up, is unread, although another worker took the task."""
    await register(broker)
    await broker.fetch(WORKER, "small", 1)
    await broker.submit([task("t")])
    assert not await demands.retire(WORKER, "small")
    (delivery,) = await fetch(broker, 1, OTHER)
    assert not await demands.retire(WORKER, "small")
    await broker.wait_for_wake(WORKER)
    await broker.settle(delivery, "done")
    assert await demands.retire(WORKER, "small")


async def test_a_backlog_keeps_a_worker(broker: Broker, demands: Demands) -> None:
    """Unread tasks are a reason to stay, unless they are paused."""
    await broker.submit([task("t")])
    assert not await demands.retire(WORKER, "small")
    await Controls(broker.client, "test").pause(["stream:normal:small"], WHO)
    assert await demands.retire(WORKER, "small")


async def test_a_worker_that_leaves_passes_its_wake_up_on(broker: Broker) -> None:
    """A wake-up that came too late for a worker that stops wakes another one at once."""
    await register(broker)
    await register(broker, OTHER)
    await broker.fetch(OTHER, "small", 1)
    await broker.fetch(WORKER, "small", 1)
    await broker.submit([task("t")])
    assert await broker.client.exists(f"{{test}}:wake:{WORKER}")
    await broker.leave(WORKER, "small")
    assert await broker.client.exists(f"{{test}}:wake:{OTHER}")
