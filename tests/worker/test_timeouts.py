"""One attempt that takes too long: cancelled at its soft limit, given up at its hard one."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from clients import client_of
from waits import WAIT_SECONDS, until

from nonet import BaseTask, Depends, StopRetrying, TaskTimeoutError, context
from nonet.base.errors import LeaseLostError
from nonet.rules.outcomes import Failed, HandedBack, Lost, Succeeded
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.execution import enter_context
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.execute import Tools, carry_out

NEVER = 60.0
story: list[str] = []
goes_on = threading.Event()
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
    soft_timeout = 0.05


@dataclass
class Obeys(Softly):
    async def execute(self, opened: Opened) -> None:
        await asyncio.sleep(NEVER)


@dataclass
class InTime(Softly):
    soft_timeout = NEVER
    hard_timeout = NEVER

    async def execute(self, opened: Opened) -> str:
        return "done"


@dataclass
class ObeysHard(BaseTask):
    hard_timeout = 0.05

    async def execute(self, opened: Opened) -> None:
        await asyncio.sleep(NEVER)


@dataclass
class Swallows(Softly):
    """It is cancelled, goes on for a moment and returns."""

    async def execute(self, opened: Opened) -> str:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        with pytest.raises(TaskTimeoutError):
            context().ensure_lease()
        return "as if nothing had happened"


@dataclass
class FailsWhenCancelled(Softly):
    async def execute(self, opened: Opened) -> None:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            raise OSError("the connection broke off") from None


@dataclass
class StopsWhenCancelled(Softly):
    async def execute(self, opened: Opened) -> None:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            raise StopRetrying("it will never be faster") from None


@dataclass
class Stubborn(BaseTask):
    """Nothing ends it but the event."""

    soft_timeout = 0.3
    hard_timeout = 0.5

    async def execute(self, opened: Opened) -> None:
        while not goes_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                story.append("cancelled")
        try:
            context().ensure_lease()
        except Exception as error:
            story.append(f"{type(error).__name__} in the end")


def plainly(function: Any) -> Any:
    """A decorator that does not know about coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **arguments: Any) -> Any:
        return function(*args, **arguments)

    return wrapper


@dataclass
class Decorated(Softly):
    @plainly
    async def execute(self, opened: Opened) -> None:
        await asyncio.sleep(NEVER)


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
        goes_on.wait(NEVER)
        return "late"


@dataclass
class ThreadGivesAwaitable(Softly):
    """Its thread ends after the limit, and gives a coroutine that would go on for long."""

    def execute(self, opened: Opened) -> Any:
        time.sleep(0.2)
        return goes_on_for_long()


async def goes_on_for_long() -> None:
    await asyncio.sleep(3600)


class ThreadHangs(BaseTask):
    hard_timeout = 0.5  # enough for its thread to begin

    def execute(self, opened: Opened) -> None:
        goes_on.wait(NEVER)
        try:
            context().ensure_lease()
        except Exception as error:
            story.append(f"{type(error).__name__} in the end")


async def slow_to_commit() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0.2)
    story.append("committed")


async def slow_to_open() -> None:
    await asyncio.sleep(NEVER)


@dataclass
class SlowCommit(Softly):
    async def execute(self, slow: Annotated[None, Depends(slow_to_commit)]) -> str:
        return "done"


@dataclass
class SlowOpening(Softly):
    async def execute(self, slow: Annotated[None, Depends(slow_to_open)]) -> None:
        story.append("executed")


CLASSES = [
    *(Obeys, InTime, ObeysHard, Swallows, FailsWhenCancelled, StopsWhenCancelled, Stubborn),
    *(
        ThreadAsks,
        ThreadReturns,
        ThreadGivesAwaitable,
        ThreadHangs,
        SlowCommit,
        SlowOpening,
        Decorated,
        Exits,
    ),
]


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    """Nobody answers at this address, and nobody is asked."""
    for kept in (story, given_up):
        kept.clear()
    goes_on.clear()
    registry = Registry()
    for cls in CLASSES:
        registry.add(cls, "tests")
    options = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 1.0, "dedup_ttl": 60.0}
    broker = Broker("redis://127.0.0.1:1", "test", **options)
    client = client_of(broker, registry)
    with ThreadPoolExecutor(2) as threads:
        async with Injector() as injector:
            yield Tools(
                *(client, registry, injector, threads, 1024),
                admit=nobody_refuses,
                leave=lambda _, left: given_up.append(left),
            )
        goes_on.set()
    await client.aclose()
    await broker.aclose()


async def nobody_refuses(attempt: Attempt, lines: str) -> None: ...


def attempt_at(task: BaseTask, tools: Tools) -> Attempt:
    sent = tools.client.envelopes.prepare(task)
    delivery = Delivery(
        *(sent.id, "1", "1", "tasks:normal:medium", "1-0", sent.envelope, sent.locks)
    )
    return Attempt(delivery, time.monotonic())


async def run(task: BaseTask, tools: Tools) -> Any:
    ended = asyncio.create_task(carry_out(attempt_at(task, tools), tools))
    # No timeout of asyncio: it would cancel, which is what is tested.
    done, _ = await asyncio.wait({ended}, timeout=WAIT_SECONDS)
    assert done, "it goes on"
    return ended.result()


async def failure(task: BaseTask, tools: Tools) -> BaseException:
    outcome = await run(task, tools)
    assert isinstance(outcome, Failed) and outcome.reason is None, outcome
    return outcome.error


