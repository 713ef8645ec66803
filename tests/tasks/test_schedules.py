"""Schedules against brute force over minutes and hand-made tables of clock changes.

The brute force is in `schedule_oracle`; neither it nor the tables were made with the libraries
that the schedules are built on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, cycle, islice

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tasks.schedule_oracle import (
    DAYS_OF_RRULE,
    FREQUENCIES,
    MINUTE,
    MONTHS,
    SECOND,
    WEEKDAYS,
    CronRule,
    RecurrenceRule,
    firings,
)

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

ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "America/Havana"]
# One zone for each kind of change: by an hour at night, by half an hour, by an hour at midnight.
CHANGING = ["Europe/Zurich", "Australia/Lord_Howe", "America/Havana"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def answers(schedule: TaskScheduleBase, after: datetime, until: datetime) -> Iterator[datetime]:
    """What a schedule says, asked again and again."""
    moment = schedule.next_occurrence(after)
    while moment is not None and moment <= until:
        yield moment
        moment = schedule.next_occurrence(moment)


CRONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 * * * *",
    "0 */6 * * *",
    "0 */1 * * *",
    "5 0-23 * * *",
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
    "1-1 2-2/3 * mar-mar,4,OCT-nov sun-sun",
    "*/25 1 */2 * mon",
    "0 22-2/2 * nov-apr sat-mon",
    "10/20 2/12 * * 3/2,7-1",
    "30 1 * Feb,Oct fri-sun",
]
CHANGES = {  # a few days around the changes of the clocks
    "UTC": [],
    "Europe/Zurich": ["2025-03-29T12:00", "2025-10-25T12:00"],
    "America/New_York": ["2025-03-08T12:00", "2025-11-01T12:00"],
    "Australia/Lord_Howe": ["2025-04-05T00:00", "2025-10-04T00:00"],
    "America/Havana": ["2025-03-08T12:00", "2025-11-01T12:00"],
}
STARTS = [*chain(*CHANGES.values()), "2024-02-28T00:00", "2024-12-31T03:00"]


def _agree(
    schedule: TaskScheduleBase, expected: list[datetime], after: datetime, until: datetime
) -> None:
    """A schedule gives the expected firings one after the other, and from any point between."""
    assert list(answers(schedule, after, until)) == expected
    asked = {after, *expected}
    for minutes in range(0, (until - after) // MINUTE, 41):
        moment = after + minutes * MINUTE
        if moment in asked:
            continue
        coming = next((instant for instant in expected if instant > moment), None)
        answer = schedule.next_occurrence(moment)
        assert answer == coming or (coming is None and not (answer and answer <= until)), moment


@pytest.mark.parametrize("zone", CHANGING)
@pytest.mark.parametrize("expression", CRONS)
def test_cron_fires_when_brute_force_over_minutes_says(expression: str, zone: str) -> None:
    """A cron fires at exactly the minutes that looking at every minute finds."""
    schedule, rule = CronSchedule(expression, zone), CronRule(expression)
    for start in [*CHANGES[zone], *STARTS[-2:]]:  # and a leap day, and the year's end
        after, until = at(start), at(start) + timedelta(hours=30)
        _agree(schedule, firings(rule, zone, after, until), after, until)


RRULES = [
    "FREQ=MINUTELY",
    "FREQ=MINUTELY;INTERVAL=20",
    "FREQ=MINUTELY;INTERVAL=45;BYDAY=SU",
    "FREQ=MINUTELY;INTERVAL=90",
    "FREQ=MINUTELY;BYHOUR=2;BYMINUTE=0,30,59",
    "FREQ=HOURLY;BYMINUTE=30",
    "FREQ=HOURLY;INTERVAL=2",
    "FREQ=HOURLY;INTERVAL=2;BYHOUR=" + ",".join(map(str, range(24))),
    "FREQ=HOURLY;BYMINUTE=10,20,50;BYSETPOS=-1",
    "FREQ=DAILY;BYHOUR=2;BYMINUTE=30",
    "FREQ=DAILY;INTERVAL=3;BYHOUR=2",
    "FREQ=DAILY;BYHOUR=" + ",".join(map(str, range(24))),
    "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=0,15;BYSETPOS=3,-2",
    "FREQ=WEEKLY",
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,SA;BYHOUR=1;WKST=SU",
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,MO;BYHOUR=2",
    "FREQ=WEEKLY;BYMONTH=3,4,10,11;BYDAY=SU,SA;BYSETPOS=-1;BYHOUR=2",
    "FREQ=MONTHLY",
    "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=17",
    "FREQ=MONTHLY;INTERVAL=7;BYMONTHDAY=-1",
    "FREQ=MONTHLY;BYDAY=SU;BYMONTHDAY=1,2,3,4,5,6,7,26;BYHOUR=2",
    "FREQ=YEARLY;BYMONTH=3,10;BYMONTHDAY=30,26",
    "FREQ=YEARLY;BYDAY=1SU,-1FR;BYHOUR=1",
    "FREQ=YEARLY;BYDAY=10SA,SU,-2TU;BYHOUR=1",
    "FREQ=MONTHLY;BYDAY=SA,2SU,-1SU;BYHOUR=2",
    "FREQ=YEARLY;BYMONTH=3,4,10,11;BYDAY=1SU,2SU,-1SU;BYHOUR=1,2;BYMINUTE=30",
    "FREQ=YEARLY;BYYEARDAY=1,60,-1,-66;BYHOUR=23",
    "FREQ=YEARLY;BYWEEKNO=1,9,13,-1;BYHOUR=4",
    "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYDAY=TH,FR;BYSETPOS=-1",
]


@pytest.mark.parametrize("zone", CHANGING)
@pytest.mark.parametrize("text", RRULES)
def test_rrule_fires_when_brute_force_over_minutes_says(text: str, zone: str) -> None:
    """An RRULE fires at exactly the minutes that looking at every minute finds."""
    schedule, rule = RRuleSchedule(text, zone), RecurrenceRule(text)
    for start in [*CHANGES[zone], *STARTS[-2:]]:  # and a leap day, and the year's end
        after, until = at(start), at(start) + timedelta(hours=30)
        _agree(schedule, firings(rule, zone, after, until), after, until)


FINE_CHANGES = {
    "Europe/Zurich": ["2025-03-29T23:30", "2025-10-25T23:30"],
    "Australia/Lord_Howe": ["2025-10-04T14:00", "2025-04-05T13:30"],
}


@pytest.mark.parametrize("zone", FINE_CHANGES)
@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;INTERVAL=23",
        "FREQ=SECONDLY;INTERVAL=5000",
        "FREQ=SECONDLY;BYHOUR=2;BYMINUTE=15;BYSECOND=0,59",
        "FREQ=MINUTELY;INTERVAL=13;BYSECOND=30",
    ],
)
def test_rrule_fires_when_brute_force_over_seconds_says(text: str, zone: str) -> None:
    """The same for rules in seconds, over the hours in which the clocks change."""
    schedule, rule = RRuleSchedule(text, zone), RecurrenceRule(text)
    for start in FINE_CHANGES[zone]:
        after, until = at(start), at(start) + timedelta(hours=3)
        found = list(answers(schedule, after, until))
        assert found == firings(rule, zone, after, until, SECOND), start


LONG_RUNS = [
    ("0 0 29 2 *", ""),
    ("15 3 31 */2 fri", ""),
    ("45 23 31 12 *", ""),
    ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13;BYHOUR=13", ""),
    ("FREQ=MONTHLY;BYHOUR=2;BYMINUTE=30", "2019-12-31T08:00"),
    ("FREQ=MONTHLY;INTERVAL=5", "1999-08-30T01:59"),
    ("FREQ=YEARLY", "2020-02-29T02:30"),
    ("FREQ=YEARLY;INTERVAL=3;BYWEEKNO=53,1;BYDAY=MO,TH", "2001-01-28T12:00"),
    ("FREQ=WEEKLY;INTERVAL=3;WKST=WE;BYDAY=TU,WE", "2020-12-30T02:00"),
    ("FREQ=DAILY;INTERVAL=17", "2011-11-11T02:30"),
    ("FREQ=HOURLY;INTERVAL=31;BYMONTH=3,10", "2011-11-11T02:30"),
]


@pytest.mark.parametrize(
    ("text", "anchor", "zone"),
    [(*rule, zone) for rule, zone in zip(LONG_RUNS, cycle(CHANGING[:2]), strict=False)],
)
def test_nothing_is_lost_or_made_up_in_years(text: str, anchor: str, zone: str) -> None:
    """Rare dates, month ends, leap days, weeks across years and far anchors, over years."""
    after, until = at("2023-12-20T00:00"), at("2025-04-30T23:59")
    found = list(answers(_schedule(text, anchor, zone), after, until))
    assert found == firings(_rule(text, anchor), zone, after, until)


def _schedule(text: str, anchor: str, zone: str) -> TaskScheduleBase:
    if not text.startswith("FREQ"):
        return CronSchedule(text, zone)
    return RRuleSchedule(f"DTSTART:{anchor}:00\nRRULE:{text}" if anchor else text, zone)


def _rule(text: str, anchor: str) -> CronRule | RecurrenceRule:
    if not text.startswith("FREQ"):
        return CronRule(text)
    return RecurrenceRule(text, *([datetime.fromisoformat(anchor)] if anchor else []))


def _numbers(low: int, high: int, most: int = 3) -> st.SearchStrategy[str]:
    numbers = st.lists(st.integers(low, high), min_size=1, max_size=most)
    return numbers.map(lambda found: ",".join(map(str, found)))


def _signed(high: int, most: int = 3) -> st.SearchStrategy[str]:
    numbers = st.lists(st.integers(1, high), min_size=1, max_size=most)
    return st.tuples(numbers, st.sampled_from(["", "-"])).map(
        lambda found: ",".join(f"{found[1]}{number}" for number in found[0])
    )


@st.composite
def _fields(draw: st.DrawFn, low: int, high: int, words: Sequence[str] = ()) -> str:
    """Any cron field: lists, ranges that may go round, steps, words."""

    def number() -> str:
        value = draw(st.integers(low, high))
        return words[value - low] if words and draw(st.booleans()) else str(value)

    def item() -> str:
        span = draw(st.sampled_from(["*", "one", "one", "range"]))
        text = {"*": "*", "one": number(), "range": f"{number()}-{number()}"}[span]
        return text + (f"/{draw(st.integers(1, high))}" if draw(st.booleans()) else "")

    return draw(st.sampled_from(["*", ",".join(item() for _ in range(draw(st.integers(1, 3))))]))


@st.composite
def _crons(draw: st.DrawFn) -> str:
    hours = st.one_of(st.sampled_from(["*", "2", "0", "1-3"]), _fields(0, 23))
    return " ".join(
        draw(field)
        for field in (
            _numbers(0, 59),
            hours,
            _fields(1, 31),
            _fields(1, 12, MONTHS),
            _fields(0, 6, WEEKDAYS),
        )
    )


@st.composite
def _rrules(draw: st.DrawFn) -> str:
    """Any RRULE that RFC 5545 allows, but for those of seconds."""
    frequency = draw(st.sampled_from(FREQUENCIES[:-1]))
    parts = {"FREQ": frequency}

    def maybe(name: str, values: st.SearchStrategy[str], unless: str = "") -> None:
        if frequency not in unless and draw(st.integers(0, 2)) == 0:
            parts[name] = draw(values)

    maybe("INTERVAL", st.sampled_from(["1", "2", "3", "7", "45", "90"]))
    maybe("BYMONTH", _numbers(1, 12))
    maybe("BYMONTHDAY", _signed(31), "WEEKLY")
    maybe("BYYEARDAY", _signed(366), "MONTHLY WEEKLY DAILY")
    maybe("BYWEEKNO", _signed(53), "MONTHLY WEEKLY DAILY HOURLY MINUTELY")
    numbered = frequency in ("YEARLY", "MONTHLY") and "BYWEEKNO" not in parts
    number = st.sampled_from(["", "1", "2", "-1", "-2"] if numbered else [""])
    day = st.tuples(number, st.sampled_from(DAYS_OF_RRULE)).map("".join)
    maybe("BYDAY", st.lists(day, min_size=1, max_size=3).map(",".join))
    maybe("BYHOUR", st.one_of(st.sampled_from(["2", "1,2", "0"]), _numbers(0, 23)))
    maybe("BYMINUTE", _numbers(0, 59))
    maybe("WKST", st.sampled_from(DAYS_OF_RRULE))
    if any(name.startswith("BY") for name in parts):
        maybe("BYSETPOS", _signed(4, 2))
    return ";".join(f"{name}={value}" for name, value in parts.items())


ANCHORS = st.one_of(
    st.just(""),
    st.datetimes(datetime(2019, 1, 1), datetime(2025, 3, 1)).map(
        lambda moment: moment.isoformat(timespec="minutes")
    ),
)


def _agrees_with_brute_force(text: str, anchor: str, zone: str, start: str) -> None:
    """The claim of the two tests below; what is refused must not fire."""
    after, until = at(start), at(start) + timedelta(hours=30)
    expected = firings(_rule(text, anchor), zone, after, until)
    try:
        schedule = _schedule(text, anchor, zone)
    except ConfigurationError:
        assert expected == []
    else:
        _agree(schedule, expected, after, until)


ANY_RULE = given(
    st.one_of(_crons(), _rrules()), ANCHORS, st.sampled_from(ZONES), st.sampled_from(STARTS)
)


@ANY_RULE
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_rule_fires_when_brute_force_says(
    text: str, anchor: str, zone: str, start: str
) -> None:
    """Any cron or RRULE fires when brute force says, and one that is refused never would."""
    _agrees_with_brute_force(text, anchor, zone, start)


@pytest.mark.soak
@ANY_RULE
@settings(deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
def test_thousands_of_rules_fire_when_brute_force_says(
    text: str, anchor: str, zone: str, start: str
) -> None:
    """The same, for many."""
    _agrees_with_brute_force(text, anchor, zone, start)


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
    found = answers(CronSchedule(cron, zone), at(after), at("2026-01-01"))
    assert list(islice(found, len(expected))) == [at(text) for text in expected]


RULES_AT_CLOCK_CHANGES = [
    # Zurich, the same nights as above.
    (
        "Europe/Zurich",
        "FREQ=DAILY;BYHOUR=2;BYMINUTE=30",  # 02:30 is skipped: 03:00 +02 is the first instant
        "2025-03-28T12:00",
        ["2025-03-29T01:30", "2025-03-30T01:00", "2025-03-31T00:30"],
    ),
    (
        "Europe/Zurich",
        "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2",  # the night of both changes; 02:00 +02 is the first
        "2025-03-01T00:00",
        ["2025-03-30T01:00", "2025-04-27T00:00"],
    ),
    (
        "Europe/Zurich",
        "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2",
        "2025-10-01T00:00",
        ["2025-10-26T00:00", "2025-11-30T01:00"],
    ),
    (
        "Europe/Zurich",
        "FREQ=HOURLY",  # 00, 01, 03 local
        "2025-03-29T22:30",
        ["2025-03-29T23:00", "2025-03-30T00:00", "2025-03-30T01:00", "2025-03-30T02:00"],
    ),
    (
        "Europe/Zurich",
        "FREQ=HOURLY;INTERVAL=2",  # 00, 02 (once), 04 local
        "2025-10-25T21:30",
        ["2025-10-25T22:00", "2025-10-26T00:00", "2025-10-26T03:00"],
    ),
    # New York, the same nights as above.
    (
        "America/New_York",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE=15,45",  # both skipped: one firing
        "2025-01-01T00:00",
        ["2025-03-09T07:00"],
    ),
    (
        "America/New_York",
        "FREQ=DAILY;BYHOUR=1;BYMINUTE=30",
        "2025-11-01T12:00",
        ["2025-11-02T05:30", "2025-11-03T06:30"],
    ),
    (
        "America/New_York",
        "FREQ=MINUTELY;INTERVAL=40",  # 00:40, 01:20, 01:20 again, 02:00 local
        "2025-11-02T04:30",
        ["2025-11-02T04:40", "2025-11-02T05:20", "2025-11-02T06:20", "2025-11-02T07:00"],
    ),
    # Lord Howe, the same nights as above: the clocks change by half an hour.
    (
        "Australia/Lord_Howe",
        "FREQ=WEEKLY;BYDAY=SU;BYHOUR=2;BYMINUTE=15",  # skipped: 02:30 +11 is the first instant
        "2025-09-28T00:00",
        ["2025-10-04T15:30", "2025-10-11T15:15"],
    ),
    (
        "Australia/Lord_Howe",
        "FREQ=HOURLY",  # 01:00 +10:30, no 02:00, 03:00 +11
        "2025-10-04T14:00",
        ["2025-10-04T14:30", "2025-10-04T16:00"],
    ),
    (
        "Australia/Lord_Howe",
        "FREQ=WEEKLY;BYDAY=SU;BYHOUR=1;BYMINUTE=0,45",  # 01:45 comes twice, 01:00 once
        "2025-04-05T00:00",
        ["2025-04-05T14:00", "2025-04-05T14:45", "2025-04-12T14:30", "2025-04-12T15:15"],
    ),
    (
        "Australia/Lord_Howe",
        "FREQ=MINUTELY;INTERVAL=30",  # 01:30 +11, then 01:30 +10:30
        "2025-04-05T14:15",
        ["2025-04-05T14:30", "2025-04-05T15:00", "2025-04-05T15:30"],
    ),
    # Apia 2011-12-30 never was: at 10:00 UTC the 29th became the 31st.
    (
        "Pacific/Apia",
        "FREQ=DAILY;BYHOUR=12",
        "2011-12-29T00:00",
        ["2011-12-29T22:00", "2011-12-30T10:00", "2011-12-30T22:00"],
    ),
]


@pytest.mark.parametrize(("zone", "rule", "after", "expected"), RULES_AT_CLOCK_CHANGES)
def test_changing_clocks_neither_lose_nor_double_a_recurrence(
    zone: str, rule: str, after: str, expected: list[str]
) -> None:
    """The same for RRULEs."""
    found = answers(RRuleSchedule(rule, zone), at(after), at("2026-01-01"))
    assert list(islice(found, len(expected))) == [at(text) for text in expected]


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
def test_an_interval_knows_no_clock_changes(
    seconds: float, after: str, expected: list[str]
) -> None:
    """An interval goes on evenly through changes of the clocks, leap days and years' ends."""
    found = answers(IntervalSeconds(seconds), at(after), at("2027-01-01"))
    assert list(islice(found, len(expected))) == [at(text) for text in expected]


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        ("@hourly", ["2024-12-31T21:00", "2024-12-31T22:00"]),
        ("@daily", ["2024-12-31T23:00", "2025-01-01T23:00"]),
        ("@midnight", ["2024-12-31T23:00", "2025-01-01T23:00"]),
        ("@weekly", ["2025-01-04T23:00", "2025-01-11T23:00"]),
        ("@monthly", ["2024-12-31T23:00", "2025-01-31T23:00"]),
        ("@yearly", ["2024-12-31T23:00", "2025-12-31T23:00"]),
        ("@annually", ["2024-12-31T23:00", "2025-12-31T23:00"]),
    ],
)
def test_an_alias_is_in_the_time_of_its_zone(alias: str, expected: list[str]) -> None:
    """An alias stands for midnights and full hours of the zone: Zurich is at +01 then."""
    found = answers(CronSchedule(alias, "Europe/Zurich"), at("2024-12-31T20:30"), at("2026-01-01"))
    assert list(islice(found, 2)) == [at(text) for text in expected]


