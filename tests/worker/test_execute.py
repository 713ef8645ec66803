"""One attempt whose lease ends unnoticed: nothing of the task's runs from then on."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import pytest
from clients import client_of

from nonet import BaseTask, Depends
from nonet.rules.outcomes import Lost, Outcome, Succeeded
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
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


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    """Nobody answers at this address, and nobody is asked."""
    story.clear()
    registry = Registry()
    registry.add(InLoop, "tests")
    registry.add(InThread, "tests")
    options = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 1.0, "dedup_ttl": 60.0}
    broker = Broker("redis://127.0.0.1:1", "test", **options)
    client = client_of(broker, registry)
    with ThreadPoolExecutor(1) as threads:
        async with Injector() as injector:
            yield Tools(client, registry, injector, threads, 1024, *[lambda *_: None] * 2)
    await client.aclose()
    await broker.aclose()


def attempt_at(task: BaseTask, tools: Tools) -> Attempt:
    sent = tools.client.envelopes.prepare(task)
    delivery = Delivery(
        *(sent.id, "1", "1", "tasks:normal:medium", "1-0", sent.envelope, sent.locks)
    )
    return Attempt(delivery, time.monotonic())


async def run(attempt: Attempt, tools: Tools, has_ended: Callable[[], bool]) -> Outcome:
    """Execute it; its lease has ended, seen by nobody else, when it asks and `has_ended`."""

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
async def test_nothing_goes_on_after_the_deadline(
    tools: Tools, task: BaseTask, ends_after: str, expected: list[str]
) -> None:
    """Dependencies are not opened, execute not called, nothing committed; it has not failed."""
    attempt = attempt_at(task, tools)
    outcome = await run(attempt, tools, lambda: ends_after in ("", *story))
    assert outcome == Lost("overdue")
    assert story == expected
    assert attempt.started == ("executed" in expected)


async def test_a_thread_that_starts_late_asks_once_more(tools: Tools) -> None:
    """The lease ends while the task waits for a free thread."""

    def in_thread() -> bool:
        return threading.current_thread() is not threading.main_thread()

    assert await run(attempt_at(InThread(), tools), tools, in_thread) == Lost("overdue")
    assert story == ["opened", "rolled back"]


@pytest.mark.parametrize("task", [InLoop(), InThread()], ids=["loop", "thread"])
async def test_a_lease_that_lasts_changes_nothing(tools: Tools, task: BaseTask) -> None:
    """It is executed and committed."""
    assert await run(attempt_at(task, tools), tools, lambda: False) == Succeeded(None)
    assert story == ["opened", "executed", "committed"]