@pytest.mark.parametrize(
    ("task", "limit", "cause"),
    [
        (Obeys(), "soft timeout of 0.05 s exceeded (soft_timeout of Obeys)", "CancelledError"),
        (ObeysHard(), "hard timeout of 0.05 s exceeded (hard_timeout of ObeysHard)", "Cancelled"),
        (Swallows(), "soft timeout of 0.05 s exceeded (soft_timeout of Swallows)", ""),
        (Decorated(), "soft timeout of 0.05 s exceeded", "CancelledError"),
        (FailsWhenCancelled(), "soft timeout of 0.05 s exceeded", "OSError('the connection"),
        (ThreadAsks(), "soft timeout of 0.05 s exceeded (soft_timeout of ThreadAsks)", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseTask) else None,
)
async def test_it_fails_and_is_rolled_back(
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


async def test_what_is_in_time_is_not_touched(tools: Tools) -> None:
    """Limits that are kept change nothing, and leave no timer behind."""
    assert await run(InTime(), tools) == Succeeded("done")
    assert story == ["committed"]


async def test_a_limit_does_not_let_an_exit_out(tools: Tools) -> None:
    """A task that ends the process ends its attempt only, also beside a limit."""
    assert isinstance(await failure(Exits(), tools), SystemExit)
    assert story == ["rolled back"]


async def test_an_author_may_stop_retrying(tools: Tools) -> None:
    """Who knows that it will never be faster says so when it is cancelled."""
    assert isinstance(await failure(StopsWhenCancelled(), tools), StopRetrying)


async def test_a_coroutine_that_cannot_be_cancelled_is_given_up(tools: Tools) -> None:
    """Its attempt has failed at the hard limit; it knows when it asks, and commits nothing."""
    error = await failure(Stubborn(), tools)
    assert str(error) == "hard timeout of 0.5 s exceeded (hard_timeout of Stubborn)"
    assert isinstance(error, TaskTimeoutError)
    assert set(story) == {"cancelled"} and len(story) == 2
    (left,) = given_up
    assert not left.done()
    goes_on.set()
    await asyncio.wait({left}, timeout=WAIT_SECONDS)
    assert story[2:] == ["LeaseLostError in the end", "rolled back"]


async def test_a_thread_is_given_up_at_the_hard_limit(tools: Tools) -> None:
    """It cannot be stopped: its attempt ends without it, and it knows when it asks."""
    error = await failure(ThreadHangs(), tools)
    assert isinstance(error, TaskTimeoutError)
    assert story == ["rolled back"]
    (left,) = given_up
    assert left.running()
    goes_on.set()
    left.result(timeout=WAIT_SECONDS)
    assert story[1:] == ["LeaseLostError in the end"]


async def test_a_thread_that_returns_too_late_has_failed(tools: Tools) -> None:
    """At the soft limit a thread is only told when it asks; what it returns does not count."""
    attempt = attempt_at(ThreadReturns(), tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await until(lambda: attempt.ending.timed_out is not None, "its limit has passed")
    assert not ended.done() and story == []
    goes_on.set()
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert isinstance(outcome, Failed) and isinstance(outcome.error, TaskTimeoutError)
    assert story == ["rolled back"]


async def test_what_a_late_thread_gives_is_not_awaited(tools: Tools) -> None:
    """The limit has passed: the attempt fails when the thread ends."""
    error = await failure(ThreadGivesAwaitable(), tools)
    assert "soft timeout of 0.05 s exceeded" in str(error)


async def test_a_void_attempt_opens_no_group(tools: Tools) -> None:
    """Whatever it swallowed, what it spawns would outlive its end. (No Redis is asked here.)"""
    attempt = attempt_at(InTime(), tools)
    attempt.context.lose_lease("the hard limit has passed")
    enter_context(attempt.context)
    with pytest.raises(LeaseLostError):
        await tools.client.spawn_with_callback([InTime()], InTime())


async def test_a_commit_is_not_cut_by_the_soft_limit(tools: Tools) -> None:
    """The work is done in time; what follows may take as long as it takes."""
    assert await run(SlowCommit(), tools) == Succeeded("done")
    assert story == ["committed"]


async def test_opening_dependencies_counts(tools: Tools) -> None:
    """A dependency that hangs does not take the slot for ever."""
    assert isinstance(await failure(SlowOpening(), tools), TaskTimeoutError)
    assert story == []


async def test_a_stop_before_the_limit_is_no_failure(tools: Tools) -> None:
    """Who is cut off first is handed back, also if its time runs out while it ends."""
    attempt = attempt_at(Stubborn(), tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await until(lambda: attempt.started, "it runs")
    attempt.cut("the worker stopped")
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert isinstance(outcome, HandedBack) and outcome.reason == "the worker stopped"
    assert attempt.ending.timed_out is None


async def test_a_lost_lease_counts_before_a_limit(tools: Tools) -> None:
    """What nobody may settle is no failed attempt."""
    attempt = attempt_at(Obeys(), tools)
    ended = asyncio.create_task(carry_out(attempt, tools))
    await asyncio.sleep(0)
    attempt.time_out(TaskTimeoutError("too slow"))
    attempt.lose("overdue")
    async with asyncio.timeout(WAIT_SECONDS):
        outcome = await ended
    assert outcome == Lost("overdue")
