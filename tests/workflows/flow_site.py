"""`FlowSite`: workflows on a real Redis without daemons; the test plays the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import records
import redis
from workflows.flow_tasks import Noop

from nonet import Nonet, Workflow
from nonet.base.keys import prefix
from nonet.stores.namespace.history import STATES
from nonet.stores.namespace.sandbox import leaked_keys
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.execution import TaskContext
from nonet.tasks.runs import WorkflowRun
from nonet.tasks.steps import Edge, Step

P = prefix("test")
WORKER = "small-a1"
Edges = Sequence[tuple[str, str]]
Graph = str | Sequence[Edges]
"""The edges before each step; as a text: ``- | s0 | f0 a1``."""


def ends(client: redis.Redis, keys: str) -> Counter[str]:
    """How often each task has ended, by the history, in which some lines are short."""
    lines = [line for name in STATES for line in client.lrange(f"{keys}ended:{name}", 0, -1)]
    columns = [line.split("\t") for line in lines]
    return Counter(some[0] if len(some) == 3 else some[1] for some in columns)


class FlowSite:
    """The open application of a test, and what is in its Redis.

    Attributes:
        redis: a synchronous client.
    """

    def __init__(self, app: Nonet, client: redis.Redis) -> None:
        self.app, self.redis = app, client

    async def fetch(self, number: int = 100) -> list[Delivery]:
        """Fetch as a worker would."""
        found, _ = await self.app.broker.fetch(WORKER, "small", number, room=number, burials=number)
        return found

    async def settle(
        self, delivery: Delivery, outcome: str = "done", added: Sequence[Any] = (), **options: Any
    ) -> str:
        """Settle as a worker would; `added`: submissions of `added_by`."""
        return await self.app.broker.settle(
            delivery, outcome, b"document", submissions=added, **options
        )

    def added_by(self, delivery: Delivery, graph: Graph = "-") -> list[Any]:
        """What a step submits that adds these steps."""
        context = TaskContext(delivery.id, "", 1, 1, {})
        context.workflow = delivery.id.rpartition(":")[0]
        envelopes = self.app.client.envelopes
        context.submit_with(
            lambda task, options, is_step=False: envelopes.prepare(task, options, is_step=is_step)
        )
        made: list[Step[Any]] = []
        for after in parsed(graph):
            by_place = {step.place: step for step in made}
            edges = [Edge(by_place[place], letter) for letter, place in after]
            made.append(context.add_step(Noop(), after=edges))
        return list(context.to_submit)

    async def run(self, fails: str = "") -> list[str]:
        """Run all steps; these places fail. Returns the ids in their order."""
        order: list[str] = []
        while found := await self.fetch():
            for delivery in found:
                order.append(delivery.id)
                place = delivery.id.rpartition(":")[2]
                await self.settle(delivery, "dead" if place in fails.split() else "done")
        return order

    async def walk(self) -> None:
        """Look at all records once."""
        while (await self.app.broker.mend(timedelta(0)))[1]:
            pass

    def workflow(self, id: str) -> dict[str, str]:
        """The fields of a workflow."""
        found: dict[str, str] = self.redis.hgetall(f"{P}f:{id}")
        return found

    def record(self, id: str) -> dict[str, str]:
        """The record of a task."""
        return records.paired(records.hgetall(self.redis, f"{P}t:{id}"))

    def states(self, workflow: str) -> dict[str, str]:
        """The state of each step: waiting, ready, or how its task has ended; by place."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hkeys(f"{P}f:{workflow}:graph").hgetall(f"{P}f:{workflow}:results")
            places, results = pipe.execute()
            for place in places:
                records.hmget(pipe, f"{P}t:{workflow}:{place}", "state", "blocked")
            answers = pipe.execute()
        found = {}
        for place, (state, blocked) in zip(places, answers, strict=True):
            ended = results.get(place, "").partition("|")[0]
            assert not (state and ended), f"{place} has ended as {ended} and is {state}"
            assert state or ended, f"{place} is gone"
            found[place] = ended or ("waiting" if blocked else "ready")
        return found

    def ends(self) -> Counter[str]:
        """How often each task has ended, by the history."""
        return ends(self.redis, P)

    def keys(self, pattern: str = "*") -> list[str]:
        """The names of keys, sorted, without their prefix."""
        return sorted(key.removeprefix(P) for key in self.redis.scan_iter(P + pattern))

    def leaks(self) -> list[str]:
        """Keys that neither expire nor have an owner, when no task lives."""
        return leaked_keys(self.redis)


def parsed(graph: Graph) -> Sequence[Edges]:
    """The edges before each step: letter, and place of the predecessor."""
    if not isinstance(graph, str):
        return graph
    return [
        [(edge[0], edge[1:]) for edge in step.split() if edge != "-"] for step in graph.split("|")
    ]


def workflow_of(graph: Graph) -> Workflow:
    """A workflow with these edges."""
    made = Workflow("random")
    for after in parsed(graph):
        made.step(Noop(), after=[Edge(made.steps[int(place)], letter) for letter, place in after])
    return made


async def submitted(graph: Graph, id: str = "w") -> WorkflowRun:
    """Submit `workflow_of` these edges."""
    return await workflow_of(graph).submit(id=id)


async def walk_later(flows: FlowSite) -> None:
    """Walk, and again when what was missing has been so for three leases."""
    for _ in range(2):
        await flows.walk()
        for key in flows.keys("[tf]:*"):
            if flows.redis.type(P + key) == "hash" and flows.redis.hexists(P + key, "missing"):
                flows.redis.hset(P + key, "missing", 1)
            elif key.startswith("t:") and records.hget(flows.redis, P + key, "missing"):
                records.hset(flows.redis, P + key, "missing", 1)
    await flows.walk()
