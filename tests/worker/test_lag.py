"""A task that blocks the event loop is named from outside, with its line, once."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from waits import WAIT_SECONDS, until, wait_until

from nonet.worker import lag
from nonet.worker.lag import Culprit, LoopLag


class Watched:
    def __init__(self) -> None:
        self.blocked: list[Culprit] = []
        # Whom samples have found so far in the block that lasts.
        self.found: list[Culprit] = []
        self.lag = LoopLag(
            self._identify,
            self.blocked.append,
            self.note,
            in_threads=lambda: [Culprit("t-2", "x:Def")] if self.has_thread else [],
        )
        self.has_thread = False

    @staticmethod
    def _identify(task: asyncio.Task[Any]) -> Culprit | None:
        return Culprit("t-1", "x:Slow") if task.get_name() == "t-1" else None

    def note(self, culprit: Culprit, place: str) -> None:
        self.found.append(culprit)

    async def answers(self) -> None:
        """Wait until the loop was asked, and has answered, after now."""
        since = time.monotonic()
        while not (self.lag._answered > self.lag._asked > since):  # noqa: ASYNC110  # a thread asks
            await asyncio.sleep(0.01)

    async def named(self, count: int = 1) -> None:
        await until(lambda: len(self.blocked) >= count, f"{count} were named")


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    made.lag.start()
    await made.answers()
    yield made
    made.lag.stop()
    made.lag._thread.join()


# Both end once samples have found them, however late these are on a busy machine. They call no
# Python function, in which a sample would find them.
async def blocking(watched: Watched) -> None:
    watched.found.clear()
    ends = time.monotonic() + WAIT_SECONDS
    while not watched.found and time.monotonic() < ends:
        time.sleep(0.01)  # noqa: ASYNC251  # what this is about


async def computing(watched: Watched) -> None:
    watched.found.clear()
    ends = time.monotonic() + WAIT_SECONDS
    while not watched.found and time.monotonic() < ends:
        sum(range(1000))


@pytest.mark.parametrize("work", [blocking, computing])
async def test_a_task_that_blocks_the_loop_is_named_once(
    watched: Watched, caplog: pytest.LogCaptureFixture, work: Any
) -> None:
    await asyncio.create_task(work(watched), name="t-1")
    await watched.named()
    await watched.answers()
    assert watched.blocked == [Culprit("t-1", "x:Slow")]
    (line,) = [item.getMessage() for item in caplog.records if item.name == "nonet.worker.lag"]
    found = re.search(r"blocked for (\d+\.\d+) s by task t-1 \(x:Slow\) at (\S+):(\d+): ", line)
    assert found, line
    assert float(found[1]) >= 0.25
    first = work.__code__.co_firstlineno
    assert found[2] == __file__
    assert first < int(found[3]) <= first + 5


async def test_each_block_of_the_loop_is_reported(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.create_task(blocking(watched), name="t-1")
    await watched.answers()
    await asyncio.create_task(blocking(watched), name="reader")
    await watched.named(2)
    advised = ["isolate it" in item.getMessage() for item in caplog.records]
    assert advised == [True, False]
    assert watched.blocked == [Culprit("t-1", "x:Slow"), Culprit("reader")]
    assert [str(culprit) for culprit in (*watched.blocked, Culprit())] == [
        "task t-1 (x:Slow)",
        "asyncio task reader",
        "a callback",
    ]


async def test_a_task_that_blocks_forever_is_reported_meanwhile(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nonet.worker.lag._REPORT_SECONDS", 0.5)
    caplog.set_level(logging.WARNING)

    async def until_it_is_told() -> None:
        ends = time.monotonic() + WAIT_SECONDS
        while not watched.blocked and time.monotonic() < ends:
            time.sleep(0.01)  # noqa: ASYNC251  # what this is about

    await asyncio.create_task(until_it_is_told(), name="t-1")
    assert watched.blocked == [Culprit("t-1", "x:Slow")]
    await watched.answers()
    assert len(watched.blocked) == 1
    assert "is still blocked after" in caplog.text


async def test_many_short_steps_are_a_lag_but_no_block(watched: Watched) -> None:
    steps: list[float] = []

    async def short() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
            began = time.monotonic()
            time.sleep(0.01)  # noqa: ASYNC251  # a short step, unless the machine stands still
            steps.append(time.monotonic() - began)

    await asyncio.gather(*(short() for _ in range(50)))
    await watched.answers()
    assert len(watched.blocked) <= sum(step > 0.1 for step in steps)
    assert watched.lag.longest() > 0.2


async def test_the_lag_is_known_while_the_loop_is_blocked(watched: Watched) -> None:
    seen: list[float] = []

    async def asking_itself() -> None:
        ends = time.monotonic() + WAIT_SECONDS
        while (not seen or seen[-1] < 0.3) and time.monotonic() < ends:
            time.sleep(0.1)  # noqa: ASYNC251  # what this is about
            seen.append(watched.lag.longest())

    await asyncio.create_task(asking_itself(), name="t-1")
    assert seen[-1] > 0.3


@pytest.mark.parametrize(("name", "teller"), [("t-1", 1), ("other", 0)])
async def test_one_of_several_workers_in_a_loop_reports_a_block(
    caplog: pytest.LogCaptureFixture, name: str, teller: int
) -> None:
    """The worker of the task reports it; the first one reports a block by other code."""
    watched = Watched()
    stranger = LoopLag(lambda task: None, lambda culprit: told[0].append(culprit), watched.note)
    told: list[list[Culprit]] = [[], watched.blocked]
    stranger.start()
    watched.lag.start()
    try:
        await watched.answers()
        with caplog.at_level(logging.WARNING):
            await asyncio.create_task(blocking(watched), name=name)
            await until(lambda: told[teller], "it was told")
            await watched.answers()
        assert [len(each) for each in told] == [1 - teller, teller]
        assert len(caplog.messages) == 1
    finally:
        stranger.stop()
        watched.lag.stop()


def test_a_watcher_ends_with_the_thread_of_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word, although nothing has stopped it."""
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    watched = Watched()

    async def start() -> None:
        watched.lag.start()

    thread = threading.Thread(target=lambda: asyncio.run(start()))
    thread.start()
    thread.join()
    try:
        watched.lag._thread.join(WAIT_SECONDS)
        assert not watched.lag._thread.is_alive() and failures == []
    finally:
        watched.lag.stop()


def holding(is_noticed: Callable[[], bool]) -> None:
    """Compute for a second of CPU time, as a regular expression does: no other thread runs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    ends = time.thread_time() + 1.0
    while time.thread_time() < ends:
        pass
    sys.setswitchinterval(interval)
    wait_until(is_noticed, "the hold was noticed")  # the others get the lock here


@pytest.mark.parametrize(("is_thread", "task"), [(False, "x:Slow"), (True, "x:Def")])
async def test_code_that_holds_the_interpreter_lock_is_named(
    watched: Watched,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_thread: bool,
    task: str,
) -> None:
    """It stops the thread that would see it, which notices its own gap."""
    monkeypatch.setattr(lag, "_HELD_SECONDS", 0.5)
    watched.has_thread = is_thread

    async def work() -> None:
        await asyncio.to_thread(holding, is_noticed) if is_thread else holding(is_noticed)

    def is_noticed() -> bool:
        return watched.lag.hold is not None

    await asyncio.create_task(work(), name="t-1")
    assert watched.lag.hold is not None and watched.lag.hold.task == task
    assert "the interpreter lock was held for" in caplog.text and f"({task})" in caplog.text
    assert watched.blocked[0].task == task
