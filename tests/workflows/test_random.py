"""Random workflows against the scripts, without daemons: each step as a plain model says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from acceptance.contention import scales
from hypothesis import HealthCheck, given, settings, strategies as st
from servers import RedisServer
from workflows.flow_model import Edge, Model
from workflows.flow_site import FlowSite, P, workflow_of

from nonet import ConflictError, Nonet
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.runs import WorkflowRun

LETTERS = "sssssffa"
MOST_STEPS = 40
ACTS = ["settle"] * 8 + ["fetch"] * 4
ACTS += ["lose", "again", "walk", "resubmit", "cancel_one", "cancel"]


@st.composite
def graphs(draw: st.DrawFn, most: int, prefix: str = "") -> list[list[Edge]]:
    """The predecessors of each step: a few of those before it."""
    number = draw(st.integers(1, most))
    graph: list[list[Edge]] = []
    for n in range(number):
        before = draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set()
        graph.append(
            [(draw(st.sampled_from(LETTERS)), f"{prefix}{each}") for each in sorted(before)]
        )
    return graph


@pytest.fixture(scope="module")
def site(redis_server: RedisServer) -> Iterator[tuple[asyncio.Runner, FlowSite]]:
    """One application for all examples."""
    with asyncio.Runner() as runner, redis_server.client(encoding_errors="replace") as client:
        app = Nonet.from_settings(
            redis_url=redis_server.url, namespace="test", tasks=("workflows.flow_tasks",)
        )
        runner.run(app.__aenter__())
        yield runner, FlowSite(app, client)
        runner.run(app.__aexit__(None, None, None))


@dataclass
class Play:
    """One random history of a workflow."""

    site: FlowSite
    draw: Any
    model: Model = field(default_factory=Model)
    held: list[Delivery] = field(default_factory=list)
    past: list[tuple[Delivery, str]] = field(default_factory=list)
    run: WorkflowRun = field(init=False)
    cancels: int = 0

    async def all(self) -> None:
        """Submit, let things happen, and bring it to its end."""
        self.site.redis.flushdb()
        self.site.redis.hset(
            f"{P}epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )
        graph = self.draw(graphs(12))
        self.run = await workflow_of(graph).submit(id="w")
        self.model.add((str(n), after) for n, after in enumerate(graph))
        self.compare("submit")
        for act in self.draw(st.lists(st.sampled_from(ACTS), max_size=60)):
            await getattr(self, act)()
            self.compare(act)
        for _ in range(3):
            await self.drain()
            if self.model.state != "failed":
                break
            await self.resume()
        await self.drain()
        self.finish()

    def compare(self, act: str) -> None:
        """What is in Redis is what the model says."""
        assert self.site.states("w") == self.model.states(), act
        live = {place for place, node in self.model.nodes.items() if not node.fate}
        assert self.site.redis.smembers(f"{P}f:w:live") == live, act
        assert self.site.workflow("w")["state"] == self.model.state, act
        assert self.site.redis.hget(f"{P}counters", "finish:broken") is None, act

    async def fetch(self) -> None:
        """A worker fetches; everything that may start comes in the end."""
        self.held += await self.site.fetch(self.draw(st.integers(1, 5)))
        for delivery in self.held:
            assert self.place(delivery) in self.model.ready(), delivery.id

    def place(self, delivery: Delivery) -> str:
        return delivery.id.rpartition(":")[2]

    async def settle(self) -> None:
        """A delivery ends in some way."""
        if not self.held:
            return
        delivery = self.held.pop(self.draw(st.integers(0, len(self.held) - 1)))
        outcomes = ["done"] * 6 + ["dead"] * 2 + ["retry", "back", "expired", "cancelled", "dying"]
        await self.end(delivery, self.draw(st.sampled_from(outcomes)))

    async def end(self, delivery: Delivery, outcome: str) -> None:
        place, added, graph = self.place(delivery), [], []
        room = MOST_STEPS - len(self.model.nodes)
        if outcome == "done" and room > 0 and self.draw(st.integers(0, 4)) == 0:
            graph = self.draw(graphs(min(room, 5), f"{place}."))
            added = self.site.added_by(delivery, graph)
        if outcome == "dying":
            assert await self.site.settle(delivery, "dying") == "OK"
            self.compare("dying")
            outcome = "dead"
        is_cancelled = self.site.record(delivery.id).get("cancel") is not None
        assert await self.site.settle(delivery, outcome, added) == "OK"
        self.past.append((delivery, outcome))
        if outcome in ("retry", "back"):
            if not is_cancelled:
                return
            outcome = "cancelled"
        self.model.end(place, outcome, [(f"{place}.{n}", after) for n, after in enumerate(graph)])

    async def lose(self) -> None:
        """The reply of a fetch is lost."""
        await self.site.fetch(self.draw(st.integers(1, 5)))
        await self.site.app.broker.disown("small-a1", "small", self.held)
        for delivery in self.held:
            assert self.site.record(delivery.id)["state"] == "running"

    async def again(self) -> None:
        """A worker repeats a settle: it changes nothing."""
        if self.past:
            delivery, outcome = self.draw(st.sampled_from(self.past))
            await self.site.settle(delivery, outcome)

    async def walk(self) -> None:
        """The walk over all records finds nothing to do."""
        await self.site.walk()

    async def resubmit(self) -> None:
        """The same id again, with other steps, changes nothing."""
        assert await workflow_of([[], []]).submit(id="w") == "w"

    async def cancel_one(self) -> None:
        """A user cancels a step."""
        self.cancels += 1
        live = [place for place, node in self.model.nodes.items() if not node.fate]
        if not live or self.cancels > 3:
            return
        place = self.draw(st.sampled_from(live))
        answer = await self.site.app.cancel([f"w:{place}"])
        if answer[f"w:{place}"] == "cancelled":
            self.model.cancel_step(place)

    async def cancel(self) -> None:
        """A user cancels the workflow, rarely."""
        if self.draw(st.integers(0, 3)):
            return
        if self.model.state != "running":
            with pytest.raises(ConflictError):
                await self.run.cancel()
            return
        running = {self.place(each) for each in self.held}
        await self.run.cancel("enough")
        self.model.cancel(running)

    async def resume(self) -> None:
        """Run again what failed."""
        failed = {place for place, node in self.model.nodes.items() if node.fate != "done"}
        number = await self.run.resume()
        again = self.model.resume()
        assert number == len(again), (number, again)
        assert again <= failed
        self.compare("resume")

    async def drain(self) -> None:
        """Everything that may run runs."""
        while self.model.state == "running":
            await self.site.app.broker.promote()
            self.held += await self.site.fetch()
            assert {self.place(each) for each in self.held} == set(self.model.ready())
            assert self.held, "nothing runs, and the workflow does not end"
            while self.held:
                delivery = self.held.pop()
                good = self.draw(st.integers(0, 3))
                await self.end(delivery, "done" if good else "dead")
                self.compare("drain")

    def finish(self) -> None:
        """Every step has ended once, or once in each run, and nothing is left behind."""
        expected = {f"w:{place}": node.ends for place, node in self.model.nodes.items()}
        assert self.site.ends() == expected
        assert self.site.leaks() == []


@scales(12, 400)
def test_random_workflows_do_what_the_model_says(
    site: tuple[asyncio.Runner, FlowSite], scale: int
) -> None:
    """Steps start, end, fail, add steps, are cancelled and resumed exactly as in plain Python."""
    runner, flows = site

    @settings(
        max_examples=scale,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        deadline=None,
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        runner.run(Play(flows, data.draw).all())

    check()
