"""How often the progress of an attempt is sent."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from nonet.worker.attempt import progress
from nonet.worker.attempt.progress import Pace

INTERVAL = 0.05


class Sent:
    """What was sent, and when."""

    def __init__(self) -> None:
        self.items: list[tuple[float, float | None, str]] = []
        self.more = asyncio.Event()

    def __call__(self, fraction: float | None, text: str) -> None:
        self.items.append((time.monotonic(), fraction, text))
        self.more.set()

    async def until(self, count: int) -> None:
        while len(self.items) < count:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 20)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", INTERVAL)


def are_apart(sent: Sent) -> bool:
    times = [item[0] for item in sent.items]
    return all(b - a >= INTERVAL * 0.9 for a, b in itertools.pairwise(times))


async def test_the_first_and_the_last_report_are_sent() -> None:
    """The first at once, the last when the interval is over, and none between."""
    sent = Sent()
    pace = Pace(sent, asyncio.get_running_loop())
    for number in range(100):
        pace.report(number / 100, "")
    assert [item[1] for item in sent.items] == [0.0]
    await sent.until(2)
    assert [item[1] for item in sent.items] == [0.0, 0.99]
    assert are_apart(sent)


async def test_reports_of_a_thread_are_sent_in_the_loop() -> None:
    """As often as the others, and the last one is not lost."""
    sent = Sent()
    pace = Pace(sent, asyncio.get_running_loop())
    threads: list[int] = []

    def work() -> None:
        threads.append(threading.get_ident())
        for number in range(20_000):
            pace.report(number / 20_000, "")
        pace.report(1.0, "end")

    await asyncio.to_thread(work)
    while sent.items[-1:] == [] or sent.items[-1][2] != "end":
        await sent.until(len(sent.items) + 1)
    assert are_apart(sent) and threads != [threading.get_ident()]


async def test_code_that_blocks_the_loop_sends_all_the_same() -> None:
    """When it reports after the interval: no timer could do so."""
    sent = Sent()
    pace = Pace(sent, asyncio.get_running_loop())
    while len(sent.items) < 3:
        pace.report(None, "on the way")
    assert are_apart(sent)
    pace.report(None, "at the end")
    await sent.until(4)
    assert sent.items[-1][2] == "at the end"


async def test_a_thread_may_outlive_the_loop() -> None:
    """Its report goes nowhere, and raises nothing."""
    loop = asyncio.new_event_loop()
    pace = Pace(Sent(), loop)
    loop.close()
    pace.report(0.5, "")
