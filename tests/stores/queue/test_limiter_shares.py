"""Fair shares of tenants in the queues of limiters: to whom a place goes that becomes free."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import pytest
import records
from hypothesis import HealthCheck, given, settings, strategies as st
from stores.shares import STEP, Model, Site, beat, problems

from nonet.base.streams import Priority
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.locks import ConcurrencyLimiter, encode_locks

WORKER = "small-a"
LONG_AGO = 10**12  # µs


class Limiter(Site):
    """Tasks of tenants that wait for limiters, whose places are all taken."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.held: deque[Delivery] = deque()

    async def wait(
        self, tenant: str, number: int = 1, *keys: int, priority: str = "normal", limit: int = 1
    ) -> list[str]:
        """Submit tasks that need a place at each of these limiters; they wait if it has none."""
        locks = [ConcurrencyLimiter("job", key, limit=limit) for key in keys or (7,)]
        ids = await self.submit(tenant, number, encode_locks(locks), f"{priority}:small")
        await self.begin()
        return ids

    async def begin(self) -> list[str]:
        """The worker takes all tasks that can run."""
        begun, is_more = list[Delivery](), True
        while is_more:
            found, is_more = await self.broker.fetch(WORKER, "small", 100)
            begun += found
        self.held += begun
        return [item.id for item in begun]

    async def pass_on(self, number: int = 1) -> list[str]:
        """End the task that has run for longest, so many times; what begins instead."""
        begun = list[str]()
        while number and self.held:
            number -= 1
            await self.broker.settle(self.held.popleft(), "done")
            begun += await self.begin()
        return begun

    async def ahead(self, id: str) -> int | None:
        return (await self.explain(id)).ahead

    async def age(self, *ids: str) -> None:
        """Waiting tasks have waited for so long that they count as realtime."""
        for id in ids:
            await records.hset(self.broker.client, f"{{test}}:t:{id}", "since", 1000)
            await self.broker.client.zadd("{test}:tasks:delayed", {id: LONG_AGO})
        while (await self.broker.promote()).next_in == 0:
            pass


@pytest.fixture
async def limiter(broker: Broker) -> AsyncIterator[Limiter]:
    """One place; all streams are shared."""
    await beat(broker, WORKER)
    limiter = Limiter(broker)
    await limiter.shares({}, [f"{priority}:small" for priority in Priority])
    yield limiter
    while limiter.held:
        await limiter.pass_on()
    left = [key async for key in broker.client.scan_iter("{test}:[lrs][ieh][nsa]*limiter*")]
    assert left == [], "keys of fair shares are left"


async def test_4000_tasks_of_a_tenant_delay_another_by_one_start(limiter: Limiter) -> None:
    """The only task of a second tenant is next but one, and `explain` says so."""
    ids = await limiter.wait("a", 4001)
    (mine,) = await limiter.wait("b")
    assert await limiter.ahead(mine) == 1
    assert await problems(limiter.broker) == []
    assert await limiter.pass_on(3) == ["a.1", mine, "a.2"]
    await limiter.broker.cancel(ids, "by a test")


class AtLimiter(Model):
    """Exact fair queueing at a limiter: once nothing waits, all tenants are equal again."""

    def cancel(self, tenant: str, number: int) -> list[str]:
        waiting = self.waiting.get(tenant) or deque()
        return self._after([waiting.popleft() for _ in range(min(number, len(waiting)))])

    def next(self) -> str | None:
        return self._after(super().next())

    def _after(self, answer: Any) -> Any:
        if not any(self.waiting.values()):
            self.times, self.waiting, self.pace = {}, {}, Fraction(0)
        return answer


CANCEL = st.tuples(st.just("cancel"), st.sampled_from("abcd"), st.integers(1, 6))


