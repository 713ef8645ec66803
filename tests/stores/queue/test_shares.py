"""Fair shares of tenants in Redis: whose turn it is, what counts, and what comes into lists."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from stores.shares import STEP, STREAM, Model, Site, beat, problems, tenants

from nonet.base.streams import Priority, Size
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.figures import Measures
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.places import PAGE, TaskFilter
from nonet.stores.queue.results import Results
from nonet.stores.queue.stream_tasks import stream_tasks
from nonet.tasks.locks import MutexLock, encode_locks

NOW = timedelta(0)
MUTEX = encode_locks([MutexLock("job", 7)])
WAITING = ("a.1", "a.3", "b.6")


@pytest.fixture
async def site(broker: Broker) -> AsyncIterator[Site]:
    yield Site(broker)
    assert [key async for key in broker.client.scan_iter("{test}:share*")] == [], "lists are left"


@pytest.mark.parametrize("number", [9, 100])
async def test_a_turn_is_an_eighth_of_the_free_slots(site: Site, number: int) -> None:
    """Tenants take turns of so many starts, and no tenant is more than one turn ahead."""
    await site.shares({})
    for name in "abc":
        await site.submit(name, 200)
    begun: list[str] = []
    while len(begun) < 300:
        begun += await site.run(number)
        counts = Counter(begun)
        assert max(counts.values()) - min(counts[name] for name in "abc") <= math.ceil(number / 8)
    while await site.run(200):
        pass


@given(steps=st.lists(STEP, max_size=30))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_starts_are_those_of_exact_fair_queueing(site: Site, steps: list[tuple]) -> None:
    """Whatever is submitted, run and weighed: what begins, and when, is what the model says.

    So it is for workers with up to 8 free slots; with more, a turn is several starts.
    """
    await site.broker.client.flushdb()
    site.term, model = "", Model()
    await site.shares({})
    for step in [*steps, *[("run", 8)] * 25]:
        match step:
            case ("submit", tenant, number):
                model.submit(tenant, await site.submit(tenant, number))
            case ("weigh", tenant, weight):
                model.weights[tenant] = Fraction(weight)
                await site.shares({name: float(value) for name, value in model.weights.items()})
            case ("run", number):
                expected = [id for id in (model.next() for _ in range(number)) if id]
                fetched = await site.fetch(number)
                assert [item.id for item in fetched] == expected
                await asyncio.gather(*(site.broker.settle(item, "done") for item in fetched))


async def test_cancelled_tasks_cost_no_turn(site: Site) -> None:
    """Pointers without a task count as no starts."""
    await site.shares({})
    ids = await site.submit("a", 50)
    await site.submit("b", 10)
    await site.submit("a", 10)
    await site.broker.cancel(ids, "by a test")
    assert Counter(await site.run(10)) == {"a": 5, "b": 5}
    while await site.run(200):
        pass


async def test_a_task_that_waits_for_a_lock_costs_no_turn(site: Site) -> None:
    """It is next when woken; otherwise the chain of a mutex would starve its tenant."""
    await site.shares({})
    await site.submit("a", 4, MUTEX)
    await site.submit("b", 4)
    first = await site.fetch(2)
    assert tenants(first) == ["a", "b"]
    assert tenants(await site.fetch(1)) == ["b"], "the others of a wait"
    await site.submit("a", 4)
    await asyncio.gather(*(site.broker.settle(item, "done") for item in first))
    (woken,) = await site.fetch(1)
    assert woken.id == "a.1", "it goes before the tasks of a that came later"
    await site.broker.settle(woken, "done")
    while await site.run(200):
        pass


@pytest.mark.parametrize("outcome", ["retry", "back", "delayed", "lost"])
async def test_a_requeued_task_waits_for_its_turn(site: Site, outcome: str) -> None:
    """A retried, returned, promoted or reclaimed task goes to the list of its tenant."""
    await site.shares({})
    await site.submit("a", 3)
    fetched = await site.fetch(3)
    delay = timedelta(hours=1) if outcome == "delayed" else timedelta(0)
    for item in fetched if outcome != "lost" else ():
        await site.broker.settle(item, outcome.replace("delayed", "retry"), b"", delay=delay)
    if outcome == "lost":
        assert len(await site.broker.disown("small-a", "small", [])) == 3
    if outcome == "delayed":
        await site.broker.client.zunionstore("{test}:tasks:delayed", {"{test}:tasks:delayed": 0})
        await site.broker.promote()
    await site.submit("b", 3)
    assert [tenant for _ in range(6) for tenant in await site.run(1)] == [*"bababa"]


async def test_switching_moves_no_queued_task(site: Site) -> None:
    """Older tasks are fetched as well; the keys are gone when all lists are empty."""
    await site.submit("a", 5)
    assert await site.shares({}) == 0
    await site.submit("b", 5)
    assert await site.run(6) == [*"aaaaa", "b"]
    assert await site.shares({}, ()) == 1, "a stream has lists"
    await site.submit("c", 2)
    assert await site.run(6) == [*"cc", *"bbbb"]
    assert await site.shares({}, ()) == 0
    assert await site.fairness.published() == ""
    keys = [key async for key in site.broker.client.scan_iter("*")]
    assert not [key for key in keys if b"share" in key or b"fair" in key or b"pace" in key]


class TestSeen:
    """Operators see tasks in lists as they see those in streams."""

    @pytest.fixture
    async def site(self, site: Site) -> AsyncIterator[Site]:
        """Five tasks of a and two of b wait; one of a runs."""
        await site.shares({"b": 2})
        await site.submit("a", 6)
        await site.fetch(1)
        await site.submit("b", 2)
        await beat(site.broker, "small-a")
        yield site
        while await site.run(100):
            pass

    async def test_explanations(self, site: Site) -> None:
        """The tenant whose turn it is, and how many tasks that means."""
        told = [await site.explain(id) for id in WAITING]
        used = "of tenant a, which has used its share: 1 other goes first, with 2 tasks"
        assert [one.text.partition(". ")[0] for one in told] == [
            f"queued, first {used}",
            f"queued, behind 2 others {used}",
            "queued, first of tenant b",
        ]

    async def test_a_place_far_back(self, site: Site) -> None:
        """It is counted up to a thousand in the list of its tenant."""
        ids = await site.submit("a", 1200)
        told = await site.explain(ids[-1])
        assert told.ahead == 1000 and "queued, more than 1000 ahead of it" in told.text

    async def test_lists_of_tasks(self, site: Site, results: Results) -> None:
        """Ordered by the time of submission, and counted."""
        page = await results.page(TaskFilter(states=("queued",)))
        assert [row.id for row in page.rows] == [*(f"a.{n}" for n in range(1, 6)), "b.6", "b.7"]
        assert page.total == 7
        found = await stream_tasks(site.broker.scripts, STREAM, 10)
        assert {item.id for item in found.queued} == {row.id for row in page.rows}

    async def test_more_tasks_than_a_script_call_reads(self, site: Site, results: Results) -> None:
        """Each is found once, though the list of a tenant goes on behind a call."""
        more = await site.submit("a", PAGE) + await site.submit("b", PAGE)
        page = await results.page(TaskFilter(states=("queued",)), limit=3 * PAGE)
        found = [row.id for row in page.rows]
        assert len(found) == len(set(found)) == page.matched == 7 + 2 * PAGE
        assert set(more) < set(found)

    async def test_figures_and_demand(self, site: Site) -> None:
        """Depths and ages count them, and so does the demand."""
        measured = await Measures(site.broker.client, "test", 60).figures()
        figures = measured.streams[Priority.NORMAL, Size.SMALL]
        assert (figures.depth, figures.in_flight) == (8, 1)
        assert figures.oldest > 0
        demand = await Demands(site.broker.client, "test", 30_000).look("small")
        assert demand.runnable == 7

    async def test_the_doctor(self, site: Site) -> None:
        """It finds nothing until a tenant takes no part; the walk moves no task."""
        assert await problems(site.broker) == []
        assert (await site.broker.mend(NOW))[0] == 0
        await site.broker.client.zrem(f"{{test}}:shares:{STREAM}", "a")
        assert {
            "queue": "has 5 tasks of a tenant that takes no part in the shares of its stream"
        }.items() <= dict(await problems(site.broker)).items()
        await site.broker.mend(NOW)
