"""How many lines an unavailable Redis causes."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from nonet.base.errors import ServerUnreachableError
from nonet.telemetry import outage
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.outage import Outage

logger = logging.getLogger(__name__)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(outage, "time", made)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_logged_at_its_begin_once_a_while_and_at_its_end(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    redis = Outage()
    caplog.set_level(logging.INFO)
    for name in ("fetch", "beat", "sweep", "fetch"):
        redis.failed(name, "refused")
    assert lines(caplog) == []
    clock.now += 1
    redis.failed("fetch", "refused")
    assert lines(caplog) == ["Redis is unavailable: refused; waiting"]
    for _ in range(30):
        clock.now += 1
        redis.failed("fetch", "refused")
    redis.recovered("sweep")  # it no longer leads
    assert lines(caplog) == ["Redis is still unavailable: seconds=31 waiting=3 error=refused"]
    clock.now += 2
    redis.answered()
    clock.now += 10
    redis.answered()
    assert lines(caplog) == ["Redis is back after 33 s"] and not redis.is_unavailable


def test_an_answer_between_failures_is_no_end(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    redis = Outage()
    for _ in range(20):
        redis.failed("fetch", "refused")
        clock.now += 0.5
        redis.answered()
    assert lines(caplog) == ["Redis is unavailable: refused; waiting"]


def test_interruptions_of_less_than_a_second_are_counted_once_a_minute(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    redis = Outage()
    caplog.set_level(logging.INFO)
    for _ in range(13):
        redis.failed("fetch", "closed by server")
        clock.now += 0.1
        redis.answered()
        clock.now += 4.9
        redis.answered()
        assert not redis.is_unavailable
    assert lines(caplog) == [
        f"reopened lost connections to Redis: times={times}" for times in (1, 12)
    ]


def test_loops_of_a_process_share_the_report_of_an_outage(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    redis = Outage()
    monkeypatch.setattr("nonet.telemetry.failure_log.REDIS", redis)
    caplog.set_level(logging.INFO)
    loops = [FailureLog(f"loop {n}", logger) for n in range(5)]
    away = ServerUnreachableError("refused")
    away.server = "Redis"
    for loop in loops:
        loop.failed(away)
        assert loop.error and loop.failures == 1
    clock.now += 1
    loops[0].failed(away)
    assert lines(caplog) == ["Redis is unavailable: refused; waiting"]
    for loop in loops:
        loop.succeeded()
        assert not loop.error
    loops[0].failed(ServerUnreachableError("SQL does not answer"))
    loops[0].succeeded()
    assert lines(caplog) == [
        "loop 0 failed: error=SQL does not answer",
        "loop 0 is back after 0 s: failures=1",
    ]
