"""What could run now: the script behind fleets and autoscalers, and the end of an idle worker."""

from __future__ import annotations

import json

import pytest
from stores.namespace.test_controls import of
from stores.queue.test_broker import fetch, task

from nonet.rules.demand import Demand
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.leadership import Leadership
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


async def test_an_empty_size_has_nothing_to_do(demands: Demands) -> None:
    """Without streams there is no demand, and nobody is there."""
    assert await demands.look_at_all() == [
        Demand(size, 0, 0) for size in ("small", "medium", "large")
    ]


async def test_what_runs_and_what_could(broker: Broker, demands: Demands) -> None:
    """Queued tasks of all priorities are runnable, delivered ones run; a worker has free slots."""
    await register(broker)
    await broker.submit([task(f"t{n}") for n in range(5)])
    await broker.submit([of("probe:A", "r", "realtime:small"), of("probe:A", "l", "normal:large")])
    assert len(await fetch(broker, 3)) == 3
    found = await demands.look("small")
    assert (found.runnable, found.running, found.free, found.live) == (3, 3, 1, 1)
    (worker,) = found.workers
    assert (worker.id, worker.slots, worker.busy) == (WORKER, 4, 3)
    assert (await demands.look("large")).runnable == 1


async def test_who_takes_nothing_has_no_free_slot(broker: Broker, demands: Demands) -> None:
    """A worker that drains, or has no memory left, is no help; a dead one is not there."""
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
async def test_what_others_will_hold_is_not_runnable(
    broker: Broker, demands: Demands, locks: list[MutexLock], together: int
) -> None:
    """Of six queued tasks with the same lock as many count as may run at a time."""
    lines = encode_locks(locks)
    await broker.submit([of("probe:A", f"t{n}", locks=lines) for n in range(6)])
    assert await numbers(demands) == (together, 0)
    assert len(await fetch(broker, 10)) == together
    assert await numbers(demands) == (0, together)


async def test_what_others_hold_is_not_runnable(broker: Broker, demands: Demands) -> None:
    """A queued task whose lock is taken, and one that is parked, want no worker."""
    await register(broker)
    await broker.submit([of("probe:A", f"t{n}", locks=encode_locks(MUTEX)) for n in range(3)])
    (held,) = await fetch(broker, 1)
    assert await numbers(demands) == (0, 1)  # nobody has looked at them yet
    assert await fetch(broker, 10) == []  # parked
    assert await numbers(demands) == (0, 1)
    await broker.settle(held, "done")
    assert await numbers(demands) == (1, 0)  # woken
    await Controls(broker.client, "test").pause(["all"], WHO)
    assert await numbers(demands) == (0, 0)


@pytest.mark.parametrize("what", ["all", "stream:normal:small", "task:A"])
async def test_what_is_paused_is_not_runnable(broker: Broker, demands: Demands, what: str) -> None:
    """No worker is started for what operators do not let start."""
    await broker.submit([of("probe:A", f"t{n}") for n in range(3)])
    controls = Controls(broker.client, "test")
    await controls.pause([what], WHO)
    assert await numbers(demands) == (0, 0)
    await controls.resume([what], WHO)
    assert await numbers(demands) == (3, 0)


async def test_delayed_tasks_are_not_runnable(broker: Broker, demands: Demands) -> None:
    """What is due later wants no worker now."""
    due = int((await broker.now()).timestamp() * 1e6) + 3_600_000_000
    await broker.submit([task("later", due_us=due)])
    assert await numbers(demands) == (0, 0)


async def test_many_are_estimated_from_the_first(broker: Broker, demands: Demands) -> None:
    """Behind those that are looked at it is taken to be alike, and never nothing."""
    await broker.submit([task(f"t{n}") for n in range(500)])
    assert await numbers(demands) == (500, 0)
    blocked = [of("probe:B", f"b{n}", "normal:large", encode_locks(MUTEX)) for n in range(200)]
    await broker.submit(blocked)
    assert 1 < (await demands.look("large")).runnable < 10
    await broker.client.set("{test}:lock:mutex:job:1", f"x/1/1|{10**17}")
    assert (await demands.look("large")).runnable == 1


