"""`FlowSite`: workflows on a real Redis without daemons; the test plays the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis
from workflows.flow_tasks import Noop

from nonet import BaseTask, Nonet, Workflow
from nonet.base.keys import prefix
from nonet.stores.namespace.sandbox import leaked_keys
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.execution import TaskContext
from nonet.tasks.runs import WorkflowRun
from nonet.tasks.workflows import Edge, Step

P = prefix("test")
WORKER = "small-a1"
Edges = Sequence[tuple[str, str]]


def ends(client: redis.Redis, keys: str) -> Counter[str]:
    """How often each task has ended, by the history, in which some lines are short."""
    lines = [
        line for name in ("done", "failed") for line in client.lrange(f"{keys}ended:{name}", 0, -1)
    ]
    columns = [line.split("\t") for line in lines]
    return Counter(some[0] if len(some) == 3 else some[1] for some in columns)


class FlowSite:
    """The open application of a test, and what is in its Redis.

    Attributes:
        redis: a synchronous client.
    """

    def __init__(self, app: Nonet, client: redis.Redis) -> None:
        self.app, self.redis = app, client

    async def fetch(self, number: int = 100, worker: str = WORKER) -> list[Delivery]:
        """Fetch as a worker would."""
        found, _ = await self.app.broker.fetch(worker, "small", number, room=number, graves=number)
        return found

    async def settle(
        self, delivery: Delivery, outcome: str = "done", added: Sequence[Any] = (), **options: Any
    ) -> str:
        """Settle as a worker would.

        Args:
            added: submissions of `added_by`.
        """
        return await self.app.broker.settle(
            delivery, outcome, b"document", submissions=added, **options
        )

    def added_by(self, delivery: Delivery, afters: Sequence[Edges], task: BaseTask) -> list[Any]:
        """What a step submits that adds steps, each with edges from those before it."""
        context = TaskContext(delivery.id, "", 1, 1, {})
        context.workflow = delivery.id.rpartition(":")[0]
        envelopes = self.app.client.envelopes
        context.submit_with(
            lambda task, options, is_step=False: envelopes.prepare(task, options, is_step=is_step)
        )
        made: list[Step[Any]] = []
        for after in afters:
            by_place = {step.place: step for step in made}
            edges = [Edge(by_place[place], letter) for letter, place in after]
            made.append(context.add_step(task, after=edges))
        return list(context.to_submit)

    async def run(self, *, most: int = 1000, fails: Sequence[str] = ()) -> list[str]:
        """Fetch and settle until nothing is left to fetch; the ids in their order.

        Args:
            fails: places of steps that fail.
        """
        order: list[str] = []
        while len(order) < most and (found := await self.fetch()):
            for delivery in found:
                order.append(delivery.id)
                place = delivery.id.rpartition(":")[2]
                await self.settle(delivery, "dead" if place in fails else "done")
        return order

    async def walk(self) -> None:
        """Look at all records once."""
        from datetime import timedelta

        while (await self.app.broker.mend(timedelta(0)))[1]:
            pass

    def workflow(self, id: str) -> dict[str, str]:
        """The fields of a workflow."""
        found: dict[str, str] = self.redis.hgetall(f"{P}f:{id}")
        return found

    def record(self, id: str) -> dict[str, str]:
        """The record of a task."""
        found: dict[str, str] = self.redis.hgetall(f"{P}t:{id}")
        return found

    def states(self, workflow: str) -> dict[str, str]:
        """The state of each step: waiting, ready, or how its task has ended; by place."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hkeys(f"{P}f:{workflow}:graph").hgetall(f"{P}f:{workflow}:results")
            places, results = pipe.execute()
            for place in places:
                pipe.hmget(f"{P}t:{workflow}:{place}", "state", "blocked")
            records = dict(zip(places, pipe.execute(), strict=True))
        found = {}
        for place, (state, blocked) in records.items():
            ended = results.get(place, "").partition("|")[0]
            assert not (state and ended), f"{place} has ended as {ended} and is {state}"
            assert state or ended, f"{place} is gone"
            found[place] = ended or ("waiting" if blocked else "ready")
        return found

    def end_of(self, workflow: str, place: str) -> str:
        """How a step has ended; empty: it has not."""
        value: str = self.redis.hget(f"{P}f:{workflow}:results", place) or ""
        return value.partition("|")[0]

    def ends(self) -> Counter[str]:
        """How often each task has ended, by the history."""
        return ends(self.redis, P)

    def keys(self, pattern: str = "*") -> list[str]:
        """The names of keys, sorted, without their prefix."""
        return sorted(key.removeprefix(P) for key in self.redis.scan_iter(P + pattern))

    def leaks(self) -> list[str]:
        """Keys that neither expire nor have an owner, when no task lives."""
        return leaked_keys(self.redis)


def workflow_of(afters: Sequence[Edges], task: BaseTask | None = None) -> Workflow:
    """A workflow whose steps have these predecessors, each a letter and a place."""
    made = Workflow("random")
    for after in afters:
        edges = [Edge(made.steps[int(place)], letter) for letter, place in after]
        made.step(task or Noop(), after=edges)
    return made


async def submitted(afters: Sequence[Edges], id: str = "w") -> WorkflowRun:
    """Submit `workflow_of` these edges."""
    return await workflow_of(afters).submit(id=id)


async def walk_later(flows: FlowSite) -> None:
    """Walk, and again when what was missing has been so for three leases."""
    for _ in range(2):
        await flows.walk()
        for key in flows.keys("[tf]:*"):
            if flows.redis.type(P + key) == "hash" and flows.redis.hexists(P + key, "missing"):
                flows.redis.hset(P + key, "missing", 1)
    await flows.walk()
