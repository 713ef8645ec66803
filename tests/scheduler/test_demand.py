"""What the leader publishes for autoscalers."""

from __future__ import annotations

import pytest
from stores.namespace.test_demand import demands as demands, register

from nonet.scheduler.demand import DemandLoop
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import DeposedError, Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission


def loop(demands: Demands, broker: Broker, **configured: int) -> DemandLoop:
    """A loop that assumes one slot a worker, unless there is better knowledge."""
    slots = dict.fromkeys(("small", "medium", "large"), 1)
    events = Events(broker.client, "test")
    return DemandLoop(demands, events, {}, slots, 60, configured_slots=configured)


async def test_each_size_needs_workers_by_their_slots(broker: Broker, demands: Demands) -> None:
    """Configured slots count first, then those of the last worker, which are remembered."""
    term = await Leadership(broker, "test").lead("leader", 3600, "{}") or ""
    await broker.submit([Submission(f"{n}", "p:T", "normal:small", b"e") for n in range(12)])
    await loop(demands, broker).tick(term)
    assert await demands.published() == {"small": 12, "medium": 0, "large": 0}
    await register(broker, slots=4)
    await loop(demands, broker).tick(term)
    await broker.client.delete("{test}:workers")
    for _ in range(2):
        await loop(demands, broker).tick(term)
        assert (await demands.published())["small"] == 3
    await loop(demands, broker, small=6).tick(term)
    assert (await demands.published())["small"] == 2


async def test_a_deposed_leader_publishes_nothing(broker: Broker, demands: Demands) -> None:
    """It leads no longer, and the numbers of its successor stay."""
    term = await Leadership(broker, "test").lead("leader", 3600, "{}") or ""
    assert await demands.publish(term, {"small": 3})
    with pytest.raises(DeposedError):
        await loop(demands, broker).tick("0")
    assert await demands.published() == {"small": 3}
