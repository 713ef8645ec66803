"""A workflow continues wherever a step may end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import pytest
import records
from workflows.flow_site import WORKER, FlowSite, P
from workflows.flow_tasks import Late, Noop, Rated

from nonet import Workflow, ended
from nonet.stores.connection.redis import script
from nonet.stores.queue.broker import new_cursors

End = Callable[[FlowSite], Awaitable[Any]]


async def settled(flows: FlowSite) -> None:
    (delivery,) = await flows.fetch()
    await flows.settle(delivery)


async def settled_with_others(flows: FlowSite) -> None:
    await flows.app.submit_many([Noop() for _ in range(20)])
    for delivery in await flows.fetch():
        flows.app.broker.settle(delivery, "done")
    await flows.app.broker.settle(delivery, "done")


async def cancelled(flows: FlowSite) -> None:
    assert await flows.app.cancel(["w:0"]) == {"w:0": "cancelled"}


async def cancelled_by_class(flows: FlowSite) -> None:
    assert await flows.app.client.cancel_many(task=Late) == 1


async def lost_after_an_order(flows: FlowSite) -> None:
    await flows.fetch()
    assert await flows.app.cancel(["w:0"]) == {"w:0": "cancelling"}


async def reclaimed(flows: FlowSite) -> None:
    await lost_after_an_order(flows)
    for entry in flows.redis.xpending_range(f"{P}tasks:normal:small", "workers", "-", "+", 9):
        ids = [entry["message_id"]]
        idle = {"idle": 2_000_000, "justid": True}
        flows.redis.xclaim(f"{P}tasks:normal:small", "workers", WORKER, 0, ids, **idle)
    broker = flows.app.broker
    flows.redis.zadd(f"{P}workers", {"small-b1": 2**52})
    count, _ = await broker.reclaim("small-b1", "small", new_cursors())
    assert count == 1


async def taken_over(flows: FlowSite) -> None:
    await lost_after_an_order(flows)
    assert await flows.app.broker.take_over(WORKER, "small", "a test") == 1


async def disowned(flows: FlowSite) -> None:
    await lost_after_an_order(flows)
    assert len(await flows.app.broker.disown(WORKER, "small", ())) == 1


async def late_at_a_promotion(flows: FlowSite) -> None:
    records.hset(flows.redis, f"{P}t:w:0", "start_by", "1|")
    flows.redis.zadd(f"{P}deadlines", {"w:0": 1})
    await flows.app.broker.promote()


async def late_at_a_fetch(flows: FlowSite) -> None:
    records.hset(flows.redis, f"{P}t:w:0", "start_by", "1|")
    assert await flows.fetch() == []


async def late_with_a_row(flows: FlowSite) -> None:
    records.hset(flows.redis, f"{P}t:w:0", "start_by", "1|1")
    flows.redis.zadd(f"{P}deadlines", {"w:0": 1})
    await flows.app.broker.promote()
    flows.redis.hset(f"{P}leader", mapping={"owner": "o", "term": "7", "expiry": 2**52})
    found = await flows.app.broker.expired("7", 10)
    assert found and await flows.app.broker.end_expired([(found[0], b"document")]) == ["w:0"]


async def quarantined(flows: FlowSite) -> None:
    records.hset(flows.redis, f"{P}t:w:0", "envelope", "garbage")
    (delivery,) = await flows.fetch()
    await flows.app.broker._end_damaged(
        *(delivery.id, delivery.gen, delivery.fence, delivery.stream_key, delivery.entry, "bad")
    )


ENDS: list[End] = [
    *(settled, settled_with_others, cancelled, cancelled_by_class, reclaimed, taken_over, disowned),
    *(late_at_a_promotion, late_at_a_fetch, late_with_a_row, quarantined),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_its_successors_are_released(flows: FlowSite, end: End) -> None:
    """The same script that ends the task releases the steps behind it."""
    flow = Workflow()
    first = flow.step(Late())
    flow.step(Noop(), after=ended(first))
    await flow.submit(id="w")
    await end(flows)
    assert flows.states("w")["1"] == "ready"
    assert flows.redis.hget(f"{P}counters", "finish:broken") is None
    await flows.run()
    assert (await flows.app.workflow("w").status()).left == 0
    assert flows.leaks() == []


async def test_an_impossible_limit_fails_the_step(flows: FlowSite) -> None:
    """A step that a limiter can never admit is buried, and its handlers run."""
    flow = Workflow()
    flow.step(Noop(), after=ended(flow.step(Rated(2))))
    await flow.submit(id="w")
    (delivery,) = await flows.fetch()
    assert (delivery.state, delivery.reason) == ("dying", "limit-impossible")
    await flows.settle(delivery, "dead")
    assert await flows.run() == ["w:1"]


def test_scripts_that_end_tasks_know_workflows() -> None:
    """All but those that end only occurrences and tasks with a unique key: no step is one."""
    folder = files("nonet.stores") / "scripts"
    names = [file.name.removesuffix(".lua") for file in folder.iterdir() if file.is_file()]
    sources = {name: script(name)[0] for name in names}
    ending = {name for name, text in sources.items() if "local function finish(" in text}
    without = {name for name in ending if "end_steps = " not in sources[name]}
    assert "settle" in ending and without == {"submit", "plan", "retry_quarantined"}
