"""How fast tasks ended lately."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nonet.rules.figures import vector
from nonet.rules.findings.pace import pace_of

NOW = datetime(2026, 5, 1, 12, 1, 30, tzinfo=UTC)
MINUTE = datetime(2026, 5, 1, 12, 1, tzinfo=UTC)


def test_the_pace_begins_with_the_first_tasks() -> None:
    """Rates are of the time since the first slot that has something, and classes have theirs."""
    mail = vector([90, 0, 0], [0, 90], [90], {})
    report = vector([30, 15, 2], [0, 0, 30], [0, 30], {})
    found = pace_of({"Mail": {MINUTE: mail}, "Report": {MINUTE: report}}, MINUTE, NOW)
    assert (found.seconds, found.ended, found.failed) == (30.0, 4.0, 0.5)
    assert found.classes == {"Mail": 3.0, "Report": 1.0}
    assert found.wait.p50 is not None


def test_the_pace_of_a_young_system_is_of_its_age() -> None:
    """The first slot begins before the system: that time does not count."""
    ten = vector([10, 0, 0], [0, 10], [10], {})
    found = pace_of({"Mail": {MINUTE: ten}}, NOW - timedelta(seconds=5), NOW)
    assert (found.seconds, found.ended) == (5.0, 2.0)


def test_without_tasks_there_is_no_pace() -> None:
    assert pace_of({}, NOW, NOW + timedelta(hours=1)).ended == 0.0
