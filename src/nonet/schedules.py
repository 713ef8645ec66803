"""When a periodic task runs: intervals, cron expressions and RRULEs. Pure; UTC in, UTC out.

Clocks that change (cron and RRULE with a time zone). A rule with fixed hours fires once for
each local time: at the first valid instant if the clocks skip it, on the first pass if they
repeat it. A rule for every hour follows the clock as it passes: it fires on both passes of a
repeated hour and not in a skipped one, so that it keeps firing every real hour or minute.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterError, croniter
from dateutil.rrule import rrule, rrulestr

from nonet.errors import ConfigurationError, suggestion

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)

RRULE_ANCHOR = datetime(1970, 1, 5)  # a Monday, so that FREQ=WEEKLY fires on Mondays
LONGEST_COUNT = 10_000


class TaskScheduleBase(ABC):
    """Base of schedules; subclass it to write your own.

    Example:
        class EveryFullMoon(TaskScheduleBase):
            def next_occurrence(self, after=None):
                return next_full_moon(after or datetime.now(UTC))

    A subclass may define ``next_occurrence(self)`` without `after`. It can only be asked about
    the present, so it is asked once per firing and occurrences missed meanwhile are unknown.
    """

    @abstractmethod
    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first occurrence strictly after `after`, or None when there is none.

        Args:
            after: an aware datetime; the present when omitted.
        """


@dataclass(frozen=True)
class IntervalSecondsSchedule(TaskScheduleBase):
    """Every `seconds` seconds, on a grid anchored at the Unix epoch: restarts do not shift it.

    Args:
        seconds: the interval, at least 0.001; taken as whole microseconds.

    Raises:
        ConfigurationError: `seconds` is no number in range.

    Example:
        >>> IntervalSecondsSchedule(3600).next_occurrence(datetime(2025, 1, 1, 8, 30, tzinfo=UTC))
        datetime.datetime(2025, 1, 1, 9, 0, tzinfo=datetime.timezone.utc)
    """

    seconds: float

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ConfigurationError(f"an interval is a number of seconds, not {seconds!r}")
        if not math.isfinite(seconds) or not 0.001 <= seconds <= 366 * 86400:
            raise ConfigurationError(
                f"an interval of {seconds!r} seconds is not between 0.001 and a year"
            )

    @property
    def interval(self) -> timedelta:
        """The exact interval."""
        return timedelta(seconds=self.seconds)

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first point of the grid strictly after `after` (default now)."""
        passed = (_instant(after) - EPOCH) // self.interval
        return EPOCH + (passed + 1) * self.interval

    def count(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (`after`, `until`]."""
        return (until - EPOCH) // self.interval - (after - EPOCH) // self.interval


IntervalSeconds = IntervalSecondsSchedule


