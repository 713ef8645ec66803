"""Schedules against brute force over minutes and hand-made tables of clock changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nonet.errors import ConfigurationError
from nonet.schedules import (
    CronSchedule,
    IntervalSeconds,
    IntervalSecondsSchedule,
    RRuleSchedule,
    TaskScheduleBase,
    build_schedule,
    next_after,
)

MINUTE = timedelta(minutes=1)
ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "America/Havana"]
Matcher = Callable[[datetime], bool]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def firings(schedule: TaskScheduleBase, after: datetime, until: datetime) -> Iterator[datetime]:
    moment = schedule.next_occurrence(after)
    while moment is not None and moment <= until:
        yield moment
        moment = schedule.next_occurrence(moment)


def brute_force(
    matches: Matcher, zone: str, after: datetime, until: datetime, *, every_hour: bool
) -> list[datetime]:
    """Look at every minute as it passes; the clock's high-water mark shows jumps and repeats."""
    found = []
    local = after.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    shown = after.astimezone(UTC)
    high = max(
        (shown - k * MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None) for k in range(121)
    )
    while shown < until:
        shown += MINUTE
        local = shown.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if every_hour:
            fires = matches(local)
        else:
            fires = False
            while high < local:
                high += MINUTE
                fires = fires or matches(high)
        if fires:
            found.append(shown)
    return found


def cron_matcher(expression: str) -> Matcher:
    """A cron of lists, ranges and steps, read in the most pedestrian way."""

    def values(text: str, low: int, high: int) -> set[int]:
        chosen: set[int] = set()
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = ("*", "", "") if span == "*" else span.partition("-")
            start = low if first == "*" else int(first)
            end = high if first == "*" else int(last or first)
            chosen |= set(range(start, end + 1, int(step or 1)))
        return chosen

    minute, hour, day, month, weekday = expression.split()
    minutes, hours = values(minute, 0, 59), values(hour, 0, 23)
    days, months = values(day, 1, 31), values(month, 1, 12)
    weekdays = {number % 7 for number in values(weekday, 0, 7)}

    def matches(wall: datetime) -> bool:
        by_day, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        both_restricted = day != "*" and weekday != "*"
        return (
            wall.minute in minutes
            and wall.hour in hours
            and wall.month in months
            and (by_day or by_weekday if both_restricted else by_day and by_weekday)
        )

    return matches


CRONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 * * * *",
    "0 */6 * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "*/5 2 * * *",
    "0 0 * * *",
    "59 23 * * 0",
    "0 2 * * 7",
    "10 2 1-7 * 1",
    "0 3 30 3,10 *",
    "0 4 29 * 0-6",
    "20 0 * * 1-5",
]
CHANGES = [  # a few days around a change of the clocks somewhere, and a quiet time
    "2025-03-08T12:00",
    "2025-03-29T12:00",
    "2025-04-05T00:00",
    "2025-10-04T00:00",
    "2025-10-25T12:00",
    "2025-11-01T12:00",
    "2024-02-28T00:00",
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", CRONS)
def test_cron_fires_when_brute_force_over_minutes_says(expression: str, zone: str) -> None:
    """A cron fires at exactly the minutes that looking at every minute finds."""
    schedule = CronSchedule(expression, zone)
    for start in CHANGES:
        after = at(start)
        until = after + timedelta(hours=30)
        expected = brute_force(
            cron_matcher(expression), zone, after, until, every_hour=expression.split()[1] == "*"
        )
        assert list(firings(schedule, after, until)) == expected, start


RRULES: list[tuple[str, Matcher, bool]] = [
    ("FREQ=MINUTELY", lambda w: True, True),
    ("FREQ=MINUTELY;INTERVAL=20", lambda w: w.minute % 20 == 0, True),
    ("FREQ=HOURLY;BYMINUTE=30", lambda w: w.minute == 30, True),
    ("FREQ=HOURLY;INTERVAL=2", lambda w: w.hour % 2 == 0 and w.minute == 0, False),
    ("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", lambda w: (w.hour, w.minute) == (2, 30), False),
    (
        "FREQ=DAILY;INTERVAL=3;BYHOUR=2",
        lambda w: (w - datetime(1970, 1, 5)).days % 3 == 0 and (w.hour, w.minute) == (2, 0),
        False,
    ),
    ("FREQ=WEEKLY", lambda w: w.weekday() == 0 and (w.hour, w.minute) == (0, 0), False),
    (
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,SA;BYHOUR=1;WKST=SU",
        lambda w: (
            (w - datetime(1970, 1, 4)).days // 7 % 2 == 0
            and w.weekday() > 4
            and (w.hour, w.minute) == (1, 0)
        ),
        False,
    ),
    ("FREQ=MONTHLY", lambda w: (w.day, w.hour, w.minute) == (5, 0, 0), False),
    (
        "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2",
        lambda w: (
            w.weekday() == 6
            and (w + timedelta(days=7)).month != w.month
            and (w.hour, w.minute) == (2, 0)
        ),
        False,
    ),
    (
        "FREQ=MONTHLY;INTERVAL=7;BYMONTHDAY=-1",
        lambda w: (
            (w.year * 12 + w.month - 1970 * 12 - 1) % 7 == 0
            and (w + timedelta(days=1)).day == 1
            and (w.hour, w.minute) == (0, 0)
        ),
        False,
    ),
    (
        "FREQ=YEARLY;BYMONTH=3,10;BYMONTHDAY=30,26",
        lambda w: w.month in (3, 10) and w.day in (26, 30) and (w.hour, w.minute) == (0, 0),
        False,
    ),
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("rule", "matches", "every_hour"), RRULES, ids=[r[0] for r in RRULES])
def test_rrule_fires_when_brute_force_over_minutes_says(
    rule: str, matches: Matcher, every_hour: bool, zone: str
) -> None:
    """An RRULE fires at exactly the minutes that looking at every minute finds."""
    schedule = RRuleSchedule(rule, zone)
    for start in CHANGES:
        after = at(start)
        until = after + timedelta(hours=30)
        expected = brute_force(matches, zone, after, until, every_hour=every_hour)
        assert list(firings(schedule, after, until)) == expected, start


# Made by hand from the dates of the changes: local rule, first instant looked at, UTC firings.
CLOCK_CHANGES = [
    # Zurich 2025-03-30: 02:00 +01 becomes 03:00 +02 at 01:00 UTC.
    (
        "Europe/Zurich",
        "30 2 * * *",
        "2025-03-28T12:00",
        ["2025-03-29T01:30", "2025-03-30T01:00", "2025-03-31T00:30"],
    ),
    (
        "Europe/Zurich",
        "30 * * * *",
        "2025-03-29T23:45",
        ["2025-03-30T00:30", "2025-03-30T01:30", "2025-03-30T02:30"],
    ),
    ("Europe/Zurich", "0 3 * * *", "2025-03-29T12:00", ["2025-03-30T01:00", "2025-03-31T01:00"]),
    (
        "Europe/Zurich",
        "*/20 2 * * *",
        "2025-03-29T12:00",
        ["2025-03-30T01:00", "2025-03-31T00:00", "2025-03-31T00:20"],
    ),
    # Zurich 2025-10-26: 03:00 +02 becomes 02:00 +01 at 01:00 UTC.
    ("Europe/Zurich", "30 2 * * *", "2025-10-25T12:00", ["2025-10-26T00:30", "2025-10-27T01:30"]),
    (
        "Europe/Zurich",
        "30 * * * *",
        "2025-10-25T23:45",
        ["2025-10-26T00:30", "2025-10-26T01:30", "2025-10-26T02:30"],
    ),
    (
        "Europe/Zurich",
        "0 */6 * * *",
        "2025-10-25T20:00",
        ["2025-10-25T22:00", "2025-10-26T05:00", "2025-10-26T11:00"],
    ),
    # New York 2025-03-09: 02:00 -05 becomes 03:00 -04 at 07:00 UTC.
    (
        "America/New_York",
        "30 2 * * *",
        "2025-03-08T12:00",
        ["2025-03-09T07:00", "2025-03-10T06:30"],
    ),
    # New York 2025-11-02: 02:00 -04 becomes 01:00 -05 at 06:00 UTC.
    (
        "America/New_York",
        "30 1 * * *",
        "2025-11-01T12:00",
        ["2025-11-02T05:30", "2025-11-03T06:30"],
    ),
    (
        "America/New_York",
        "*/30 * * * *",
        "2025-11-02T05:10",
        ["2025-11-02T05:30", "2025-11-02T06:00", "2025-11-02T06:30", "2025-11-02T07:00"],
    ),
    # Lord Howe 2025-10-05: 02:00 +10:30 becomes 02:30 +11 at 2025-10-04 15:30 UTC.
    (
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2025-10-03T20:00",
        ["2025-10-04T15:30", "2025-10-05T15:15"],
    ),
    (
        "Australia/Lord_Howe",
        "45 * * * *",
        "2025-10-04T14:00",
        ["2025-10-04T14:15", "2025-10-04T15:15", "2025-10-04T15:45"],
    ),
    # Lord Howe 2025-04-06: 02:00 +11 becomes 01:30 +10:30 at 2025-04-05 15:00 UTC.
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2025-04-04T20:00",
        ["2025-04-05T14:45", "2025-04-06T15:15"],
    ),
    (
        "Australia/Lord_Howe",
        "45 * * * *",
        "2025-04-05T14:00",
        ["2025-04-05T14:45", "2025-04-05T15:15", "2025-04-05T16:15"],
    ),
]


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), CLOCK_CHANGES)
def test_changing_clocks_neither_lose_nor_double_a_firing(
    zone: str, cron: str, after: str, expected: list[str]
) -> None:
    """A skipped local time fires at the first valid instant, a repeated one once."""
    schedule = CronSchedule(cron, zone)
    found = firings(schedule, at(after), at("2026-01-01"))
    assert list(islice(found, len(expected))) == [at(text) for text in expected]


