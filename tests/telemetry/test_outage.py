"""The lines about a Redis that is away: how many there are."""

from __future__ import annotations

import logging

import pytest

from nonet.base.errors import ServerUnreachableError
from nonet.telemetry import outage
from nonet.telemetry.failures import FailureLog
from nonet.telemetry.outage import Outage

logger = logging.getLogger(__name__)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """See `time.monotonic`."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(outage, "time", made)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_a_line_a_summary_and_a_line(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """However many parts notice it, and however often."""
    redis = Outage()
    caplog.set_level(logging.INFO)
    for name in ("fetch", "beat", "sweep", "fetch"):
        redis.failed(name, "refused")
    assert lines(caplog) == ["Redis is away: refused; waiting"]
    for _ in range(30):
        clock.now += 1
        redis.failed("fetch", "refused")
    redis.recovered("sweep")  # it no longer leads
    assert lines(caplog) == ["Redis is still away: seconds=30 waiting=3 error=refused"]
    clock.now += 2
    redis.answered()
    clock.now += 10
    redis.answered()
    assert lines(caplog) == ["Redis is back after 32 s"] and not redis.is_away


def test_an_answer_between_failures_is_no_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that answers some calls and refuses others is not back."""
    redis = Outage()
    for _ in range(20):
        redis.failed("fetch", "refused")
        clock.now += 0.5
        redis.answered()
    assert lines(caplog) == ["Redis is away: refused; waiting"]


def test_a_loop_leaves_it_to_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another error of the loop is logged as before."""
    redis = Outage()
    monkeypatch.setattr("nonet.telemetry.failures.REDIS", redis)
    caplog.set_level(logging.INFO)
    loops = [FailureLog(f"loop {n}", logger) for n in range(5)]
    away = ServerUnreachableError("refused")
    away.server = "Redis"
    for loop in loops:
        loop.failed(away)
        assert loop.error and loop.failures == 1
    assert lines(caplog) == ["Redis is away: refused; waiting"]
    for loop in loops:
        loop.succeeded()
        assert not loop.error
    loops[0].failed(ServerUnreachableError("SQL does not answer"))
    loops[0].succeeded()
    assert lines(caplog) == [
        "loop 0 failed: error=SQL does not answer",
        "loop 0 is back after 0 s: failures=1",
    ]