class _WallClockSchedule(TaskScheduleBase):
    """What cron and RRULE share: a rule over naive local times, resolved to instants here."""

    _zone: ZoneInfo
    _every_hour: bool
    _until: datetime | None

    @abstractmethod
    def _walls(self, start: datetime) -> Iterator[datetime]:
        """The rule's naive local times after `start`, ascending."""

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first occurrence strictly after `after` (default now), in UTC."""
        moment = _instant(after)
        if self._until is not None and moment >= self._until:
            return None
        found = self._search(moment)
        return None if found and self._until and found > self._until else found

    def _search(self, moment: datetime) -> datetime | None:
        here = moment.astimezone(self._zone)
        wall = here.replace(tzinfo=None, fold=0)
        best: datetime | None = None
        # On the first pass of a repeated hour, local times before `wall` are still to come.
        start = wall - _to_be_repeated(here) if self._every_hour else wall
        for candidate in self._walls(start):
            for instant in self._instants(candidate):
                if instant > moment:
                    best = min(instant, best or instant)
            if best is not None and candidate > wall:
                break
        return best

    def _instants(self, wall: datetime) -> list[datetime]:
        """When a local time happens: once, twice, or instead of never at the end of the gap."""
        first = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        second = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        if first == second:
            return [first]
        if first > second:  # PEP 495: the order is reversed in a gap
            return [] if self._every_hour else [_end_of_gap(second, first, self._zone)]
        return [first, second] if self._every_hour else [first]


@dataclass(frozen=True)
class CronSchedule(_WallClockSchedule):
    """A cron expression in the local time of a zone.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week; lists, ranges,
            steps, English names; 0 and 7 are Sunday) or ``@hourly``, ``@daily``, ``@midnight``,
            ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``. As in POSIX, a date matches
            either day field when both are restricted.
        timezone: an IANA name; see the module about clocks that change.

    Raises:
        ConfigurationError: the expression is no such thing, or its dates do not exist.

    Example:
        >>> CronSchedule("30 2 * * *", "Europe/Zurich").next_occurrence(
        ...     datetime(2025, 3, 30, tzinfo=UTC))      # 02:30 is skipped that night
        datetime.datetime(2025, 3, 30, 1, 0, tzinfo=datetime.timezone.utc)
    """

    expression: str
    timezone: str = "UTC"
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _every_hour: bool = field(init=False, repr=False, compare=False)
    _until = None

    def __post_init__(self) -> None:
        fields = _cron_fields(self.expression)
        try:
            hours = croniter.expand(fields)[0][1]
            croniter(fields, RRULE_ANCHOR).get_next(datetime)
        except CroniterError as error:
            reason = "no date matches" if "find next date" in str(error) else str(error)
            raise ConfigurationError(f"cron expression {self.expression!r}: {reason}") from None
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_zone", zone(self.timezone))
        object.__setattr__(self, "_every_hour", "*" in hours)

    def _walls(self, start: datetime) -> Iterator[datetime]:
        walls = croniter(self._fields, start, ret_type=datetime)
        while True:
            yield walls.get_next()


@dataclass(frozen=True)
class RRuleSchedule(_WallClockSchedule):
    """An iCalendar recurrence rule (RFC 5545) in the local time of a zone.

    Args:
        rule: ``FREQ=…;…``, optionally with ``RRULE:`` before it and a ``DTSTART`` line. Without
            DTSTART it is anchored at Monday 1970-01-05 00:00 of its zone, and COUNT (which
            would count from there) is refused. An UNTIL that is a date includes that day.
            COUNT counts firings and is at most 10,000.
        timezone: an IANA name. ``DTSTART;TZID=…`` may give it instead; a DTSTART in UTC is
            converted to it.

    Raises:
        ConfigurationError: the rule is malformed or never occurs.

    Example:
        >>> last_friday = RRuleSchedule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "Europe/Zurich")
        >>> last_friday.next_occurrence(datetime(2025, 1, 1, tzinfo=UTC))
        datetime.datetime(2025, 1, 31, 16, 0, tzinfo=datetime.timezone.utc)
    """

    rule: str
    timezone: str = "UTC"
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _every_hour: bool = field(init=False, repr=False, compare=False)
    _until: datetime | None = field(init=False, repr=False, compare=False)
    _anchor: datetime = field(init=False, repr=False, compare=False)
    _frequency: str = field(init=False, repr=False, compare=False)
    _interval: int = field(init=False, repr=False, compare=False)
    _expanded: rrule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            self._read()
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigurationError(f"recurrence rule {self.rule!r}: {error}") from None

    def _read(self) -> None:
        start, tzid, parts = _rule_parts(self.rule)
        if tzid and self.timezone not in ("UTC", tzid):
            raise ValueError(f"TZID {tzid} contradicts the timezone {self.timezone}")
        until, count = parts.pop("UNTIL", None), parts.pop("COUNT", None)
        if until and count:
            raise ValueError("UNTIL and COUNT exclude each other")
        if count and not start:
            raise ValueError("COUNT needs a DTSTART to count from")
        where = zone(tzid or self.timezone)
        anchor = _wall(start, where) if start else RRULE_ANCHOR
        keep = object.__setattr__
        keep(self, "_zone", where)
        keep(self, "_anchor", anchor)
        keep(self, "_frequency", parts["FREQ"])
        keep(self, "_interval", int(parts.get("INTERVAL", "1")))
        keep(self, "_every_hour", self._fires_every_hour(parts.get("BYHOUR")))
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        keep(self, "_expanded", cast(rrule, rrulestr(text, dtstart=anchor)))
        if next(self._walls(anchor - MICROSECOND), None) is None:
            raise ValueError("no date matches")
        end = _end(until, where) if until else self._after(int(count)) if count else None
        keep(self, "_until", end)
        if end and self.next_occurrence(anchor.replace(tzinfo=UTC) - 48 * HOUR) is None:
            raise ValueError("UNTIL lies before the first occurrence")

    def _fires_every_hour(self, hours: str | None) -> bool:
        if hours is not None:
            return len(set(hours.split(","))) == 24
        unit = _UNITS.get(self._frequency)
        return unit is not None and unit * self._interval <= HOUR

    def _after(self, count: int) -> datetime:
        """The instant of the last of `count` firings."""
        firings: list[datetime] = []
        for wall in self._walls(self._anchor - MICROSECOND):
            found = self._instants(wall)
            if found != firings[-1:]:  # local times in one gap fire once together
                firings += found
            if len(firings) >= count and len(found) == 1:  # no earlier one can follow
                break
        return sorted(firings)[:count][-1]

    def _walls(self, start: datetime) -> Iterator[datetime]:
        for wall in self._expanded.replace(dtstart=self._anchor_before(start)):
            if wall.year == MAXYEAR:  # cannot be converted between zones
                return
            if wall > start:
                yield wall

    def _anchor_before(self, start: datetime) -> datetime:
        """The anchor moved on by whole intervals: the same occurrences after `start`, found fast.

        Day, weekday and time of the anchor stay, because the rule takes what it does not say
        from them; so an anchor on the 29th to 31st, which not every month has, is not moved.
        """
        if start <= self._anchor:
            return self._anchor
        if unit := _UNITS.get(self._frequency):
            step = unit * self._interval
            return self._anchor + (start - self._anchor) // step * step
        between = (start.year - self._anchor.year) * 12 + start.month - self._anchor.month - 1
        step_months = self._interval * (12 if self._frequency == "YEARLY" else 1)
        if between < step_months or self._anchor.day > 28:
            return self._anchor
        years, month = divmod(self._anchor.month - 1 + between // step_months * step_months, 12)
        return self._anchor.replace(year=self._anchor.year + years, month=month + 1)


def takes_after(schedule: TaskScheduleBase) -> bool:
    """Whether a schedule can be asked about another time than the present."""
    return bool(inspect.signature(schedule.next_occurrence).parameters)


def next_after(schedule: TaskScheduleBase, after: datetime) -> datetime | None:
    """Ask any schedule, an author's too, for its next occurrence after `after`.

    A naive answer is read as UTC. One without `after` parameter answers for the present, and its
    answer is returned as it is.

    Raises:
        ConfigurationError: the answer is no datetime, or not later than `after`.
    """
    zero_argument = not takes_after(schedule)
    answer: object = (
        schedule.next_occurrence() if zero_argument else schedule.next_occurrence(after)
    )
    if answer is None:
        return None
    if not isinstance(answer, datetime):
        raise ConfigurationError(f"{schedule!r}: next_occurrence returned {answer!r}, no datetime")
    found = answer.replace(tzinfo=UTC) if answer.tzinfo is None else answer.astimezone(UTC)
    if found <= after and not zero_argument:
        raise ConfigurationError(
            f"{schedule!r}: next_occurrence({after}) returned {found}, which is not later"
        )
    return found


SCHEDULES: dict[str, type[TaskScheduleBase]] = {
    "IntervalSecondsSchedule": IntervalSecondsSchedule,
    "IntervalSeconds": IntervalSecondsSchedule,
    "CronSchedule": CronSchedule,
    "RRuleSchedule": RRuleSchedule,
}


def schedule_class(name: str) -> type[TaskScheduleBase]:
    """The schedule class that the configuration calls `name`.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in SCHEDULES:
        raise ConfigurationError(
            f"unknown schedule class {name!r}, known are {', '.join(SCHEDULES)}."
            + suggestion(name, SCHEDULES)
        )
    return SCHEDULES[name]


