"""Schedules by brute force: every minute (or second) is looked at as it passes on the clock.

Nothing here uses the libraries that the schedules are built on. `Clock` is what a clock on the
wall of a zone shows; `CronRule` and `RecurrenceRule` say, field by field, which local times a
rule names; `firings` puts the two together by the rules of `nonet.tasks.schedules` for clocks that
change.
"""

from __future__ import annotations

from calendar import isleap, monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from itertools import product
from typing import Protocol
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
_LONGEST_CHANGE = 3 * HOUR
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
DAYS_OF_RRULE = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


class Rule(Protocol):
    """Which local times a rule names, and whether it runs in every hour of its days."""

    every_hour: bool

    def names_day(self, day: date) -> bool:
        """Whether it may name a time of this day."""

    def names(self, wall: datetime) -> bool:
        """Whether it names this local time."""


def firings(
    rule: Rule, zone: str, after: datetime, until: datetime, step: timedelta = MINUTE
) -> list[datetime]:
    """The instants in (`after`, `until`] at which a rule fires.

    A rule that runs in every hour fires whenever the clock shows a named time. Any other fires
    when the clock shows a named time or jumps over it, but not when it shows it once more.
    """
    found = []
    part = DAY if step == MINUTE else 4 * HOUR
    start = datetime(after.year, after.month, after.day, tzinfo=UTC)
    start += (after - start) // part * part
    while start <= until:
        # No zone is a day away from UTC.
        if any(rule.names_day(start.date() + near * DAY) for near in (-1, 0, 1)):
            for instant, shown, passed in _clock(zone, start, start + part, step):
                fires = rule.names(shown) if rule.every_hour else any(map(rule.names, passed))
                if fires and after < instant <= until:
                    found.append(instant)
        start += part
    return found


@cache
def _clock(
    zone: str, start: datetime, end: datetime, step: timedelta
) -> list[tuple[datetime, datetime, list[datetime]]]:
    """The instants from `start` to before `end`, what the clock shows, and which times are new.

    After a jump all that were jumped over are new; in a repeated hour none is.
    """
    where = ZoneInfo(zone)
    instant, highest = start - _LONGEST_CHANGE, datetime.min
    passing = []
    while instant < end - step:
        instant += step
        shown = instant.astimezone(where).replace(tzinfo=None, fold=0)
        passed = []
        while highest != datetime.min and highest < shown:
            highest += step
            passed.append(highest)
        highest = max(highest, shown)
        if instant >= start:
            passing.append((instant, shown, passed))
    return passing


