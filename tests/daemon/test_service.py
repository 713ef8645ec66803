"""Ticks and stop requests of daemons."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import subprocess
import sys
from typing import Any

import pytest
from waits import WAIT_SECONDS

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.daemon.service import Stop, every, reached, retrieve, unless_stopped
from nonet.telemetry import failure_log as failures


class Hasty(Stop):
    """Notes how long it should sleep, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_a_tick_may_fail_for_hours() -> None:
    """Thousands of failures do not end the loop; the pause grows only to some seconds."""
    stop = Hasty()
    ticks = 0

    async def tick() -> float:
        nonlocal ticks
        ticks += 1
        if ticks == 3000:
            stop.request()
        raise ServerUnreachableError("away")

    await every(stop, "test", tick)
    assert ticks == 3000
    assert stop.pauses[0] < 0.5 and 4 < max(stop.pauses) < 9


async def test_a_success_resets_the_pause() -> None:
    """The failure after a success waits a short time; a successful tick chooses its pause."""
    stop = Hasty()
    ticks = 0

    async def tick() -> float:
        nonlocal ticks
        ticks += 1
        if ticks == 9:
            stop.request()
        if ticks in (7, 9):
            return 42.0
        raise ValueError("no")

    await every(stop, "test", tick)
    assert stop.pauses[5] > 3 > stop.pauses[7]
    assert [stop.pauses[6], stop.pauses[8]] == [42.0, 42.0]


class Own(BaseException):
    """An unknown kind of error that cannot even be shown."""

    def __str__(self) -> str:
        raise SystemExit(2)


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Own()]
)
@pytest.mark.parametrize("awaited", [False, True])
async def test_a_tick_may_raise_anything(
    error: BaseException, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of application code is logged and does not end the loop."""
    stop = Hasty()
    ticks = 0

    async def tick() -> float:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            stop.request()
            return 0.0
        if not awaited:
            raise error
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        await future
        return 0.0

    await every(stop, "test", tick)
    assert ticks == 3
    assert type(error).__name__ in caplog.text


async def test_a_repeated_failure_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary follows each minute, and a line with its duration at the end."""
    caplog.set_level(logging.INFO)
    stop = Hasty()
    ticks = 0

    async def tick() -> float:
        nonlocal ticks
        ticks += 1
        if ticks == 9:
            monkeypatch.setattr(failures, "_SUMMARY_SECONDS", 0.0)
        if ticks == 10:
            stop.request()
            return 0.0
        if ticks == 4:
            raise ServerUnreachableError("no route")
        raise ServerUnreachableError(f"port {ticks} is closed")

    await every(stop, "demand", tick)
    first, other, summary, end = caplog.messages
    assert other.endswith("error=no route")
    assert first.startswith("demand failed: retry_in=0.") and first.endswith(
        "error=port 1 is closed"
    )
    assert re.fullmatch(
        r"demand still fails: failures=9 seconds=\d+ error=port 9 is closed", summary
    )
    assert re.fullmatch(r"demand is back after \d+ s: failures=9", end)


async def test_a_daemon_waits_at_its_start_for_a_server_that_cannot_be_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its log gives the reason; an error that no wait can fix ends the daemon."""
    answers = [ServerUnreachableError("READONLY"), ServerUnreachableError("READONLY"), None]

    async def check() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    assert await reached(Hasty(), check)
    assert "connection to the servers failed" in caplog.text and "READONLY" in caplog.text
    answers = [ConfigurationError("no such user")]
    with pytest.raises(ConfigurationError):
        await reached(Hasty(), check)


async def test_a_cancelled_loop_ends() -> None:
    """A tick that raises CancelledError does not cancel the loop."""
    ticking = asyncio.Event()

    async def tick() -> float:
        ticking.set()
        await asyncio.Event().wait()
        return 0.0

    loop = asyncio.create_task(every(Stop(), "test", tick))
    await ticking.wait()
    loop.cancel()
    await asyncio.wait({loop}, timeout=WAIT_SECONDS)
    assert loop.cancelled()


# The main thread is blocked; what is heard means: nothing, later, now with a code of its own,
# later.
BLOCKED = """
import os, time
from nonet.daemon.service import ExitCode, _SignalThread
meant = {1: (600, ExitCode.FAILED), 2: (0.1, ExitCode.SECOND_SIGNAL)}
os.write(_SignalThread(meant.get)._end, bytes([0, 1, 2, 1]))
time.sleep(600)
"""


def test_a_blocked_process_ends_as_its_second_signal_says() -> None:
    """A repeated drain request does not take the second signal back."""
    ended = subprocess.run([sys.executable, "-c", BLOCKED], timeout=WAIT_SECONDS, check=False)
    assert ended.returncode == 143


async def test_the_second_request_forces() -> None:
    """The first request ends a sleep and drains."""
    stop = Stop()
    sleeping = asyncio.create_task(stop.sleep(3600))
    await asyncio.sleep(0)
    stop.request()
    await sleeping
    assert not stop.forced.is_set()
    stop.request()
    assert stop.forced.is_set()


async def test_a_request_to_drain_never_forces() -> None:
    """A signal after any number of them forces."""
    stop = Stop()
    stop.drain()
    stop.drain()
    assert stop.requested.is_set() and not stop.forced.is_set()
    stop.request()
    assert stop.forced.is_set()


async def test_an_abandoned_wait_that_fails_is_not_logged() -> None:
    """Without `retrieve` asyncio would log it."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def wait() -> None:
        raise ServerUnreachableError("it was frozen")

    task = asyncio.create_task(wait())
    task.add_done_callback(retrieve)
    await asyncio.wait({task})
    del task
    gc.collect()
    assert told == []


async def test_a_stop_waits_for_the_clean_up_of_what_it_cancels() -> None:
    """Otherwise a process ends while its daemons still hand tasks back."""
    stop, cleaned = Stop(), asyncio.Event()

    async def work() -> None:
        try:
            stop.request()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    assert await unless_stopped(work(), stop) is None
    assert cleaned.is_set()
