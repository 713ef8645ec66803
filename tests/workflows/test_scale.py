"""Wide and long workflows: no script takes long, and none recurses."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from workflows.flow_site import FlowSite, P
from workflows.flow_tasks import Noop

from nonet import Workflow, failed
from nonet.stores.connection.redis import Scripts

pytestmark = pytest.mark.soak

# On a machine on which it takes 2.2 ms to submit 500 tasks; others may use this one, too.
MOST_US, SUBMITS_500_US = 10_000, 2_200
WIDE, LONG = 10_000, 2_000


async def run_all(flows: FlowSite, *, fails: bool = False) -> int:
    """A worker with 100 slots and a promoter until nothing is left; how many steps ran."""
    number = 0
    while True:
        await flows.app.broker.promote()
        found = await flows.fetch(100)
        if not found and not flows.redis.exists(f"{P}edges"):
            return number
        number += len(found)
        outcome = "dead" if fails else "done"
        await asyncio.gather(
            *(flows.app.broker.settle(each, outcome, b"document") for each in found)
        )


class Costs:
    """What each call of a script costs Redis (µs of its CPU)."""

    def __init__(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worst: dict[str, int] = {}
        self.most = MOST_US
        self._client, self._lock = client, asyncio.Lock()
        plain, costs = Scripts._repeat, self

        async def timed(self: Scripts, call: Any, name: str, args: Any) -> Any:
            async with costs._lock:
                before = costs._used()
                answer = await plain(self, call, name, args)
                costs.worst[name] = max(costs.worst.get(name, 0), costs._used() - before)
            return answer

        monkeypatch.setattr(Scripts, "_repeat", timed)

    def _used(self) -> int:
        found = self._client.info("cpu")
        names = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
        return round(sum(float(found[name]) for name in names) * 1e6)

    async def compare(self, flows: FlowSite) -> None:
        """See how fast the machine is just now."""
        found = []
        for _ in range(5):
            self.worst.clear()
            await flows.app.submit_many([Noop() for _ in range(500)])
            found.append(self.worst["submit"])
        self.most = round(MOST_US * max(1, sorted(found)[2] / SUBMITS_500_US))
        flows.redis.flushdb()
        flows.redis.hset(f"{P}epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        self.worst.clear()

    def too_long(self) -> dict[str, int]:
        """Scripts of which one call took too long."""
        print(f"\nmost µs of a call, of {self.most}: {self.worst}")
        return {name: us for name, us in self.worst.items() if us > self.most}


@pytest.fixture
async def costs(flows: FlowSite, monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Measures all calls of the test."""
    made = Costs(flows.redis, monkeypatch)
    await made.compare(flows)
    return made


async def test_fan_out_and_in(flows: FlowSite, costs: Costs) -> None:
    """One step, ten thousand at a time, one that waits for all of them."""
    flow = Workflow()
    first = flow.step(Noop())
    wide = [flow.step(Noop(), after=first) for _ in range(WIDE)]
    flow.step(Noop(), after=wide)
    began = time.monotonic()
    run = await flow.submit(id="w")
    submitted = time.monotonic()
    assert await run_all(flows) == WIDE + 2
    print(f"submitted in {submitted - began:.1f} s, ran in {time.monotonic() - submitted:.1f} s")
    assert (await run.status()).state == "done"
    assert costs.too_long() == {}
    assert flows.leaks() == []


async def test_a_long_chain_that_cannot_run(flows: FlowSite, costs: Costs) -> None:
    """Two thousand steps one behind the other end without a recursion; so do they once more."""
    flow = Workflow()
    step = flow.step(Noop())
    for _ in range(LONG):
        step = flow.step(Noop(), after=step)
    flow.step(Noop(), after=failed(step))
    run = await flow.submit(id="w")
    (delivery,) = await flows.fetch()
    await flows.settle(delivery, "dead")
    assert await run_all(flows) == 1
    assert (await run.status()).state == "done"
    assert sum(state == "cancelled" for state in flows.states("w").values()) == LONG
    assert costs.too_long() == {}


async def test_a_wide_workflow_is_resumed_and_cancelled(flows: FlowSite, costs: Costs) -> None:
    """Ten thousand failed steps run again; then all of them are cancelled."""
    flow = Workflow()
    wide = [flow.step(Noop()) for _ in range(WIDE)]
    flow.step(Noop(), after=wide)
    run = await flow.submit(id="w")
    assert await run_all(flows, fails=True) == WIDE
    assert await run.resume() == WIDE + 1
    assert (await run.status()).left == WIDE + 1
    await run.cancel()
    assert (await run.status()).state == "cancelled"
    assert await run_all(flows) == 0
    assert costs.too_long() == {}
    assert flows.leaks() == []


async def test_a_walk_over_a_wide_workflow(flows: FlowSite, costs: Costs) -> None:
    """A page of the walk takes as long with blocked steps as with others."""
    flow = Workflow()
    first = flow.step(Noop())
    wide = [flow.step(Noop(), after=first) for _ in range(WIDE)]
    flow.step(Noop(), after=wide)
    await flow.submit(id="w")
    await flows.walk()
    assert costs.too_long() == {}