def build_schedule(
    class_name: str, arg: str | int | float, timezone: str | None = None
) -> TaskScheduleBase:
    """Build the schedule that the configuration describes.

    Args:
        class_name: one of `SCHEDULES`.
        arg: seconds of an interval, else the text of the rule.
        timezone: an IANA name, UTC when None; not for intervals, which have none.

    Raises:
        ConfigurationError: class, argument or zone is wrong.

    Example:
        >>> build_schedule("CronSchedule", "0 */6 * * *", "Europe/Zurich")
        CronSchedule(expression='0 */6 * * *', timezone='Europe/Zurich')
    """
    cls = schedule_class(class_name)
    if cls is IntervalSecondsSchedule:
        if timezone not in (None, "UTC"):
            raise ConfigurationError(f"{class_name} takes no timezone: its grid is one of UTC")
        return IntervalSecondsSchedule(cast(float, arg))  # checked by the class
    if not isinstance(arg, str):
        raise ConfigurationError(f"the argument of {class_name} is a text, not {arg!r}")
    wall_clock = cast(type[CronSchedule] | type[RRuleSchedule], cls)
    return wall_clock(arg, timezone or "UTC")


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        hint = suggestion(name, available_timezones())
        raise ConfigurationError(f"unknown time zone {name!r}.{hint}") from None