SCHEDULES = st.one_of(
    st.builds(IntervalSecondsSchedule, st.one_of(st.integers(1, 90_000), st.floats(0.01, 1000))),
    st.builds(CronSchedule, st.sampled_from(CRONS), st.sampled_from(ZONES)),
    st.builds(RRuleSchedule, st.sampled_from([r[0] for r in RRULES]), st.sampled_from(ZONES)),
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(SCHEDULES, MOMENTS, st.floats(0, 1))
@example(RRuleSchedule("FREQ=MINUTELY", "Europe/Zurich"), at("2025-10-26T00:59:59.5"), 0.5)
@settings(deadline=None, max_examples=150)
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
    """An occurrence is a whole number of intervals after the epoch, and the nearest one."""
    schedule = IntervalSeconds(seconds)
    found = schedule.next_occurrence(after)
    assert found is not None
    assert (found - datetime(1970, 1, 1, tzinfo=UTC)) % schedule.interval == timedelta()
    assert after < found <= after + schedule.interval
    assert schedule.count(after, found) == 1
    assert schedule.count(after, after + 10 * schedule.interval) == 10


RULES_WITH_ENDS = [
    (
        "DTSTART:20250101T100000\nRRULE:FREQ=DAILY;COUNT=3",
        "UTC",
        ["2025-01-01T10:00", "2025-01-02T10:00", "2025-01-03T10:00"],
    ),
    (
        "DTSTART;TZID=Europe/Zurich:20250101T100000 RRULE:FREQ=DAILY;UNTIL=20250102T090000Z",
        "UTC",
        ["2025-01-01T09:00", "2025-01-02T09:00"],
    ),
    (
        "DTSTART:20250101T100000Z\nRRULE:FREQ=DAILY;UNTIL=20250102",
        "Europe/Zurich",
        ["2025-01-01T10:00", "2025-01-02T10:00"],
    ),
    (
        "DTSTART:20241231T100000\nRRULE:FREQ=MONTHLY;COUNT=3",
        "UTC",
        ["2024-12-31T10:00", "2025-01-31T10:00", "2025-03-31T10:00"],
    ),
    (
        "DTSTART:20240229T000000\nRRULE:FREQ=YEARLY;COUNT=2",
        "UTC",
        ["2024-02-29T00:00", "2028-02-29T00:00"],
    ),
    (
        "DTSTART:20251026T010000\nRRULE:FREQ=HOURLY;COUNT=4",
        "Europe/Zurich",
        ["2025-10-25T23:00", "2025-10-26T00:00", "2025-10-26T01:00", "2025-10-26T02:00"],
    ),
    (
        "DTSTART:20250330T000000\nRRULE:FREQ=HOURLY;COUNT=4",
        "Europe/Zurich",
        ["2025-03-29T23:00", "2025-03-30T00:00", "2025-03-30T01:00", "2025-03-30T02:00"],
    ),
    (
        "DTSTART:20250330T020000\nRRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30;COUNT=2",
        "Europe/Zurich",
        ["2025-03-30T01:00", "2025-03-31T00:00"],
    ),
]


@pytest.mark.parametrize(("rule", "zone", "expected"), RULES_WITH_ENDS)
def test_a_rule_with_an_end_is_exhausted_after_it(
    rule: str, zone: str, expected: list[str]
) -> None:
    """DTSTART, COUNT, UNTIL and TZID give exactly these firings, then None."""
    schedule = RRuleSchedule(rule, zone)
    assert list(firings(schedule, at("2020-01-01"), at("2030-01-01"))) == [
        at(text) for text in expected
    ]
    assert schedule.next_occurrence(at(expected[-1])) is None
    assert schedule.next_occurrence(at("2029-01-01")) is None


@pytest.mark.parametrize("rule", ["FREQ=SECONDLY;INTERVAL=7", "FREQ=MINUTELY;BYHOUR=3"])
def test_an_anchor_in_1970_costs_nothing(rule: str) -> None:
    """A second- or minute-wise rule anchored in 1970 answers without walking through the years."""
    schedule = RRuleSchedule(rule, "Europe/Zurich")
    started = time.perf_counter()
    for day in range(20):
        schedule.next_occurrence(at("2025-06-01") + timedelta(days=day))
    assert time.perf_counter() - started < 1  # walking takes some seconds each


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: CronSchedule("0 0 30 2 *"), "no date matches"),
        (lambda: CronSchedule("0 0 31 4,6 *"), "no date matches"),
        (lambda: CronSchedule("* * * * * *"), "6 fields instead of 5"),
        (lambda: CronSchedule("* * * *"), "4 fields"),
        (lambda: CronSchedule(""), "0 fields"),
        (lambda: CronSchedule("@reboot"), "unknown cron alias '@reboot'"),
        (lambda: CronSchedule("R * * * *"), "'r' is not understood in the minute"),
        (lambda: CronSchedule("H H * * *"), "'h' is not understood"),
        (lambda: CronSchedule("0 0 L * *"), "use RRuleSchedule"),
        (lambda: CronSchedule("0 0 * * 5#2"), "'#' is not understood in the day of week"),
        (lambda: CronSchedule("0 25 * * *"), "out of range"),
        (lambda: CronSchedule("*/70 * * * *"), "a step is longer than the minute goes"),
        (lambda: CronSchedule("*/0 * * * *"), "cron expression"),
        (lambda: CronSchedule("0 0 * * *", "Europe/Zurick"), "Did you mean Europe/Zurich"),
        (lambda: CronSchedule("0 0 * * *", "Europe"), "unknown time zone 'Europe'"),
        (lambda: CronSchedule("0 0 * * *", "../etc/passwd"), "unknown time zone"),
        (lambda: RRuleSchedule("FREQ=DAILY;COUNT=3"), "COUNT needs a DTSTART"),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=HOURLY;INTERVAL=2;BYHOUR=1"), "empty set"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYHOUR=25"), "BYHOUR cannot be '25'"),
        (lambda: RRuleSchedule("FREQ=DAILY;INTERVAL=0"), "INTERVAL cannot be '0'"),
        (lambda: RRuleSchedule("FREQ=DAILY;INTERVAL=1.5"), "INTERVAL cannot be '1.5'"),
        (lambda: RRuleSchedule("FREQ=FORTNIGHTLY"), "FREQ cannot be 'FORTNIGHTLY'"),
        (lambda: RRuleSchedule("BYHOUR=3"), "it needs FREQ"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYHUOR=3"), "Did you mean BYHOUR"),
        (lambda: RRuleSchedule("FREQ=DAILY;FREQ=DAILY"), "FREQ is given twice"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYDAY=2MO"), "a numbered BYDAY has no meaning"),
        (lambda: RRuleSchedule("FREQ=DAILY;UNTIL=soon"), "Invalid isoformat"),
        (lambda: RRuleSchedule("FREQ=DAILY;UNTIL=19690101"), "UNTIL lies before"),
        (lambda: RRuleSchedule("FREQ=DAILY\nEXDATE:20250101T000000"), "is not one DTSTART"),
        (lambda: RRuleSchedule(""), "it needs FREQ"),
        (
            lambda: RRuleSchedule("DTSTART;TZID=Asia/Tokyo:20250101\nFREQ=DAILY", "Europe/Zurich"),
            "TZID Asia/Tokyo contradicts",
        ),
        (
            lambda: RRuleSchedule("DTSTART:20250101\nFREQ=DAILY;COUNT=2;UNTIL=20260101"),
            "exclude each other",
        ),
        (lambda: IntervalSeconds(0), "not between"),
        (lambda: IntervalSeconds(-1), "not between"),
        (lambda: IntervalSeconds(float("nan")), "not between"),
        (lambda: IntervalSeconds(float("inf")), "not between"),
        (lambda: IntervalSeconds(True), "a number of seconds, not True"),
        (lambda: build_schedule("CronShedule", "@daily"), "Did you mean CronSchedule"),
        (lambda: build_schedule("CronSchedule", 5), "is a text, not 5"),
        (lambda: build_schedule("IntervalSeconds", "3600"), "number of seconds, not '3600'"),
        (lambda: build_schedule("IntervalSeconds", 60, "Europe/Zurich"), "takes no timezone"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_when_built(
    build: Callable[[], TaskScheduleBase], reason: str
) -> None:
    """What would never fire or mean something else is refused at construction, with the reason."""
    with pytest.raises(ConfigurationError) as refused:
        build()
    assert reason in str(refused.value)


def test_schedules_are_values() -> None:
    """Two schedules of the same description are equal, hash alike and say what they are."""
    one = build_schedule("CronSchedule", "@daily", "Europe/Zurich")
    assert one == CronSchedule("@daily", "Europe/Zurich") != CronSchedule("@daily")
    assert len({one, CronSchedule("@daily", "Europe/Zurich"), IntervalSeconds(5)}) == 2
    assert repr(one) == "CronSchedule(expression='@daily', timezone='Europe/Zurich')"
    assert build_schedule("RRuleSchedule", "FREQ=DAILY") == RRuleSchedule("FREQ=DAILY")
    assert build_schedule("IntervalSeconds", 5) == IntervalSecondsSchedule(5.0)


def test_without_an_argument_the_present_is_meant() -> None:
    """`next_occurrence()` answers for now, and refuses a datetime without zone."""
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


def test_an_authors_schedule_may_take_no_argument() -> None:
    """`next_after` calls it without one, reads a naive answer as UTC and refuses nonsense."""
    noon = at("2025-01-01T12:00")
    assert next_after(Asked(noon), at("2025-01-01")) == noon
    assert next_after(Asked(noon.replace(tzinfo=None)), at("2025-01-01")) == noon
    assert next_after(Asked(None), noon) is None
    assert next_after(IntervalSeconds(60), noon) == noon + MINUTE
    with pytest.raises(ConfigurationError, match="no datetime"):
        next_after(Asked("noon"), noon)
    with pytest.raises(ConfigurationError, match="not later"):
        next_after(Stuck(), noon)