async def test_only_the_leader_publishes(broker: Broker, demands: Demands) -> None:
    """What a deposed leader says is not published; the numbers expire when nobody leads."""
    leadership = Leadership(broker, "test")
    term = await leadership.lead("me", 30, "{}")
    assert term is not None and await demands.published() == {}
    assert await demands.publish(term, {"small": 3, "large": 0}, failed=2)
    assert not await demands.publish("999", {"small": 7})
    assert await demands.published() == {"small": 3, "large": 0}
    assert 0 < await broker.client.pttl("{test}:desired") <= 60_000
    assert await broker.client.hget("{test}:counters", "overflow:failed") == b"2"


async def test_slots_outlive_the_workers(broker: Broker, demands: Demands) -> None:
    """What one worker takes is known without a worker."""
    term = await Leadership(broker, "test").lead("me", 30, "{}")
    assert term is not None
    assert await demands.publish(term, {"small": 1}, {"small": 7, "large": 2})
    assert await demands.publish(term, {"small": 1}, {"large": 3})
    assert [item.known_slots for item in await demands.look_at_all()] == [7, 0, 3]


async def test_an_idle_worker_that_retires_is_not_woken(broker: Broker, demands: Demands) -> None:
    """It leaves the stack: what is submitted then wakes the next one."""
    await register(broker)
    await register(broker, OTHER)
    await broker.fetch(OTHER, "small", 1)
    await broker.fetch(WORKER, "small", 1)
    assert await demands.retire(WORKER, "small")
    await broker.submit([task("t")])
    assert await broker.client.exists(f"{{test}}:wake:{OTHER}")
    assert not await broker.client.exists(f"{{test}}:wake:{WORKER}")


async def test_who_was_woken_does_not_retire(broker: Broker, demands: Demands) -> None:
    """A task that races the end keeps its worker, as long as it is unread or its wake-up is."""
    await register(broker)
    await broker.fetch(WORKER, "small", 1)
    await broker.submit([task("t")])
    assert not await demands.retire(WORKER, "small")
    await broker.wait_for_wake(WORKER)
    assert not await demands.retire(WORKER, "small")
    (delivery,) = await fetch(broker, 1)
    await broker.settle(delivery, "done")
    assert await demands.retire(WORKER, "small")


async def test_a_wake_up_is_looked_after_first(broker: Broker, demands: Demands) -> None:
    """Also one for a task that somebody else has taken: what else it tells of is not known."""
    await register(broker)
    await broker.fetch(WORKER, "small", 1)
    await broker.submit([task("t")])
    assert len(await fetch(broker, 1, OTHER)) == 1
    assert not await demands.retire(WORKER, "small")


async def test_a_paused_backlog_keeps_nobody(broker: Broker, demands: Demands) -> None:
    """What may not start is no reason to stay."""
    await broker.submit([task("t")])
    await Controls(broker.client, "test").pause(["stream:normal:small"], WHO)
    assert await demands.retire(WORKER, "small")


async def test_who_leaves_hands_its_wake_up_on(broker: Broker) -> None:
    """A wake-up that came too late for a worker that stops wakes another one at once."""
    await register(broker)
    await register(broker, OTHER)
    await broker.fetch(OTHER, "small", 1)
    await broker.fetch(WORKER, "small", 1)
    await broker.submit([task("t")])
    assert await broker.client.exists(f"{{test}}:wake:{WORKER}")
    await broker.leave(WORKER, "small")
    assert await broker.client.exists(f"{{test}}:wake:{OTHER}")


async def test_a_trickle_keeps_waking_the_same_worker(broker: Broker) -> None:
    """The last one that worked is the next one to be woken, however often the others poll."""
    names = [f"small-{n}" for n in range(5)]
    for name in names:
        await register(broker, name)
        await broker.fetch(name, "small", 1)
    woken = set()
    for n in range(20):
        for name in names[::-1] if n % 2 else names:
            await broker.fetch(name, "small", 1)  # all poll
        await broker.submit([task(f"t{n}")])
        (name,) = [item for item in names if await broker.client.delete(f"{{test}}:wake:{item}")]
        woken.add(name)
        (delivery,), _ = await broker.fetch(name, "small", 1)
        await broker.settle(delivery, "done")
        await broker.fetch(name, "small", 1)
    assert woken == {names[-1]}
