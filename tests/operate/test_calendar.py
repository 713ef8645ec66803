"""The calendar: how often a schedule occurs in each of the next hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.operate.calendar import MOST_AN_HOUR, day, following, only
from nonet.tasks.schedules.description import described

NOON = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the clocks of Zurich go forward in the next night
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)  # and back in this one


@pytest.mark.parametrize(
    ("schedule", "now", "counts"),
    [
        ("IntervalSecondsSchedule(10)", NOON, [359] + [360] * 23),
        ("IntervalSecondsSchedule(3600)", NOON + timedelta(minutes=30), [0] + [1] * 23),
        ("CronSchedule('30 2 * * *', 'Europe/Zurich')", NOON, [0] * 13 + [1] + [0] * 10),
        ("CronSchedule('30 2 * * *', 'Europe/Zurich')", AUTUMN, [0] * 12 + [1] + [0] * 11),
        ("CronSchedule('0 * * * *', 'Europe/Zurich')", AUTUMN, [0] + [1] * 23),
        (
            "RRuleSchedule('FREQ=DAILY;BYHOUR=9,17', 'UTC')",
            NOON,
            [0] * 5 + [1] + [0] * 15 + [1, 0, 0],
        ),
        ("RRuleSchedule('FREQ=WEEKLY;BYDAY=FR', 'UTC')", NOON, [0] * 24),
    ],
)
def test_the_occurrences_of_each_hour_of_utc_are_counted(
    schedule: str, now: datetime, counts: list[int]
) -> None:
    rule = described(schedule)
    assert rule is not None
    assert [cell.count for cell in day(rule, now)] == counts


@pytest.mark.parametrize(
    "rule", ["CronSchedule('* * * * *', 'UTC')", "RRuleSchedule('FREQ=SECONDLY', 'UTC')"]
)
def test_a_busy_hour_is_counted_up_to_a_limit(rule: str) -> None:
    schedule = described(rule)
    assert schedule is not None
    cells = day(schedule, NOON)
    assert all((cell.count, cell.is_more) == (MOST_AN_HOUR, True) for cell in cells)
    assert cells[5].first == cells[5].start + timedelta(0)


def test_a_schedule_of_its_author_shows_the_next_occurrence() -> None:
    assert described("FullMoon(3)") is None
    cells = only(NOON + timedelta(hours=3, minutes=7), NOON)
    assert [cell.text for cell in cells if cell.count] == [":07"]
    assert cells[3].count == 1


def test_the_following_occurrences_end_with_the_schedule() -> None:
    rule = described("RRuleSchedule('DTSTART:20260328T130000Z RRULE:FREQ=HOURLY;COUNT=3', 'UTC')")
    assert rule is not None
    assert [at.hour for at in following(rule, NOON)] == [13, 14, 15]


@pytest.mark.parametrize(
    "text",
    ["CronSchedule('x', 'UTC')", "CronSchedule(", "IntervalSecondsSchedule(__import__('os'))", ""],
)
def test_a_description_that_is_no_schedule_is_ignored(text: str) -> None:
    assert described(text) is None
