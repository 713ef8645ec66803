"""Tenants that share: a namespace, and the model of whose turn it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from hypothesis import strategies as st
from stores import beats

from nonet.operate.doctor import diagnose
from nonet.rules.findings.explanation import Explanation, explain
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.fairness import Fairness
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.submissions import Submission

STREAM = "normal:small"
STEP = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from("abcd"), st.integers(1, 6)),
    st.tuples(st.just("run"), st.integers(1, 5)),
    st.tuples(st.just("weigh"), st.sampled_from("abcd"), st.sampled_from([1, 2, 4])),
)


class Site:
    """A namespace whose tenants share a stream."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.fairness = Fairness(broker.client, "test")
        self.term = ""
        self._made = 0

    async def shares(self, weights: Mapping[str, float], streams: Iterable[str] = (STREAM,)) -> int:
        if not self.term:
            leadership = Leadership(self.broker, "test")
            self.term = await leadership.lead("leader", 3600, "{}") or ""
        left = await self.fairness.publish(self.term, streams, weights, "a test")
        assert left is not None
        return left

    async def submit(
        self, tenant: str, number: int = 1, locks: str = "", stream: str = STREAM
    ) -> list[str]:
        """Ids tell the tenant."""
        first, self._made = self._made, self._made + number
        ids = [f"{tenant}.{first + n}" for n in range(number)]
        await self.broker.submit(
            [Submission(id, "p:T", stream, b"e", locks, terms=f"tenant|{tenant}") for id in ids]
        )
        return ids

    async def explain(self, id: str) -> Explanation:
        return explain(await TaskFacts(self.broker.client, "test").read(id))

    async def fetch(self, number: int, worker: str = "small-a") -> list[Delivery]:
        return (await self.broker.fetch(worker, "small", number))[0]

    async def run(self, number: int) -> list[str]:
        """Fetch and settle; the tenants of what began, in that order."""
        fetched = await self.fetch(number)
        await asyncio.gather(*(self.broker.settle(item, "done") for item in fetched))
        return tenants(fetched)


async def beat(broker: Broker, worker: str) -> None:
    """A worker lives."""
    about = '{"size": "small", "concurrency": 4}'
    await asyncio.to_thread(beats.beat, broker.url, worker=worker, info=about)


def tenants(fetched: Sequence[Delivery]) -> list[str]:
    return [item.id.partition(".")[0] for item in fetched]


class Model:
    """Start-time fair queueing with exact numbers: one list for each tenant."""

    def __init__(self) -> None:
        self.weights: dict[str, Fraction] = {}
        self.waiting: dict[str, deque[str]] = {}
        self.times: dict[str, Fraction] = {}
        self.pace = Fraction(0)

    def submit(self, tenant: str, ids: Iterable[str]) -> None:
        if not self.waiting.get(tenant):
            self.waiting[tenant] = deque()
            self.times[tenant] = max(self.pace, self.times.get(tenant, self.pace))
        self.waiting[tenant] += ids

    def next(self) -> str | None:
        backlog = [(self.times[name], name) for name, ids in self.waiting.items() if ids]
        if not backlog:
            return None
        self.pace, name = min(backlog)
        self.times[name] += 1 / self.weights.get(name, Fraction(1))
        return self.waiting[name].popleft()


async def problems(broker: Broker) -> list[tuple[str, str]]:
    """What the doctor says, each with the kind of thing."""
    found = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=0)
    return [(item.kind, item.problem) for item in found.problems]
