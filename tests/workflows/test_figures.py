"""What workflows cost next to the same tasks without edges, in figures: `make soak` prints them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from daemons import Daemon
from workflows import flow_tasks
from workflows.flow_tasks import Link, Noop

from nonet import Nonet, Workflow, chain, group

pytestmark = pytest.mark.soak

_CHAIN, _FAN, _ROUNDS = 1000, 10_000, 5
Work = Callable[[Nonet], Awaitable[None]]


@pytest.fixture
async def app(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    """An open application, with a worker and a scheduler."""
    environment = {
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path),
        "NONET_TASKS": flow_tasks.__name__,
    }
    worker = Daemon("task-worker", "--size", "small", environment=environment, log=tmp_path / "w")
    scheduler = Daemon("task-scheduler", environment=environment, log=tmp_path / "s")
    settings = {"redis_url": redis_url, "state_dir": tmp_path, "tasks": (flow_tasks.__name__,)}
    with worker, scheduler:
        worker.wait_ready()
        scheduler.wait_ready()
        async with Nonet.from_settings(**settings) as opened:
            yield opened


def workflow(make: Callable[[], Workflow]) -> Work:
    """Submit a workflow and wait for its end."""

    async def work(app: Nonet) -> None:
        run = await make().submit()
        assert (await run.wait(timeout=300)).state == "done"

    return work


async def plain(app: Nonet) -> None:
    """Submit as many tasks without edges, and wait for their end."""
    await app.submit_many(Noop() for _ in range(_FAN))
    await no_task_is_left(app)


async def linked(app: Nonet) -> None:
    """Let each task submit the next one when it is done."""
    await Link(_CHAIN, "chain").schedule()
    await no_task_is_left(app)


async def no_task_is_left(app: Nonet) -> None:
    """Look every few milliseconds."""
    names = [f"flow_tasks:{cls.__name__}" for cls in (Noop, Link)]
    async with asyncio.timeout(300):
        while True:
            if not any([await app.client.active_tasks(name) for name in names]):
                return
            await asyncio.sleep(0.005)


async def costs(app: Nonet, works: dict[str, Work]) -> dict[str, tuple[float, float]]:
    """The median seconds of each work, and of scripts in Redis; they take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(_ROUNDS):
        for name, work in works.items():
            before, began = await script_seconds(app), time.perf_counter()
            await work(app)
            seconds = time.perf_counter() - began
            found[name].append((seconds, await script_seconds(app) - before))
    for name, rounds in found.items():
        print(name, [f"{one:.2f} s, {redis:.2f} s in Redis" for one, redis in rounds])
    return {
        name: (statistics.median(one for one, _ in rounds), statistics.median(s for _, s in rounds))
        for name, rounds in found.items()
    }


async def script_seconds(app: Nonet) -> float:
    """Time that Redis has spent in scripts."""
    stats = await app.broker.client.info("commandstats")
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stats.get(name, {"usec": 0})["usec"] for name in names) / 1e6


async def test_a_chain_costs_as_much_as_tasks_that_follow_each_other(app: Nonet) -> None:
    """At most 1.4 times the time of the same tasks by `after_commit`."""
    made = workflow(lambda: chain(*(Noop() for _ in range(_CHAIN))))
    found = await costs(app, {"chain": made, "after_commit": linked})
    assert found["chain"][0] <= 1.4 * found["after_commit"][0]


async def test_a_fan_costs_as_much_as_tasks_without_edges(app: Nonet) -> None:
    """An edge takes Redis at most the time of a task.

    The whole takes up to 2.8 times the time, as no step starts before all are submitted.
    """
    made = workflow(lambda: chain(Noop(), group(*(Noop() for _ in range(_FAN))), Noop()))
    found = await costs(app, {"fan": made, "plain": plain})
    edge = (found["fan"][1] - found["plain"][1]) / (2 * _FAN)
    task = found["plain"][1] / _FAN
    print(f"in Redis {edge * 1e6:.1f} µs an edge, {task * 1e6:.1f} µs a task")
    assert found["fan"][0] <= 2.8 * found["plain"][0]
    assert edge <= task