def _instant(after: datetime | None) -> datetime:
    if after is None:
        return datetime.now(UTC)
    if after.tzinfo is None:
        raise ValueError(f"next_occurrence needs an aware datetime, not {after!r}")
    return after.astimezone(UTC)


def _to_be_repeated(here: datetime) -> timedelta:
    """By how much the clocks will go back, if `here` is on the first pass of a repeated time."""
    first, second = here.replace(fold=0).utcoffset(), here.replace(fold=1).utcoffset()
    assert first is not None and second is not None  # zones always know
    return first - second if here.fold == 0 else timedelta()


def _end_of_gap(before: datetime, behind: datetime, where: ZoneInfo) -> datetime:
    """The instant at which the clocks go forward, known to lie in (`before`, `behind`]."""
    offset = behind.astimezone(where).utcoffset()

    def changed(seconds: int) -> bool:
        return (before + timedelta(seconds=seconds)).astimezone(where).utcoffset() == offset

    span = range(int((behind - before).total_seconds()))
    return before + timedelta(seconds=bisect_left(span, True, key=changed))


_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
_DAYS = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
_CRON_FIELDS: list[tuple[str, int, set[str]]] = [
    ("minute", 59, set()),
    ("hour", 23, set()),
    ("day of month", 31, set()),
    ("month", 12, _MONTHS),
    ("day of week", 7, _DAYS),
]


def _cron_fields(expression: object) -> str:
    """The five fields, checked for what croniter takes and cron does not."""
    if not isinstance(expression, str):
        raise ConfigurationError(f"a cron expression is a text, not {expression!r}")
    if expression.startswith("@") and expression not in _ALIASES:
        raise ConfigurationError(
            f"unknown cron alias {expression!r}, known are {', '.join(_ALIASES)}"
        )
    fields = _ALIASES.get(expression, expression).lower().split()
    if len(fields) != 5:
        raise ConfigurationError(
            f"cron expression {expression!r} has {len(fields)} fields instead of 5 (minute, hour,"
            " day of month, month, day of week); for seconds use IntervalSecondsSchedule"
        )
    for text, (name, highest, words) in zip(fields, _CRON_FIELDS, strict=True):
        strange = set(re.findall(r"[a-z]+|[^a-z0-9*,/-]", text)) - words
        if strange:
            raise ConfigurationError(
                f"cron expression {expression!r}: {min(strange)!r} is not understood in the"
                f" {name}; for the last or nth day use RRuleSchedule"
            )
        if any(int(step) > highest for step in re.findall(r"/(\d+)", text)):
            raise ConfigurationError(
                f"cron expression {expression!r}: a step is longer than the {name} goes"
            )
    return " ".join(fields)


