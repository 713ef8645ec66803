"""One attempt that takes too long: cancelled at its soft limit, given up at its hard one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from waits import WAIT_SECONDS, until
from worker.attempts import attempt_at, tools_for

from nonet import BaseTask, Depends, StopRetrying, TaskTimeoutError, context
from nonet.rules.outcomes import Failed, HandedBack, Lost, Succeeded
from nonet.worker.attempt.execute import Tools, carry_out

NEVER = 60.0
story: list[str] = []
still_runs = threading.Event()
given_up: list[Any] = []


def resource() -> Iterator[None]:
    try:
        yield
    except BaseException:
        story.append("rolled back")
        raise
    story.append("committed")


Opened = Annotated[None, Depends(resource)]


class Softly(BaseTask):
    soft_timeout = 1.0  # on a busy machine, too, `execute` has begun by then


@dataclass
class Obeys(Softly):
    """Raises an error when it is cancelled, if it has one."""

    error: str = ""

    async def execute(self, opened: Opened) -> None:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            if self.error:
                raise {"OSError": OSError, "Stop": StopRetrying}[self.error]("broken") from None
            raise


@dataclass
class InTime(Softly):
    soft_timeout = NEVER
    hard_timeout = NEVER

    async def execute(self, opened: Opened) -> str:
        return "done"


class ObeysHard(Obeys):
    soft_timeout = None
    hard_timeout = 1.0


@dataclass
class Swallows(Softly):
    async def execute(self, opened: Opened) -> str:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        with pytest.raises(TaskTimeoutError):
            context().ensure_lease()
        return "as if nothing had happened"


@dataclass
class Stubborn(BaseTask):
    soft_timeout = 0.3
    hard_timeout = 0.5

    async def execute(self, opened: Opened) -> None:
        while not still_runs.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                story.append("cancelled")
        try:
            context().ensure_lease()
        except Exception as error:
            story.append(f"{type(error).__name__} in the end")


@dataclass
class Exits(BaseTask):
    hard_timeout = NEVER

    async def execute(self, opened: Opened) -> None:
        raise SystemExit(3)


@dataclass
class ThreadAsks(Softly):
    def execute(self, opened: Opened) -> None:
        while True:
            context().ensure_lease()
            time.sleep(0.005)


@dataclass
class ThreadReturns(Softly):
    """It ends by itself, long after its limit, and has never asked."""

    def execute(self, opened: Opened) -> str:
        still_runs.wait(NEVER)
        return "late"


@dataclass
class ThreadGivesAwaitable(Softly):
    """Its thread ends after the limit, and returns a coroutine that would take an hour."""

    def execute(self, opened: Opened) -> Any:
        still_runs.wait(NEVER)
        return asyncio.sleep(3600)


class ThreadHangs(BaseTask):
    hard_timeout = 0.5  # enough for its thread to begin

    def execute(self, opened: Opened) -> None:
        still_runs.wait(NEVER)
        try:
            context().ensure_lease()
        except Exception as error:
            story.append(f"{type(error).__name__} in the end")


async def slow_to_commit() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(2 * SlowCommit.soft_timeout)
    story.append("committed")


async def slow_to_open() -> None:
    await asyncio.sleep(NEVER)


@dataclass
class SlowCommit(BaseTask):
    soft_timeout = 1.0

    async def execute(self, slow: Annotated[None, Depends(slow_to_commit)]) -> str:
        return "done"


@dataclass
class SlowOpening(Softly):
    async def execute(self, slow: Annotated[None, Depends(slow_to_open)]) -> None:
        story.append("executed")


CLASSES = [
    *(Obeys, InTime, ObeysHard, Swallows, Stubborn),
    *(ThreadAsks, ThreadReturns, ThreadGivesAwaitable, ThreadHangs),
    *(SlowCommit, SlowOpening, Exits),
]


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    story.clear()
    given_up.clear()
    still_runs.clear()
    async with tools_for(*CLASSES, leave=lambda _, left: given_up.append(left)) as made:
        yield made
        still_runs.set()


async def run(task: BaseTask, tools: Tools) -> Any:
    ended = asyncio.create_task(carry_out(attempt_at(task, tools), tools))
    # No timeout of asyncio: it would cancel, which is what is tested.
    done, _ = await asyncio.wait({ended}, timeout=WAIT_SECONDS)
    assert done, "it has not ended"
    return ended.result()


async def failure(task: BaseTask, tools: Tools) -> BaseException:
    outcome = await run(task, tools)
    assert isinstance(outcome, Failed) and outcome.reason is None, outcome
    return outcome.error


@pytest.mark.parametrize(
    ("task", "limit", "cause"),
    [
        (Obeys(), "soft timeout of 1 s exceeded (soft_timeout of Obeys)", "CancelledError"),
        (ObeysHard(), "hard timeout of 1 s exceeded (hard_timeout of ObeysHard)", "Cancelled"),
        (Swallows(), "soft timeout of 1 s exceeded (soft_timeout of Swallows)", ""),
        (Obeys("OSError"), "soft timeout of 1 s exceeded", "OSError('broken"),
        (ThreadAsks(), "soft timeout of 1 s exceeded (soft_timeout of ThreadAsks)", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseTask) else None,
)
async def test_an_attempt_beyond_its_limit_fails_and_is_rolled_back(
    tools: Tools, task: BaseTask, limit: str, cause: str
) -> None:
    """The policy gets a TaskTimeoutError that names the limit; nothing is committed."""
    error = await failure(task, tools)
    assert isinstance(error, TaskTimeoutError) and isinstance(error, TimeoutError)
    assert str(error).startswith(limit)
    assert cause in repr(error.__cause__)
    assert error.__traceback__ is not None  # where it was then
    assert story == ["rolled back"]
    assert given_up == []


async def test_an_attempt_within_its_limits_succeeds(tools: Tools) -> None:
    assert await run(InTime(), tools) == Succeeded("done")
    assert story == ["committed"]


async def test_an_exit_ends_the_attempt_only(tools: Tools) -> None:
    assert isinstance(await failure(Exits(), tools), SystemExit)
    assert story == ["rolled back"]


async def test_a_cancelled_task_may_stop_its_retries(tools: Tools) -> None:
    assert isinstance(await failure(Obeys("Stop"), tools), StopRetrying)


async def test_a_coroutine_that_cannot_be_cancelled_is_given_up(tools: Tools) -> None:
    """Its attempt has failed at the hard limit; it knows when it asks, and commits nothing."""
    error = await failure(Stubborn(), tools)
    assert str(error) == "hard timeout of 0.5 s exceeded (hard_timeout of Stubborn)"
    assert isinstance(error, TaskTimeoutError)
    assert set(story) == {"cancelled"} and len(story) == 2
    (left,) = given_up
    assert not left.done()
    still_runs.set()
    await asyncio.wait({left}, timeout=WAIT_SECONDS)
    assert story[2:] == ["LeaseLostError in the end", "rolled back"]


async def test_a_thread_is_given_up_at_the_hard_limit(tools: Tools) -> None:
    error = await failure(ThreadHangs(), tools)
    assert isinstance(error, TaskTimeoutError)
    assert story == ["rolled back"]
    (left,) = given_up
    assert left.running()
    still_runs.set()
    left.result(timeout=WAIT_SECONDS)
    assert story[1:] == ["LeaseLostError in the end"]


@pytest.mark.parametrize("task", [ThreadReturns(), ThreadGivesAwaitable()], ids=["value", "await"])
async def test_a_thread_that_returns_after_the_soft_limit_has_failed(
    tools: Tools, task: BaseTask
) -> None:
    """A thread learns of the limit only when it asks; what it returns later does not count."""
    attempt = attempt_at(task, tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await until(lambda: attempt.timed_out is not None, "its limit has passed")
    assert not ended.done() and story == []
    still_runs.set()
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert isinstance(outcome, Failed) and isinstance(outcome.error, TaskTimeoutError)
    assert story == ["rolled back"]


async def test_the_soft_limit_does_not_cut_a_commit(tools: Tools) -> None:
    assert await run(SlowCommit(), tools) == Succeeded("done")
    assert story == ["committed"]


async def test_the_soft_limit_includes_the_opening_of_dependencies(tools: Tools) -> None:
    assert isinstance(await failure(SlowOpening(), tools), TaskTimeoutError)
    assert story == []


async def test_an_attempt_that_is_cut_before_its_limit_is_handed_back(tools: Tools) -> None:
    attempt = attempt_at(Stubborn(), tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await until(lambda: attempt.started, "it runs")
    attempt.cut("the worker stopped")
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert isinstance(outcome, HandedBack) and outcome.reason == "the worker stopped"
    assert attempt.timed_out is None


async def test_a_lost_lease_outranks_a_limit(tools: Tools) -> None:
    attempt = attempt_at(Obeys(), tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await asyncio.sleep(0)
    attempt.time_out(TaskTimeoutError("too slow"))
    attempt.lose("overdue")
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert outcome == Lost("overdue")
