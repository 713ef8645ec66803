"""How many tasks a second ended lately."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.rules.findings.throughput import throughput_of
from nonet.rules.vectors import vector

NOW = datetime(2026, 5, 1, 12, 1, 30, tzinfo=UTC)
MINUTE = datetime(2026, 5, 1, 12, 1, tzinfo=UTC)


def test_the_throughput_begins_with_the_first_tasks() -> None:
    """Rates are of the time since the first slot that has something, and classes have theirs."""
    mail = vector([90], [0, 90], [90], {})
    report = vector([15, 15], [0, 0, 30], [0, 30], {})
    found = throughput_of({"Mail": {MINUTE: mail}, "Report": {MINUTE: report}}, MINUTE, NOW)
    assert (found.seconds, found.ended_rate, found.failed_rate) == (30.0, 4.0, 0.5)
    assert found.class_rates == {"Mail": 3.0, "Report": 1.0}
    assert found.wait.p50 is not None


def test_the_throughput_of_a_young_system_is_of_its_age() -> None:
    """The first slot begins before the system: that time does not count."""
    ten = vector([10], [0, 10], [10], {})
    found = throughput_of({"Mail": {MINUTE: ten}}, NOW - timedelta(seconds=5), NOW)
    assert (found.seconds, found.ended_rate) == (5.0, 2.0)


def test_without_tasks_there_is_no_throughput() -> None:
    assert throughput_of({}, NOW, NOW + timedelta(hours=1)).ended_rate == 0.0
