"""Middleware around one attempt that takes too long, or what the event loop does to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from clients import client_of
from waits import WAIT_SECONDS

from nonet import BaseTask, Middleware, RunningTask
from nonet.rules.outcomes import DONE, Outcome, Succeeded
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.telemetry.middleware import take_failures
from nonet.worker.attempt import around
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.execute import Tools, carry_out

story: list[str] = []


@dataclass
class Works(BaseTask):
    async def execute(self) -> int:
        story.append("executed")
        return 7


class Slow(Middleware):
    """Never ends before or after, as its place says."""

    def __init__(self, place: str) -> None:
        self._place = place

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        if self._place == "before":
            await asyncio.Event().wait()
        yield
        if self._place == "after":
            await asyncio.Event().wait()


class Quick(Middleware):
    """Is inside of the slow one."""

    order = 1

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        story.append("before")
        yield
        story.append(f"after {task.outcome}")


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    """Nobody answers at this address, and nobody is asked."""
    story.clear()
    take_failures()
    registry = Registry()
    registry.add(Works, "tests")
    options = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 1.0, "dedup_ttl": 60.0}
    broker = Broker("redis://127.0.0.1:1", "test", **options)
    client = client_of(broker, registry)
    with ThreadPoolExecutor(1) as threads:
        async with Injector() as injector:
            made = Tools(client, registry, injector, threads, 1024, *[lambda *_: None] * 2)
            yield made
    await client.aclose()
    await broker.aclose()


async def run(tools: Tools) -> Outcome:
    """Execute an attempt, and conclude it."""
    sent = tools.client.envelopes.prepare(Works())
    delivery = Delivery(
        *(sent.id, "1", "1", "tasks:normal:medium", "1-0", sent.envelope, sent.locks)
    )
    attempt = Attempt(delivery, time.monotonic())
    outcome = await carry_out(attempt, tools)
    assert attempt.around is not None
    await attempt.around.close(Conclusion(DONE), None)
    return outcome


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_slow_middleware_is_left_behind(
    tools: Tools, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as failed; the attempt and the others go on."""
    monkeypatch.setattr(around, "MOST_SECONDS", 0.05)
    tools.middlewares.extend([Slow(place), Quick()])
    assert await run(tools) == Succeeded(7)
    assert story == ["before", "executed", "after done"]
    assert take_failures() == {"Slow": 1}


@pytest.mark.parametrize("place", ["before", "after"])
async def test_the_end_of_the_event_loop_is_no_failure(tools: Tools, place: str) -> None:
    """Its cancellation gets through, so that the process can end."""
    tools.middlewares.extend([Slow(place)])
    running = asyncio.create_task(run(tools))
    async with asyncio.timeout(WAIT_SECONDS):
        while place == "after" and not story:  # noqa: ASYNC110  # the task says no more
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert take_failures() == {}


async def test_what_is_used_later_is_there_for_the_next_attempt(tools: Tools) -> None:
    """`Nonet.use` may be called while a worker runs."""
    tools.middlewares.extend([Slow("never")])
    await run(tools)
    tools.middlewares.add(Quick, (), {})
    await run(tools)
    assert story == ["executed", "before", "executed", "after done"]
