"""Six namespaces on three masters with replicas, served by one fleet: faults of one stay there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from acceptance.contention import held_twice
from acceptance.namespace_tasks import Exclusive
from acceptance.site import NAMESPACE, Site
from daemons import until
from faults.conftest import MakeRig
from faults.rig import ANNOUNCING
from faults.test_topologies import CORE
from redis.crc import key_slot
from topologies.cluster import Cluster

from nonet import Nonet, NonetError
from nonet.base.keys import prefix

pytestmark = pytest.mark.soak

# How often each tenant submits a task (s), and for how long a phase lasts.
EVERY, PHASE = 0.1, 30.0
# The others may wait so many times as long as before, at the 99th percentile, and a moment.
BOUND, MOMENT = 1.5, 0.003
MASTERS = 3


def spread(cluster: Cluster) -> list[str]:
    """The names of six namespaces, by master in turn; the first is that of the site."""
    share = -(-16384 // MASTERS)

    def node(name: str) -> int:
        return (key_slot(prefix(name).encode()) - cluster.slot // share * share) // share % MASTERS

    found: dict[int, list[str]] = defaultdict(list)
    for name in (NAMESPACE, *(f"n{number}" for number in range(100))):
        if len(found[node(name)]) < 2:
            found[node(name)].append(name)
    return [name for pair in zip(*(found[n] for n in range(MASTERS)), strict=True) for name in pair]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Site, Cluster, list[str]]]:
    with Cluster(NAMESPACE, has_replicas=True) as cluster:
        for master in cluster.nodes[:MASTERS]:
            # Until a replica is in step each grant of a lock waits, and may outlast its lease.
            with master.client() as client:
                assert client.wait(1, 20_000) >= 1
        names = spread(cluster)
        site = Site(cluster, tmp_path)  # type: ignore[arg-type]  # as the rig has one
        site.settings |= {
            "NONET_NAMESPACES": ",".join(names),
            "NONET_TASKS": "acceptance.namespace_tasks",
            "NONET_CONFIRM_REPLICAS": "1",
        }
        routes = ", ".join(f'{tenant_of(name)}: "{name}"' for name in names)
        text = (
            f'vos: [{", ".join(map(tenant_of, names))}]\nnamespaces: {{{routes}, "*": {NAMESPACE}}}'
        )
        site.scheduler("--config", site.write("routes.yaml", text))
        for _ in range(2):
            site.worker("--concurrency", "30")
        yield site, cluster, names
        site.close()


def tenant_of(namespace: str) -> str:
    return f"vo_{namespace}"


class Load:
    """Each tenant submits a task at a time, and tries again until it is accepted."""

    def __init__(self, site: Site, names: Sequence[str]) -> None:
        self._site, self._names = site, names
        self.sent: dict[str, tuple[str, float]] = {}
        self.accepted: set[str] = set()
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._submit(name)) for name in self._names]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over.set()
        await asyncio.gather(*self._tasks)

    async def _submit(self, name: str) -> None:
        async with self._site.app(namespace=name, confirm_replicas=1) as app:
            number = 0
            while not self._is_over.is_set():
                number += 1
                began = time.time()
                await self._until_accepted(app, name, f"{name}-{number}", number)
                await asyncio.sleep(max(0.0, began + EVERY - time.time()))

    async def _until_accepted(self, app: Nonet, name: str, id: str, number: int) -> None:
        self.sent[id] = name, time.time()
        while id not in self.accepted:
            with suppress(NonetError):
                await app.submit(Exclusive(tenant_of(name), number), id=id)
                self.accepted.add(id)

    def waits(self, site: Site, since: float, until: float) -> Mapping[str, list[float]]:
        """How long the tasks submitted in a time waited for their begin, by namespace."""
        begun = {event.id: event.at for event in reversed(site.journal("held"))}
        found: dict[str, list[float]] = defaultdict(list)
        for id, (name, at) in self.sent.items():
            if since <= at < until and id in begun:
                found[name].append(begun[id] - at)
        return found


def p99(waits: Sequence[float]) -> float:
    return sorted(waits)[int(0.99 * len(waits))]


async def test_a_lost_master_costs_its_tenants_only(
    fleet: tuple[Site, Cluster, list[str]],
) -> None:
    """One is killed for 30 s: the others' p99 stays, and nothing that was confirmed is lost."""
    site, cluster, names = fleet
    async with Load(site, names) as load:
        await asyncio.sleep(3)
        began = time.time()
        await asyncio.sleep(PHASE)
        killed = time.time()
        cluster.nodes[0].kill()
        await asyncio.sleep(PHASE)
        back = time.time()
        cluster.nodes[0].start()
        await asyncio.sleep(PHASE / 3)
    lost_ones = names[::MASTERS]
    before, during = load.waits(site, began, killed), load.waits(site, killed, back)
    others = [name for name in names if name not in lost_ones]
    was = p99([wait for name in others for wait in before[name]])
    now = p99([wait for name in others for wait in during[name]])
    hit = max(wait for name in lost_ones for wait in during[name])
    print(
        f"\nothers' p99 {1000 * was:.1f} ms before, {1000 * now:.1f} ms while a master was lost; "
        f"its tenants waited {hit:.1f} s at most; {len(load.accepted)} tasks"
    )
    await until(
        lambda: load.accepted <= {event.id for event in site.journal("freed")},
        "all that was accepted has run",
        seconds=60,
    )
    assert now <= BOUND * was + MOMENT
    assert len(during[others[0]]) > 0.9 * PHASE / EVERY


async def test_a_tenant_moves_between_masters(fleet: tuple[Site, Cluster, list[str]]) -> None:
    """Under load, while a worker is killed: each runs, none twice but for the kill."""
    site, _, names = fleet
    tenant, to = tenant_of(names[0]), names[2]
    async with Load(site, names) as load:
        await asyncio.sleep(5)
        move = ("task-run", "tenants", "move", tenant, "--to", to, "--with-delayed")
        assert await asyncio.to_thread(site.program(*move).wait) == 0
        await asyncio.sleep(10)
    await until(
        lambda: load.accepted <= {event.id for event in site.journal("freed")},
        "all that was accepted has run",
        seconds=60,
    )
    runs = Counter(event.id for event in site.journal("held"))
    again = {id for id, number in runs.items() if number > 1}
    assert not again, [event for event in site.journal() if event.id in again]
    assert set(runs) == load.accepted
    assert held_twice(site) == []
    with site.redis as client:
        assert client.hget(f"{{{to}}}:routes", f"moved:{tenant}") == to


@pytest.mark.parametrize("scenario", CORE)
async def test_same_faults(make_rig: MakeRig, scenario: str) -> None:
    """What holds for daemons of one namespace holds for those of six."""
    fault, scale = CORE[scenario]
    cluster = Cluster(NAMESPACE, *ANNOUNCING)
    rig = make_rig(other=cluster)
    rig.site.settings |= {
        "NONET_NAMESPACES": ",".join(spread(cluster)),
        "NONET_CONFIG": rig.site.write("routes.yaml", f'namespaces: {{"*": {NAMESPACE}}}'),
    }
    await fault(rig, scale)