SCHEDULES = st.one_of(
    st.builds(IntervalSecondsSchedule, st.one_of(st.integers(1, 90_000), st.floats(0.01, 1000))),
    st.builds(CronSchedule, st.sampled_from(CRONS), st.sampled_from(ZONES)),
    st.builds(RRuleSchedule, st.sampled_from(RRULES), st.sampled_from(ZONES)),
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
    assert list(answers(schedule, at("2020-01-01"), at("2030-01-01"))) == [
        at(text) for text in expected
    ]
    assert schedule.next_occurrence(at(expected[-1])) is None
    assert schedule.next_occurrence(at("2029-01-01")) is None


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
def test_far_anchors_and_rare_dates_cost_nothing(schedule: TaskScheduleBase) -> None:
    """A rule answers without walking through the years, so that it holds up no other entry."""
    best = 1.0
    for year in range(2090, 2097):  # eight years without a leap day follow
        started = time.process_time()
        schedule.next_occurrence(at(f"{year}-03-01"))
        best = min(best, time.process_time() - started)
    assert best < 0.05  # walking takes seconds


@pytest.mark.parametrize(
    "rule",
    [
        "DTSTART:20250101T000000 FREQ=DAILY;COUNT=10000",
        "DTSTART:20250101T000000 FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;COUNT=10000",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=HOURLY;INTERVAL=84;BYDAY=TU",
        "FREQ=MINUTELY;BYMINUTE=3;BYSETPOS=2",
    ],
)
def test_no_rule_takes_long_to_load(rule: str) -> None:
    """Neither a long count nor a date that never comes stops the scheduler while it is loaded."""
    started = time.perf_counter()
    with suppress(ConfigurationError):
        RRuleSchedule(rule)
    assert time.perf_counter() - started < 10  # walking to the year 9999 takes much longer


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: CronSchedule("0 0 30 2 *"), "no date matches"),
        (lambda: CronSchedule("0 0 31 4,6 *"), "no date matches"),
        (lambda: CronSchedule("* * * * * *"), "6 fields instead of 5"),
        (lambda: CronSchedule("* * * *"), "4 fields"),
        (lambda: CronSchedule(""), "0 fields"),
        (lambda: CronSchedule("@reboot"), "cron expression '@reboot' is an unknown alias"),
        (lambda: CronSchedule("R * * * *"), "'r' is not understood in the minute"),
        (lambda: CronSchedule("H H * * *"), "'h' is not understood"),
        (lambda: CronSchedule("0 0 L * *"), "use RRuleSchedule"),
        (lambda: CronSchedule("0 0 * * 5#2"), "'#' is not understood in the day of week"),
        (lambda: CronSchedule("0 25 * * *"), "25 is out of range in the hour (0 to 23)"),
        (lambda: CronSchedule("*/70 * * * *"), "a step of 70 does not fit into the minute"),
        (lambda: CronSchedule("*/0 * * * *"), "a step of 0 does not fit into the minute"),
        (lambda: CronSchedule("0 0 0 * *"), "0 is out of range in the day of month (1 to 31)"),
        (lambda: CronSchedule("0 0 * 13 *"), "13 is out of range in the month (1 to 12)"),
        (lambda: CronSchedule("0 0 * * 8"), "8 is out of range in the day of week (0 to 6)"),
        (lambda: CronSchedule("0 0 * mon *"), "'mon' is not understood in the month"),
        (lambda: CronSchedule("0 0 * * feb"), "'feb' is not understood in the day of week"),
        (lambda: CronSchedule("0 0 1,,2 * *"), "'' is not understood in the day of month"),
        (lambda: CronSchedule("0 -1 * * *"), "'-1' is not understood in the hour"),
        (lambda: CronSchedule("0 *-5 * * *"), "'*-5' is not understood in the hour"),
        (lambda: CronSchedule("0 1-2-3 * * *"), "'1-2-3' is not understood in the hour"),
        (lambda: CronSchedule("0 ? * * *"), "'?' is not understood in the hour"),
        (lambda: CronSchedule("0 0 15W * *"), "'w' is not understood in the day of month"),
        (lambda: CronSchedule("@every 5m"), "unknown alias, known are @hourly"),
        (lambda: CronSchedule(5), "cron expression 5 is not a text"),  # type: ignore[arg-type]
        (lambda: CronSchedule("0 0 * * *", "Europe/Zurick"), "Did you mean Europe/Zurich"),
        (lambda: CronSchedule("0 0 * * *", "Europe"), "unknown time zone 'Europe'"),
        (lambda: CronSchedule("0 0 * * *", "../etc/passwd"), "unknown time zone"),
        (lambda: RRuleSchedule("FREQ=DAILY;COUNT=3"), "COUNT needs a DTSTART"),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=YEARLY;INTERVAL=4;BYMONTHDAY=29;BYMONTH=2"), "no date"),
        (lambda: RRuleSchedule("FREQ=HOURLY;INTERVAL=2;BYHOUR=1"), "Invalid rrule byxxx"),
        (lambda: RRuleSchedule("FREQ=DAILY;INTERVAL=14;BYDAY=TU"), "no step falls on TU"),
        (lambda: RRuleSchedule("FREQ=MINUTELY;BYMINUTE=3;BYSETPOS=2"), "BYSETPOS exceeds the 1"),
        (lambda: RRuleSchedule("FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=-3"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=MONTHLY;BYMONTHDAY=1,2;BYSETPOS=3"), "no date matches"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYSETPOS=1"), "BYSETPOS needs another BY… part"),
        (lambda: RRuleSchedule("FREQ=MONTHLY;BYWEEKNO=1"), "BYWEEKNO has no meaning with"),
        (lambda: RRuleSchedule("FREQ=DAILY;BYYEARDAY=1"), "BYYEARDAY has no meaning with"),
        (lambda: RRuleSchedule("FREQ=WEEKLY;BYMONTHDAY=1"), "BYMONTHDAY has no meaning with"),
        (lambda: RRuleSchedule("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO"), "a numbered BYDAY"),
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
        (lambda: RRuleSchedule("FREQ=DAILY\nEXDATE:20250101T000000"), "only one DTSTART line"),
        (lambda: RRuleSchedule(""), "it needs FREQ"),
        (
            lambda: RRuleSchedule("DTSTART;TZID=Asia/Tokyo:20250101\nFREQ=DAILY", "Europe/Zurich"),
            "TZID Asia/Tokyo contradicts",
        ),
        (
            lambda: RRuleSchedule("DTSTART:20250101\nFREQ=DAILY;COUNT=2;UNTIL=20260101"),
            "exclude each other",
        ),
        (lambda: IntervalSeconds(0), "must be between"),
        (lambda: IntervalSeconds(-1), "must be between"),
        (lambda: IntervalSeconds(float("nan")), "must be between"),
        (lambda: IntervalSeconds(float("inf")), "must be between"),
        (lambda: IntervalSeconds(16**6000), "must be between"),
        (lambda: IntervalSeconds(-(16**6000)), "must be between"),
        (lambda: IntervalSeconds(True), "must be a number of seconds, not True"),
        (lambda: build_schedule("CronShedule", "@daily"), "Did you mean CronSchedule"),
        (lambda: build_schedule("CronSchedule", 5), "must be a text, not 5"),
        (
            lambda: build_schedule("IntervalSeconds", "3600"),
            "a number of seconds, not '3600'",
        ),
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
    with pytest.raises(ConfigurationError, match="not a datetime"):
        next_after(Asked("noon"), noon)
    with pytest.raises(ConfigurationError, match="not later"):
        next_after(Stuck(), noon)