class CronRule:
    """A cron expression of five fields."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.upper().split()
        self._minutes = _numbers(minute, range(60))
        self._hours = _numbers(hour, range(24))
        self._days = _numbers(day, range(1, 32))
        self._months = _numbers(month, range(1, 13), MONTHS)
        self._weekdays = {number % 7 for number in _numbers(weekday, range(7), WEEKDAYS)}
        self._either = not {day, weekday} & {"*", "*/1"}
        self.every_hour = len(self._hours) == 24

    def names(self, wall: datetime) -> bool:
        return (
            wall.minute in self._minutes
            and wall.hour in self._hours
            and wall.second == wall.microsecond == 0
            and self.names_day(wall)
        )

    def names_day(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return by_day or by_weekday if self._either else by_day and by_weekday


def _numbers(field: str, allowed: range, words: list[str] | None = None) -> set[int]:
    """What a cron field stands for: lists of ranges with steps, in numbers or words.

    A range that ends before it starts goes round, as a week does from Saturday to Monday.
    """
    chosen: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        value = allowed[0] if first == "*" else _number(first, allowed, words)
        end = _number(last, allowed, words) if dash else value
        if not dash and (first == "*" or step):
            end = allowed[-1]
        whole_week = words is WEEKDAYS and (value, end) == (0, 7)
        if words is WEEKDAYS:  # 7 is Sunday too
            value, end = value % 7, end % 7
        walked = [value]
        while value != end or (whole_week and len(walked) < 8):
            value = allowed[0] if value == allowed[-1] else value + 1
            walked.append(value)
        chosen |= set(walked[:: int(step or "1")])
    return chosen


def _number(text: str, allowed: range, words: list[str] | None) -> int:
    return words.index(text) + allowed[0] if words and text in words else int(text)


FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]


class RecurrenceRule:
    """An RRULE as RFC 5545 describes it: the set of a period by its BY… parts, then BYSETPOS.

    Args:
        text: ``FREQ=…;…``; COUNT and UNTIL are left to the test.
        anchor: DTSTART, local.
    """

    def __init__(self, text: str, anchor: datetime = datetime(1970, 1, 5)) -> None:
        parts = dict(part.split("=") for part in text.split(";"))
        self._anchor = anchor
        self._frequency = parts["FREQ"]
        self._interval = int(parts.get("INTERVAL", "1"))
        self._week_start = DAYS_OF_RRULE.index(parts.get("WKST", "MO"))
        self._by = {
            name: [int(item) for item in value.split(",")]
            for name, value in parts.items()
            if name.startswith("BY") and name != "BYDAY"
        }
        days = parts["BYDAY"].split(",") if "BYDAY" in parts else []
        self._by_day = [(int(item[:-2] or "0"), DAYS_OF_RRULE.index(item[-2:])) for item in days]
        self._sets: dict[int, set[datetime]] = {}
        self._days: dict[date, bool] = {}

    @cached_property
    def every_hour(self) -> bool:
        if self._finer_than("DAILY"):
            unit = {"HOURLY": HOUR, "MINUTELY": MINUTE, "SECONDLY": SECOND}[self._frequency]
            if self._interval * unit > HOUR:
                return False
            return len(set(self._by.get("BYHOUR", range(24)))) == 24
        return len(set(self._by.get("BYHOUR", ()))) == 24

    def names(self, wall: datetime) -> bool:
        if wall < self._anchor or wall.microsecond:
            return False
        if not self._is_turn(wall):
            return False
        if not self._by.get("BYSETPOS"):
            return self._fits(wall)
        key = self._index(wall)
        if key not in self._sets:
            whole = sorted({moment for moment in self._period(wall) if self._fits(moment)})
            self._sets[key] = {
                whole[place - 1 if place > 0 else place]
                for place in self._by["BYSETPOS"]
                if abs(place) <= len(whole)
            }
        return wall in self._sets[key]

    def names_day(self, day: date) -> bool:
        """Whether every BY… part about dates agrees, and an interval of days or more."""
        if not self._finer_than("DAILY") and not self._is_turn(datetime(*day.timetuple()[:3])):
            return False
        if day not in self._days:
            self._days[day] = _fits_day(
                day, self._frequency, self._by, self._by_day, self._anchor.date(), self._week_start
            )
        return self._days[day]

    def _is_turn(self, wall: datetime) -> bool:
        return (self._index(wall) - self._index(self._anchor)) % self._interval == 0

    def _finer_than(self, frequency: str) -> bool:
        return FREQUENCIES.index(self._frequency) > FREQUENCIES.index(frequency)

    def _index(self, wall: datetime) -> int:
        """The number of the period that `wall` lies in."""
        days = wall.toordinal()
        match self._frequency:
            case "YEARLY":
                return wall.year
            case "MONTHLY":
                return wall.year * 12 + wall.month
            case "WEEKLY":
                return (days - 1 - self._week_start) // 7  # day 1 of the calendar is a Monday
            case "DAILY":
                return days
            case "HOURLY":
                return days * 24 + wall.hour
            case "MINUTELY":
                return (days * 24 + wall.hour) * 60 + wall.minute
        return ((days * 24 + wall.hour) * 60 + wall.minute) * 60 + wall.second

    def _period(self, wall: datetime) -> Iterator[datetime]:
        """The times of the period of `wall` that may be in its set."""
        reach = {"YEARLY": 366, "MONTHLY": 31, "WEEKLY": 7}.get(self._frequency, 0)
        days = [wall.date() + n * DAY for n in range(-reach, reach + 1)]
        hours = [wall.hour] if self._finer_than("DAILY") else self._by.get("BYHOUR")
        minutes = [wall.minute] if self._finer_than("HOURLY") else self._by.get("BYMINUTE")
        seconds = [wall.second] if self._finer_than("MINUTELY") else self._by.get("BYSECOND")
        for day, hour, minute, second in product(
            days,
            hours or [self._anchor.hour],
            minutes or [self._anchor.minute],
            seconds or [self._anchor.second],
        ):
            moment = datetime(day.year, day.month, day.day, hour, minute, second)
            if self._index(moment) == self._index(wall):
                yield moment

    def _fits(self, wall: datetime) -> bool:
        """Whether every BY… part agrees, with what the anchor gives where there is none."""
        by, anchor = self._by, self._anchor
        given = [
            (wall.second, "BYSECOND", anchor.second, "MINUTELY"),
            (wall.minute, "BYMINUTE", anchor.minute, "HOURLY"),
            (wall.hour, "BYHOUR", anchor.hour, "DAILY"),
        ]
        for value, name, default, frequency in given:
            free = self._finer_than(frequency)
            if value not in by.get(name, [value] if free else [default]):
                return False
        return self.names_day(wall.date())


def _fits_day(
    day: date,
    frequency: str,
    by: dict[str, list[int]],
    by_day: list[tuple[int, int]],
    anchor: date,
    week_start: int,
) -> bool:
    free = not by_day and not by.keys() & {"BYMONTHDAY", "BYYEARDAY", "BYWEEKNO"}
    if free and frequency in ("YEARLY", "MONTHLY") and day.day != anchor.day:
        return False
    if free and frequency == "YEARLY" and "BYMONTH" not in by and day.month != anchor.month:
        return False
    weekly = frequency == "WEEKLY" or "BYWEEKNO" in by
    if weekly and not by_day and day.weekday() != anchor.weekday():
        return False
    place, length = _place(day, of_year=False)
    year_day, year_length = _place(day, of_year=True)
    of_year = frequency == "YEARLY" and "BYMONTH" not in by
    return (
        _among(day.month, 12, by.get("BYMONTH"))
        and _among(place, length, by.get("BYMONTHDAY"))
        and _among(year_day, year_length, by.get("BYYEARDAY"))
        and ("BYWEEKNO" not in by or _in_week(day, by["BYWEEKNO"], week_start))
        and (not by_day or any(_is_weekday(day, *item, of_year=of_year) for item in by_day))
    )


def _is_weekday(day: date, number: int, weekday: int, *, of_year: bool) -> bool:
    """Whether a date is, e.g., the second Monday, or with 0 any Monday."""
    place, length = _place(day, of_year=of_year)
    from_end = -((length - place) // 7 + 1)
    return day.weekday() == weekday and number in (0, (place - 1) // 7 + 1, from_end)


def _place(day: date, *, of_year: bool) -> tuple[int, int]:
    """Which day of its year or month a date is, and of how many."""
    if of_year:
        return day.timetuple().tm_yday, 366 if isleap(day.year) else 365
    return day.day, monthrange(day.year, day.month)[1]


def _among(value: int, length: int, wanted: list[int] | None) -> bool:
    """Whether a value is wanted; negative numbers count from the end of `length`."""
    return wanted is None or value in wanted or value - length - 1 in wanted


def _in_week(day: date, numbers: list[int], week_start: int) -> bool:
    """Whether a date lies in one of these weeks of the year that its week belongs to."""
    year = next(
        year
        for year in (day.year + 1, day.year, day.year - 1)
        if _first_week(year, week_start) <= day
    )
    first, following = _first_week(year, week_start), _first_week(year + 1, week_start)
    return _among((day - first).days // 7 + 1, (following - first).days // 7, numbers)


def _first_week(year: int, week_start: int) -> date:
    """The first day of week 1: the first week with at least four days in the year."""
    fourth = date(year, 1, 4)
    return fourth - (fourth.weekday() - week_start) % 7 * DAY
