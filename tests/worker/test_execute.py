"""One attempt whose lease ends unnoticed: nothing of the task's runs from then on."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
from worker.attempts import attempt_at, tools_for

from nonet import BaseTask, Depends, LockedObjectType, RateLimiter
from nonet.rules.outcomes import HandedBack, Lost, Outcome, Succeeded
from nonet.tasks.locks import BaseLock
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.execute import Tools, carry_out

story: list[str] = []


def resource() -> Iterator[None]:
    story.append("opened")
    try:
        yield
    except BaseException:
        story.append("rolled back")
        raise
    story.append("committed")


@dataclass
class InLoop(BaseTask):
    async def execute(self, opened: Annotated[None, Depends(resource)]) -> None:
        story.append("executed")


@dataclass
class InThread(BaseTask):
    def execute(self, opened: Annotated[None, Depends(resource)]) -> None:
        story.append("executed")


class Limited(BaseTask):
    @property
    def execution_locks(self) -> list[BaseLock]:
        return [RateLimiter(LockedObjectType.JOB, 7, limit=3, window_seconds=60)]

    async def execute(self) -> None: ...


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    story.clear()
    async with tools_for(InLoop, InThread) as made:
        yield made


async def run(attempt: Attempt, tools: Tools, has_ended: Callable[[], bool]) -> Outcome:
    """Execute it. When it checks its lease and `has_ended`, the lease is lost."""

    def check() -> None:
        if has_ended():
            attempt.lose("overdue")

    attempt.context.check_lease_with(check)
    return await carry_out(attempt, tools)


@pytest.mark.parametrize("task", [InLoop(), InThread()], ids=["loop", "thread"])
@pytest.mark.parametrize(
    ("ends_after", "expected"),
    [
        ("", []),
        ("opened", ["opened", "rolled back"]),
        ("executed", ["opened", "executed", "rolled back"]),
    ],
)
async def test_nothing_of_a_task_runs_after_its_lease_has_ended(
    tools: Tools, task: BaseTask, ends_after: str, expected: list[str]
) -> None:
    attempt = attempt_at(task, tools)
    outcome = await run(attempt, tools, lambda: ends_after in ("", *story))
    assert outcome == Lost("overdue")
    assert story == expected
    assert attempt.started == ("executed" in expected)


async def test_a_thread_checks_the_lease_once_more_when_it_starts(tools: Tools) -> None:
    def in_thread() -> bool:
        return threading.current_thread() is not threading.main_thread()

    assert await run(attempt_at(InThread(), tools), tools, in_thread) == Lost("overdue")
    assert story == ["opened", "rolled back"]


@pytest.mark.parametrize("task", [InLoop(), InThread()], ids=["loop", "thread"])
async def test_an_attempt_whose_lease_lasts_is_committed(tools: Tools, task: BaseTask) -> None:
    assert await run(attempt_at(task, tools), tools, lambda: False) == Succeeded(None)
    assert story == ["opened", "executed", "committed"]


async def test_a_token_that_was_not_used_in_time_is_given_back() -> None:
    """The limiter has counted it in an earlier window."""
    async with tools_for(Limited) as tools:
        for seconds, expected in ((0, Succeeded), (5, HandedBack)):
            attempt = attempt_at(Limited(), tools)
            attempt.since -= seconds
            attempt.held = "x"
            assert isinstance(await carry_out(attempt, tools), expected)
