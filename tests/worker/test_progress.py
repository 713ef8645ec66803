"""How often the progress of an attempt is sent, by a clock that a test moves."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from waits import until
from worker.attempts import attempt_at, tools_for

from nonet import BaseTask, context
from nonet.base.messages.message import decode_result
from nonet.worker.attempt import progress_pace as progress
from nonet.worker.attempt.conclusion import Concluder
from nonet.worker.attempt.execute import carry_out
from nonet.worker.attempt.progress_pace import Pace

Sent = list[tuple[float | None, str]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time. Timers look at it every few milliseconds."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.02)
    return now


def paced(sent: Sent) -> Pace:
    return Pace(lambda *report: sent.append(report), asyncio.get_running_loop())


async def test_the_first_report_is_sent_at_once_and_the_last_after_the_interval(
    clock: list[float],
) -> None:
    sent: Sent = []
    pace = paced(sent)
    for number in range(100):
        pace.report(number / 100, "")
    assert sent == [(0.0, "")]
    clock[0] += 1
    await until(lambda: len(sent) == 2, "the timer has sent the last one")
    assert sent[1] == (0.99, "")


async def test_reports_of_a_thread_are_sent_in_the_loop(clock: list[float]) -> None:
    sent: Sent = []
    threads: list[int] = []

    def send(fraction: float | None, text: str) -> None:
        sent.append((fraction, text))
        threads.append(threading.get_ident())

    pace = Pace(send, asyncio.get_running_loop())

    def work() -> None:
        for number in range(20_000):
            pace.report(number / 20_000, "")
        pace.report(1.0, "end")

    await asyncio.to_thread(work)
    await until(lambda: sent, "the first one is sent")
    assert len(sent) == 1
    clock[0] += 1
    await until(lambda: sent[-1] == (1.0, "end"), "the last one is sent")
    assert len(sent) <= 2 and set(threads) == {threading.get_ident()}


async def test_code_that_blocks_the_loop_sends_after_the_interval(clock: list[float]) -> None:
    """No timer could do so meanwhile."""
    sent: Sent = []
    pace = paced(sent)
    for number in range(3):
        pace.report(None, f"step {number}")
        pace.report(None, "too early")
        clock[0] += 1
    assert [text for _, text in sent] == ["step 0", "step 1", "step 2"]


class Reports(BaseTask):
    async def execute(self) -> None:
        context().progress(0.1, "begun")
        context().progress(2 / 3, "x" * 60)


async def test_the_result_has_the_report_that_still_waits() -> None:
    """The attempt ends before the second has passed; the result rounds it as the record does."""
    sent: Sent = []
    async with tools_for(Reports) as tools:
        attempt = attempt_at(Reports(), tools)
        attempt.context.pass_progress_to(lambda *report: sent.append(report))
        outcome = await carry_out(attempt, tools)
        result = decode_result(Concluder(tools.client).conclude(attempt, outcome).document)
    assert sent == [(0.1, "begun")]
    assert (result.progress, result.doing) == (0.6667, "x" * 60)


async def test_a_report_after_the_end_of_the_loop_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    pace = Pace(lambda *_: None, loop)
    loop.close()
    pace.report(0.5, "")
