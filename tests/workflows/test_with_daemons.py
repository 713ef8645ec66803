"""Random workflows that real daemons run under kills and lost replies, cancelled and resumed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from acceptance.contention import scales
from acceptance.site import PREFIX, Event, Site, no_variables
from daemons import Daemon
from faults.proxy import Proxy
from servers import RedisServer
from waits import WAIT_SECONDS, until, wait_until
from workflows.daemon_tasks import Play
from workflows.flow_model import Edge, Model
from workflows.flow_site import ends

from nonet import ConflictError, NonetError, Workflow
from nonet.stores.namespace.sandbox import leaked_keys
from nonet.tasks.runs import WorkflowRun
from nonet.tasks.steps import Edge as StepEdge

pytestmark = pytest.mark.server

MOST_STEPS, MOST_ROOTS, MOST_ADDED, MOST_DEPTH = 40, 14, 4, 2
LETTERS = "sssssfa"
KINDS = ["good"] * 7 + ["flaky", "bad", "mended"]
OWNED = ("[tblefmnjks]:*", "edges", "workflows:work", "lock:*", "queue:*")
Spec = tuple[list[tuple[str, int]], str, list[Any]]
"""A step: its edges from steps before it, its kind, and what it adds."""


@dataclass
class Rig:
    """Daemons that reach their own Redis through a proxy."""

    site: Site
    proxy: Proxy
    redis: redis.Redis
    workers: list[Daemon]
    scheduler: Daemon

    def kill_one(self, chosen: random.Random) -> None:
        """Kill a worker when all are ready, and start another one."""
        wait_until(self._are_ready, "the workers are ready")
        place = chosen.randrange(len(self.workers))
        self.workers[place].kill()
        self.workers[place] = self.site.worker("--concurrency", "10", wait=False)

    def _are_ready(self) -> bool:
        """Start a worker again, as a supervisor does, if it has ended because it lost a reply."""
        ready = [" ready: " in worker.log for worker in self.workers]
        for place, worker in enumerate(self.workers):
            if not (ready[place] or worker.alive):
                self.workers[place] = self.site.worker("--concurrency", "10", wait=False)
        return all(ready) and all(worker.alive for worker in self.workers)


@pytest.fixture(autouse=True, scope="module")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Two workers and a scheduler."""
    with RedisServer() as server, Proxy(server.port) as proxy:
        site = Site(server, tmp_path)
        site.settings |= {"NONET_REDIS_URL": proxy.url, "NONET_TASKS": "workflows.daemon_tasks"}
        started = [site.worker("--concurrency", "10", wait=False) for _ in range(2)]
        with server.client(encoding_errors="replace") as client:
            yield Rig(site, proxy, client, started, site.scheduler(wait=False))
        site.close()


def steps(chosen: random.Random, most: int, depth: int, budget: list[int]) -> list[Spec]:
    """A few steps, each after some of those before it."""
    made: list[Spec] = []
    for n in range(min(chosen.randint(1, most), budget[0])):
        budget[0] -= 1
        before = chosen.sample(range(n), min(n, chosen.choice([0, 1, 1, 2, 3])))
        edges = [(chosen.choice(LETTERS), each) for each in before]
        adds = []
        if depth and chosen.random() < 0.2:
            adds = steps(chosen, MOST_ADDED, depth - 1, budget)
        made.append((edges, chosen.choice(KINDS), adds))
    return made


@dataclass
class Played:
    """One random workflow.

    Attributes:
        is_cancelled: it was cancelled in the middle.
    """

    specs: Sequence[Spec]
    gate: str
    run: WorkflowRun
    is_cancelled: bool = False
    by_place: dict[str, Spec] = field(default_factory=dict)
    model: Model = field(default_factory=Model)

    def begin(self) -> None:
        """Tell the model, and let it run to its end."""
        self.model.add(self._placed("", self.specs))
        self.go_on(is_open=False)

    def go_on(self, *, is_open: bool) -> None:
        """Let all steps of the model end that can."""
        while ready := self.model.ready():
            for place in ready:
                _, kind, adds = self.by_place[place]
                is_bad = kind == "bad" or (kind == "mended" and not is_open)
                added = () if is_bad else self._placed(f"{place}.", adds)
                self.model.end(place, "dead" if is_bad else "done", added)

    def _placed(self, above: str, specs: Sequence[Spec]) -> list[tuple[str, list[Edge]]]:
        for n, spec in enumerate(specs):
            self.by_place[f"{above}{n}"] = spec
        return [
            (f"{above}{n}", [(letter, f"{above}{each}") for letter, each in edges])
            for n, (edges, _, _) in enumerate(specs)
        ]

    def before(self, place: str) -> list[str]:
        """All steps that must have ended when this one starts, with those that they added.

        Not those that ran again: a step after an edge that always leads on may have run before.
        """
        nodes = self.model.nodes
        direct = [one for _, one in nodes[place].after if nodes[one].ends == 1]
        return [
            one
            for one, node in nodes.items()
            if node.ends == 1 and any(f"{one}.".startswith(f"{each}.") for each in direct)
        ]


