"""What workflows cost next to the same tasks without edges, in figures: `make soak` prints them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

import pytest
from workflows.flow_tasks import Link, Noop

from nonet import Workflow, chain, group
from nonet.testing import System

pytestmark = [pytest.mark.soak, pytest.mark.server]

_CHAIN, _FAN, _ROUNDS = 1000, 10_000, 3


async def script_seconds(system: System) -> float:
    """Time that Redis has spent in scripts."""
    stats = await system.app.broker.client.info("commandstats")
    return (
        sum(stats.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("eval", "evalsha")) / 1e6
    )


async def costs(system: System, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds of some work, and of Redis in its scripts."""
    before, began = await script_seconds(system), time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    return seconds, await script_seconds(system) - before


async def ended(workflow: Workflow) -> None:
    """Run a workflow to its end."""
    run = await workflow.submit()
    assert (await run.wait(timeout=300)).state == "done"


async def all_ended(system: System, number: int) -> None:
    """Run tasks without edges to their end."""
    await system.app.submit_many(Noop() for _ in range(number))
    await system.run_until_idle(timeout=300)


async def linked(system: System) -> None:
    """Run a chain of tasks that each submit the next one when they are done."""
    await Link(_CHAIN, "chain").schedule()
    await system.run_until_idle(timeout=300)


async def medians(
    system: System, *works: Callable[[], Awaitable[None]]
) -> list[tuple[float, float]]:
    """The median costs of each work over some rounds, in which they take turns."""
    found: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(_ROUNDS):
        for work, rounds in zip(works, found, strict=True):
            rounds.append(await costs(system, work))
    return [
        (statistics.median(one[0] for one in rounds), statistics.median(one[1] for one in rounds))
        for rounds in found
    ]


async def test_a_chain_costs_as_much_as_tasks_that_follow_each_other() -> None:
    """At most 1.2 times the time of the same tasks by `after_commit`."""
    async with System(tasks=("workflows.flow_tasks",)) as system:
        steps, plain = await medians(
            system, lambda: ended(chain(*(Noop() for _ in range(_CHAIN)))), linked
        )
    print(f"chain of {_CHAIN}: {steps[0]:.2f} s; by after_commit {plain[0]:.2f} s")
    assert steps[0] <= 1.2 * plain[0]


async def test_a_fan_costs_as_much_as_tasks_without_edges() -> None:
    """At most 1.2 times the time; an edge at most half of a task in Redis; no script over 10 ms."""

    def fan() -> Workflow:
        return chain(Noop(), group(*(Noop() for _ in range(_FAN))), Noop())

    async with System(tasks=("workflows.flow_tasks",)) as system:
        client = system.app.broker.client
        await client.config_set("slowlog-log-slower-than", 10_000)
        await client.slowlog_reset()
        steps, plain = await medians(system, lambda: ended(fan()), lambda: all_ended(system, _FAN))
        slow = await client.slowlog_get(10)
    edge = (steps[1] - plain[1]) / (2 * _FAN)
    task = plain[1] / _FAN
    print(
        f"fan of {_FAN}: {steps[0]:.2f} s; without edges {plain[0]:.2f} s; in Redis "
        f"{edge * 1e6:.1f} µs an edge, {task * 1e6:.1f} µs a task; scripts over 10 ms: {len(slow)}"
    )
    assert steps[0] <= 1.2 * plain[0]
    assert edge <= 0.5 * task
    assert [one["duration"] for one in slow] == []