_UNITS = {
    "SECONDLY": timedelta(seconds=1),
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}
_NUMBERS = {  # part: lowest, highest, whether it may count from the end
    "INTERVAL": (1, 1_000_000, False),
    "COUNT": (1, LONGEST_COUNT, False),
    "BYSECOND": (0, 59, False),
    "BYMINUTE": (0, 59, False),
    "BYHOUR": (0, 23, False),
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYSETPOS": (1, 366, True),
}
_WORDS = {
    "FREQ": "YEARLY|MONTHLY|WEEKLY|DAILY|HOURLY|MINUTELY|SECONDLY",
    "WKST": "MO|TU|WE|TH|FR|SA|SU",
    "BYDAY": r"([+-]?[1-9]\d?)?(MO|TU|WE|TH|FR|SA|SU)",
    "UNTIL": ".+",
}


def _rule_parts(rule: object) -> tuple[str | None, str | None, dict[str, str]]:
    """DTSTART, its TZID and the parts of the RRULE."""
    if not isinstance(rule, str):
        raise ValueError("a rule is a text")
    start = tzid = None
    parts: dict[str, str] = {}
    for line in rule.split():
        head, colon, value = line.partition(":")
        if not colon:
            head, value = "", line
        name, *parameters = head.split(";")
        if name.upper() == "DTSTART" and start is None:
            start = value
            tzid = _tzid(parameters)
        elif name.upper() in ("", "RRULE") and not parameters and not parts:
            parts = _checked_parts(value.upper())
        else:
            raise ValueError(f"{line!r} is not one DTSTART or RRULE line")
    if "FREQ" not in parts:
        raise ValueError("it needs FREQ=…")
    if parts["FREQ"] not in ("MONTHLY", "YEARLY") and re.search(r"\d", parts.get("BYDAY", "")):
        raise ValueError(f"a numbered BYDAY has no meaning with FREQ={parts['FREQ']}")
    return start, tzid, parts


def _tzid(parameters: list[str]) -> str | None:
    tzid = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.upper() == "TZID":
            tzid = value
        elif parameter.upper() not in ("VALUE=DATE", "VALUE=DATE-TIME"):
            raise ValueError(f"DTSTART does not take {parameter!r}")
    return tzid


def _checked_parts(text: str) -> dict[str, str]:
    """Name to value; dateutil would take numbers out of range for dates that never match."""
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, _, value = part.partition("=")
        if name in parts:
            raise ValueError(f"{name} is given twice")
        if name not in _NUMBERS and name not in _WORDS:
            known = [*_NUMBERS, *_WORDS]
            raise ValueError(f"unknown part {name!r}.{suggestion(name, known)}")
        single = name in ("FREQ", "WKST", "UNTIL", "INTERVAL", "COUNT")
        for item in [value] if single else value.split(","):
            if not _fits(name, item):
                raise ValueError(f"{name} cannot be {item!r}")
        parts[name] = value
    return parts


def _fits(name: str, item: str) -> bool:
    if name in _WORDS:
        return re.fullmatch(_WORDS[name], item) is not None
    if re.fullmatch(r"[+-]?\d{1,7}", item, re.ASCII) is None:
        return False
    lowest, highest, from_end = _NUMBERS[name]
    return lowest <= (abs(int(item)) if from_end else int(item)) <= highest


def _wall(text: str, where: ZoneInfo) -> datetime:
    """DTSTART as naive local time."""
    moment = datetime.fromisoformat(text)
    local = moment if moment.tzinfo is None else moment.astimezone(where)
    return local.replace(tzinfo=None, fold=0, microsecond=0)


def _end(text: str, where: ZoneInfo) -> datetime:
    """UNTIL as an instant, inclusive: of a date its whole day, of a repeated time both passes."""
    moment = datetime.fromisoformat(text)
    if "T" not in text:
        moment += 24 * HOUR - MICROSECOND
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=where, fold=1)
    return moment.astimezone(UTC)