async def submit(specs: Sequence[Spec], gate: str, id: str) -> Played:
    """Submit a random workflow, until it is accepted."""
    flow = Workflow(id)
    for edges, kind, adds in specs:
        after = [StepEdge(flow.steps[number], letter) for letter, number in edges]
        flow.step(Play(kind, adds, gate), after=after)
    return Played(specs, gate, await accepted(lambda: flow.submit(id=id)))


async def accepted(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call until Redis answers."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await call()
            except ConflictError:
                return None
            except NonetError:
                await asyncio.sleep(0.1)


async def one_round(rig: Rig, seed: int) -> None:
    """Some workflows side by side; one is cancelled, workers die, replies are lost."""
    chosen = random.Random(seed)
    plays = []
    for number in range(4):
        specs = steps(chosen, MOST_ROOTS, MOST_DEPTH, [MOST_STEPS])
        plays.append(await submit(specs, rig.site.gate(), f"flow-{seed}-{number}"))
    plays[0].is_cancelled = True
    for number in range(chosen.randint(1, 3)):
        rig.proxy.drop_reply(chosen.randint(1, 60))
        await until(lambda: runs(rig.site) or not rig.site.live(), "steps run, or all have ended")
        await asyncio.to_thread(rig.kill_one, chosen)
        if number == 0:
            await accepted(lambda: plays[0].run.cancel("in the middle"))
        await asyncio.sleep(chosen.uniform(0, 0.3))  # the next fault comes at any time
    for play in plays:
        play.begin()
        await ended(play)
    for play in plays:
        rig.site.open(play.gate)
        if play.model.state == "failed" and not play.is_cancelled:
            await accepted(play.run.resume)
            play.model.resume()
            play.go_on(is_open=True)
            await ended(play)
    await judge(rig, plays)


def runs(site: Site) -> bool:
    """Whether a step has started and not ended, or has ended a moment ago."""
    last = [event.event for event in site.journal()][-5:]
    return last.count("start") > last.count("end")


async def ended(play: Played) -> None:
    """Wait until a workflow has ended."""
    await accepted(lambda: play.run.wait(timeout=WAIT_SECONDS))


async def judge(rig: Rig, plays: Sequence[Played]) -> None:
    """Hold what has happened against the models."""
    ended_often = ends(rig.redis, PREFIX)
    journal = rig.site.journal()
    for play in plays:
        found = {step.place: step.state for step in await accepted(play.run.steps)}
        status = await accepted(play.run.status)
        counts = {place: ended_often[f"{play.run}:{place}"] for place in found}
        if play.is_cancelled and status.state == "cancelled":
            assert set(counts.values()) == {1}, (play.run, counts)
        else:
            assert found == play.model.states(), play.run
            assert status.state == play.model.state, play.run
            assert counts == {one.place: one.ends for one in play.model.nodes.values()}, play.run
        in_order(play, journal)
    assert not rig.redis.hget(f"{PREFIX}counters", "finish:broken")


def in_order(play: Played, journal: Sequence[Event]) -> None:
    """No step has started before those before it had ended."""
    own = [event for event in journal if event.id.startswith(f"{play.run}:")]
    first: dict[str, float] = {}
    for event in own:
        if event.event == "end":
            first.setdefault(event.id.rpartition(":")[2], event.at)
    began = {event.id.rpartition(":")[2] for event in own}
    for event in own:
        place = event.id.rpartition(":")[2]
        if event.event == "start" and place in play.model.nodes:
            for one in play.before(place):
                early = one in began and not first.get(one, float("inf")) <= event.at
                assert not early, f"{event.id} started before {one} had ended"


@scales(range(1, 3), range(100, 110))
async def test_random_workflows_under_faults(rig: Rig, scale: Sequence[int]) -> None:
    """Every step settles once, none before its predecessors, and ends as a plain model says."""
    for worker in (*rig.workers, rig.scheduler):
        worker.wait_ready()
    async with rig.site.app():
        for seed in scale:
            await one_round(rig, seed)
        await until(lambda: not rig.site.live(), "no task lives")
        leaked = [key for pattern in OWNED for key in leaked_keys(rig.redis, PREFIX + pattern)]
        assert leaked == []