@given(steps=st.lists(st.one_of(STEP, CANCEL), max_size=30), places=st.integers(1, 3))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_starts_are_those_of_exact_fair_queueing(
    limiter: Limiter, steps: list[tuple], places: int
) -> None:
    """Whatever is submitted, weighed and cancelled: each place goes to whom the model says."""
    await limiter.broker.client.flushdb()
    await beat(limiter.broker, WORKER)
    limiter.term, limiter.held, model = "", deque(), AtLimiter()
    await limiter.shares({})
    for step in [*steps, *[("run", 5)] * 40]:
        free = places - len(limiter.held)
        match step:
            case ("submit", tenant, number):
                ids = await limiter.wait(tenant, number, limit=places)
                if ids[free:]:
                    model.submit(tenant, ids[free:])
            case ("cancel", tenant, number):
                await limiter.broker.cancel(model.cancel(tenant, number), "by a test")
            case ("weigh", tenant, weight):
                model.weights[tenant] = Fraction(weight)
                await limiter.shares({name: float(each) for name, each in model.weights.items()})
            case ("run", number):
                for _ in range(min(number, len(limiter.held))):
                    expected = model.next()
                    assert await limiter.pass_on() == ([expected] if expected else [])


async def test_realtime_tasks_go_first(limiter: Limiter) -> None:
    """Shares divide what one priority gets; those that wait for a lower priority know it."""
    await limiter.wait("a", 3)
    (mine,) = await limiter.wait("b")
    first = await limiter.wait("a", 3, priority="realtime")
    (last,) = await limiter.wait("c", priority="background")
    assert [await limiter.ahead(id) for id in (first[2], mine, last)] == [2, 3, 6]
    assert await limiter.pass_on(7) == [*first, mine, "a.1", "a.2", last]


async def test_a_backlog_that_has_aged_shares_too(limiter: Limiter) -> None:
    """If a task has aged, so have those of its priority whose turns come first, however young."""
    _, *old = await limiter.wait("a", 20)
    await limiter.age(*old)
    ids = await limiter.wait("b", 2)
    (above,) = await limiter.wait("c", priority="realtime")
    assert [await limiter.ahead(id) for id in ids] == [1, 4]
    assert await limiter.pass_on(5) == [old[0], ids[0], above, old[1], ids[1]]


async def test_a_task_that_another_limiter_refuses_costs_no_turn(limiter: Limiter) -> None:
    """It waits there, keeps its rank among the tasks of its tenant, and gets its turn back."""
    await limiter.wait("z", 1, 8)
    await limiter.wait("a", 1, 7)
    both = await limiter.wait("a", 1, 7, 8)
    more = await limiter.wait("a", 2, 7)
    mine = await limiter.wait("b", 2, 7)
    held = limiter.held.popleft()
    assert await limiter.pass_on(3) == [more[0], mine[0], more[1]]
    limiter.held.append(held)
    assert await limiter.pass_on(2) == [mine[1]]
    assert await limiter.pass_on() == both


async def test_a_lapsed_reservation_costs_no_turn(limiter: Limiter) -> None:
    """The tenant of a woken task that no worker takes in time gets the turn back."""
    _, first, second = await limiter.wait("a", 3)
    mine = await limiter.wait("b", 2)
    await limiter.broker.settle(limiter.held.popleft(), "done")  # wakes the first of a
    await records.hset(limiter.broker.client, f"{{test}}:t:{first}", "reserved", LONG_AGO)
    await limiter.broker.client.zadd("{test}:tasks:delayed", {first: LONG_AGO})
    while (await limiter.broker.promote()).next_in == 0:
        pass
    begun = await limiter.begin() + await limiter.pass_on(3)
    assert begun == [second, mine[0], first, mine[1]]


async def test_tasks_that_waited_before_go_first(limiter: Limiter) -> None:
    """Where tenants begin to share, those that wait keep their order; where they end, too."""
    await limiter.shares({}, ())
    _, *old = await limiter.wait("a", 4)
    await limiter.shares({})
    new = await limiter.wait("a", 3)
    (mine,) = await limiter.wait("b")
    assert await limiter.ahead(mine) == 4
    assert await limiter.pass_on(5) == [*old, new[0], mine]
    assert await limiter.shares({}, ()) > 0, "a limiter has lines"
    assert await limiter.pass_on(2) == new[1:]
    assert await limiter.shares({}, ()) == 0
