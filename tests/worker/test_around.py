"""Middleware around one attempt that takes too long, or what the event loop does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from waits import WAIT_SECONDS
from worker.attempts import attempt_at, tools_for

from nonet import BaseTask, Middleware, RunningTask
from nonet.rules.outcomes import DONE, Outcome, Succeeded
from nonet.telemetry.running_middleware import take_failures
from nonet.worker.attempt import around
from nonet.worker.attempt.execute import Tools, carry_out

story: list[str] = []


@dataclass
class Works(BaseTask):
    async def execute(self) -> int:
        story.append("executed")
        return 7


class Slow(Middleware):
    def __init__(self, place: str) -> None:
        self._place = place

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        if self._place == "before":
            await asyncio.Event().wait()
        yield
        if self._place == "after":
            await asyncio.Event().wait()


class Quick(Middleware):
    order = 1

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        story.append("before")
        yield
        story.append(f"after {task.outcome}")


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    story.clear()
    take_failures()
    async with tools_for(Works) as made:
        yield made


async def run(tools: Tools) -> Outcome:
    attempt = attempt_at(Works(), tools)
    outcome = await carry_out(attempt, tools)
    assert attempt.around is not None
    await attempt.around.close(DONE, None)
    return outcome


@pytest.mark.parametrize("place", ["before", "after"])
async def test_an_attempt_continues_without_a_slow_middleware(
    tools: Tools, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(around, "MOST_SECONDS", 0.05)
    tools.client.middlewares.extend([Slow(place), Quick()])
    assert await run(tools) == Succeeded(7)
    assert story == ["before", "executed", "after done"]
    assert take_failures() == {"Slow": 1}


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_cancellation_by_the_event_loop_is_no_failure_of_a_middleware(
    tools: Tools, place: str
) -> None:
    tools.client.middlewares.extend([Slow(place)])
    running = asyncio.create_task(run(tools))
    async with asyncio.timeout(WAIT_SECONDS):
        while place == "after" and not story:  # noqa: ASYNC110  # the task says no more
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert take_failures() == {}


async def test_a_middleware_that_is_added_later_is_around_the_next_attempt(tools: Tools) -> None:
    tools.client.middlewares.extend([Slow("never")])
    await run(tools)
    tools.client.middlewares.add(Quick, (), {})
    await run(tools)
    assert story == ["executed", "before", "executed", "after done"]
