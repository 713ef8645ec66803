"""Schedules against hand-made tables of clock changes and recorded firings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules import (
    CronSchedule,
    IntervalSeconds,
    IntervalSecondsSchedule,
    RRuleSchedule,
    TaskScheduleBase,
    build_schedule,
    next_after,
)

# When it is asked, and what it answers from then on; None: never again.
Recorded = tuple[TaskScheduleBase, datetime, list[datetime | None]]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def recorded(file: str, cls: Callable[[str, str], TaskScheduleBase]) -> Iterator[Recorded]:
    for line in Path(__file__).with_name(file).read_text().splitlines():
        if not line.startswith("#"):
            text, zone, after, instants = line.split(" | ")
            found = [None if text == "end" else at(text) for text in instants.split()]
            yield cls(text, zone), at(after), found


RECORDED = [*recorded("cron_cases.txt", CronSchedule), *recorded("rrule_cases.txt", RRuleSchedule)]


def test_schedules_fire_as_recorded() -> None:
    """A skipped local time fires at the first valid instant, a repeated one once."""
    for schedule, after, expected in RECORDED:
        for moment in expected:
            found = schedule.next_occurrence(after)
            assert found == moment, (schedule, after)
            after = found or after


@pytest.mark.parametrize(
    ("seconds", "after", "expected"),
    [
        # The nights of Zurich, New York and Lord Howe, spring and autumn: an interval has no clock.
        (1800, "2025-03-30T00:40", ["2025-03-30T01:00", "2025-03-30T01:30", "2025-03-30T02:00"]),
        (3600, "2025-10-26T00:00", ["2025-10-26T01:00", "2025-10-26T02:00", "2025-10-26T03:00"]),
        (7200, "2025-03-09T05:00", ["2025-03-09T06:00", "2025-03-09T08:00", "2025-03-09T10:00"]),
        (86400, "2025-11-01T12:00", ["2025-11-02T00:00", "2025-11-03T00:00"]),
        (2700, "2025-10-04T15:00", ["2025-10-04T15:45", "2025-10-04T16:30"]),
        (1800, "2025-04-05T14:59", ["2025-04-05T15:00", "2025-04-05T15:30"]),
        # 1970-01-01 was a Thursday, and a week is no longer when a year has 366 days.
        (604800, "2024-02-23T00:00", ["2024-02-29T00:00", "2024-03-07T00:00"]),
        (0.25, "2025-12-31T23:59:59.6", ["2025-12-31T23:59:59.75", "2026-01-01T00:00"]),
    ],
)
def test_an_interval_ignores_clock_changes(seconds: float, after: str, expected: list[str]) -> None:
    for before, text in pairwise([after, *expected]):
        assert IntervalSeconds(seconds).next_occurrence(at(before)) == at(text)


SCHEDULES = st.one_of(
    st.builds(IntervalSecondsSchedule, st.one_of(st.integers(1, 90_000), st.floats(0.01, 1000))),
    st.sampled_from([schedule for schedule, _, answers in RECORDED if answers[-1]]),
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(SCHEDULES, MOMENTS, st.floats(0, 1))
@example(RRuleSchedule("FREQ=MINUTELY", "Europe/Zurich"), at("2025-10-26T00:59:59.5"), 0.5)
def test_nothing_lies_between_two_consecutive_occurrences(
    schedule: TaskScheduleBase, after: datetime, share: float
) -> None:
    """The next occurrence is strictly later, and asking from any point before it finds it too."""
    first = schedule.next_occurrence(after)
    assert first is not None and first > after
    between = after + (first - after) * share
    if between < first:
        assert schedule.next_occurrence(between) == first
    assert schedule.next_occurrence(first - timedelta(microseconds=1)) == first


@given(st.floats(0.001, 1e6), MOMENTS)
def test_an_interval_stays_on_the_grid_of_the_epoch(seconds: float, after: datetime) -> None:
    schedule = IntervalSeconds(seconds)
    found = schedule.next_occurrence(after)
    assert found is not None
    assert (found - datetime(1970, 1, 1, tzinfo=UTC)) % schedule.interval == timedelta()
    assert after < found <= after + schedule.interval
    assert schedule.count(after, found) == 1
    assert schedule.count(after, after + 10 * schedule.interval) == 10


@pytest.mark.soak
@pytest.mark.parametrize(
    "schedule",
    [
        CronSchedule("0 0 29 2 *", "Europe/Zurich"),
        CronSchedule("59 23 31 12 *", "Europe/Zurich"),
        RRuleSchedule("FREQ=SECONDLY;INTERVAL=23", "Europe/Zurich"),
        RRuleSchedule("FREQ=MINUTELY;BYHOUR=3", "Europe/Zurich"),
        RRuleSchedule("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", "Europe/Zurich"),
        RRuleSchedule("FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1,100", "Europe/Zurich"),
        RRuleSchedule("DTSTART:19700131T000000\nRRULE:FREQ=MONTHLY", "Europe/Zurich"),
        RRuleSchedule("DTSTART:19720229T000000\nRRULE:FREQ=YEARLY", "Europe/Zurich"),
    ],
    ids=str,
)
def test_an_occurrence_is_found_without_walking_through_the_years(
    schedule: TaskScheduleBase,
) -> None:
    best = 1.0
    for year in range(2090, 2097):  # eight years without a leap day follow
        started = time.process_time()
        schedule.next_occurrence(at(f"{year}-03-01"))
        best = min(best, time.process_time() - started)
    assert best < 0.05  # walking takes seconds


@pytest.mark.soak
@pytest.mark.parametrize(
    "rule",
    [
        "DTSTART:20250101T000000 FREQ=DAILY;COUNT=10000",
        "DTSTART:20250101T000000 FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;COUNT=10000",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=HOURLY;INTERVAL=84;BYDAY=TU",
    ],
)
def test_a_rule_is_loaded_without_walking_to_its_end(rule: str) -> None:
    started = time.process_time()
    with suppress(ConfigurationError):
        RRuleSchedule(rule)
    assert time.process_time() - started < 10  # walking to the year 9999 takes much longer


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: CronSchedule("0 0 30 2 *"), "no date matches"),
        (lambda: CronSchedule("* * * * * *"), "6 fields instead of 5"),
        (lambda: CronSchedule("@reboot"), "cron expression '@reboot' is an unknown alias"),
        (lambda: CronSchedule("R * * * *"), "'r' in the minute means any value; write the number"),
        (lambda: CronSchedule("0 0 13 * 5#2"), "cannot be combined with the other day field; use"),
        (lambda: CronSchedule("0 0 * * 1,5#2"), "'1,5#2' is not valid as day of week"),
        (lambda: CronSchedule("0 0 * * 5#6"), "'5#6' is not valid as day of week"),
        (lambda: CronSchedule("0 25 * * *"), "'25' is not valid as hour (0 to 23)"),
        (lambda: CronSchedule("*/70 * * * *"), "a step of 70 does not fit into the minute"),
        (lambda: CronSchedule("*/0 * * * *"), "a step of 0 does not fit into the minute"),
        (lambda: CronSchedule("0 0 0 * *"), "'0' is not valid as day of month (1 to 31)"),
        (lambda: CronSchedule("0 0 * * 8"), "'8' is not valid as day of week (0 to 6)"),
        (lambda: CronSchedule("0 0 * mon *"), "'mon' is not valid as month"),
        (lambda: CronSchedule("0 0 1,,2 * *"), "'1,,2' is not valid as day of month"),
        (lambda: CronSchedule("5-1 * * * *"), "'5-1' runs backwards; write two ranges"),
        (lambda: CronSchedule("0 1* * * *"), "'1*' is not valid as hour"),
        (lambda: CronSchedule("0 ? * * *"), "'?' is not valid as hour"),
        (lambda: CronSchedule(5), "cron expression 5 is not a text"),  # type: ignore[arg-type]
        (lambda: CronSchedule("0 0 * * *", "Europe/Zurick"), "Did you mean Europe/Zurich"),
        (lambda: CronSchedule("0 0 * * *", "Europe"), "unknown time zone 'Europe'"),
        (lambda: CronSchedule("0 0 * * *", "../etc/passwd"), "unknown time zone"),
        (lambda: RRuleSchedule("FREQ=DAILY;COUNT=3"), "COUNT needs a DTSTART"),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=YEARLY;INTERVAL=4;BYMONTHDAY=29;BYMONTH=2"), "no date"),
        (lambda: RRuleSchedule("FREQ=HOURLY;INTERVAL=2;BYHOUR=1"), "Invalid rrule byxxx"),
        (
            lambda: RRuleSchedule("FREQ=MINUTELY;BYMINUTE=3;BYSETPOS=2"),
            "BYSETPOS is not supported with",
        ),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=1,2;BYSETPOS=-3"), "no date"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYSETPOS=1"), "BYSETPOS needs another BY… part"),
        (lambda: RRuleSchedule("FREQ=MONTHLY;BYWEEKNO=1"), "BYWEEKNO is not supported with"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYYEARDAY=1"), "BYYEARDAY is not supported with"),
        (lambda: RRuleSchedule("FREQ=WEEKLY;BYMONTHDAY=1"), "BYMONTHDAY is not supported with"),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO"), "a numbered BYDAY"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYHOUR=25"), "BYHOUR cannot be '25'"),
        (lambda: RRuleSchedule("FREQ=DAILY;INTERVAL=0"), "INTERVAL cannot be '0'"),
        (lambda: RRuleSchedule("FREQ=FORTNIGHTLY"), "FREQ cannot be 'FORTNIGHTLY'"),
        (lambda: RRuleSchedule("BYHOUR=3"), "it needs FREQ"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYHUOR=3"), "Did you mean BYHOUR"),
        (lambda: RRuleSchedule("FREQ=DAILY;FREQ=DAILY"), "FREQ is given twice"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYDAY=2MO"), "a numbered BYDAY has no meaning"),
        (lambda: RRuleSchedule("FREQ=DAILY;UNTIL=soon"), "Invalid isoformat"),
        (lambda: RRuleSchedule("FREQ=DAILY\nEXDATE:20250101T000000"), "only one DTSTART line"),
        (
            lambda: RRuleSchedule("DTSTART;TZID=Asia/Tokyo:20250101\nFREQ=DAILY", "Europe/Zurich"),
            "TZID Asia/Tokyo contradicts",
        ),
        (
            lambda: RRuleSchedule("DTSTART:20250101\nFREQ=DAILY;COUNT=2;UNTIL=20260101"),
            "exclude each other",
        ),
        (lambda: IntervalSeconds(0), "must be between"),
        (lambda: IntervalSeconds(float("nan")), "must be between"),
        (lambda: IntervalSeconds(16**6000), "must be between"),
        (lambda: IntervalSeconds(True), "must be a number of seconds, not True"),
        (lambda: build_schedule("CronShedule", "@daily"), "Did you mean CronSchedule"),
        (lambda: build_schedule("CronSchedule", 5), "must be a text, not 5"),
        (lambda: build_schedule("IntervalSeconds", "3600"), "a number of seconds, not '3600'"),
        (lambda: build_schedule("IntervalSeconds", 60, "Europe/Zurich"), "takes no timezone"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_when_built(
    build: Callable[[], TaskScheduleBase], reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build()
    assert reason in str(refused.value)


def test_equal_schedules_hash_alike_and_have_a_repr() -> None:
    one = build_schedule("CronSchedule", "@daily", "Europe/Zurich")
    assert one == CronSchedule("@daily", "Europe/Zurich") != CronSchedule("@daily")
    assert len({one, CronSchedule("@daily", "Europe/Zurich"), IntervalSeconds(5)}) == 2
    assert repr(one) == "CronSchedule(expression='@daily', timezone='Europe/Zurich')"
    assert build_schedule("RRuleSchedule", "FREQ=DAILY") == RRuleSchedule("FREQ=DAILY")
    assert build_schedule("IntervalSeconds", 5) == IntervalSecondsSchedule(5.0)


def test_the_next_occurrence_defaults_to_now() -> None:
    found = IntervalSeconds(3600).next_occurrence()
    assert found is not None
    assert timedelta() < found - datetime.now(UTC) <= timedelta(hours=1)
    with pytest.raises(ValueError, match="aware"):
        CronSchedule("@daily").next_occurrence(datetime(2025, 1, 1))


class Asked(TaskScheduleBase):
    """An author's schedule as in the decision record: no argument."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def next_occurrence(self) -> datetime:  # type: ignore[override]  # that is the point
        return self.answer  # type: ignore[return-value]  # nonsense too


class Stuck(TaskScheduleBase):
    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        return after


def test_an_authors_schedule_may_ignore_the_time() -> None:
    """`next_after` calls it without one, reads a naive answer as UTC and refuses nonsense."""
    noon = at("2025-01-01T12:00")
    assert next_after(Asked(noon), at("2025-01-01")) == noon
    assert next_after(Asked(noon.replace(tzinfo=None)), at("2025-01-01")) == noon
    assert next_after(Asked(None), noon) is None
    assert next_after(IntervalSeconds(60), noon) == noon + timedelta(minutes=1)
    with pytest.raises(ConfigurationError, match="not a datetime"):
        next_after(Asked("noon"), noon)
    with pytest.raises(ConfigurationError, match="not later"):
        next_after(Stuck(), noon)
