"""Recurrence rules of iCalendar (RFC 5545), based on dateutil."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, cast
from zoneinfo import ZoneInfo

from nonet.base.errors import ConfigurationError, suggestion
from nonet.tasks.schedules.schedule import MICROSECOND
from nonet.tasks.schedules.wallclock import WallClockSchedule, zone

if TYPE_CHECKING:
    from dateutil.rrule import rrule

DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
UNITS = {
    "SECONDLY": timedelta(seconds=1),
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}
HOUR = timedelta(hours=1)
RRULE_ANCHOR = datetime(1970, 1, 5)  # a Monday, so that FREQ=WEEKLY means Mondays
LONGEST_COUNT = 10_000
_CALENDAR_YEARS = 400  # the Gregorian calendar repeats, weekdays included


class _Prepared(WallClockSchedule):
    """Holds derived attributes that must not be dataclass fields, which are shown and compared."""

    _anchor: datetime
    _frequency: str
    _interval: int
    _expanded: rrule


@dataclass(frozen=True)
class RRuleSchedule(_Prepared):
    """An iCalendar recurrence rule (RFC 5545) in the local time of a zone.

    Args:
        rule: ``FREQ=…;…``, optionally after ``RRULE:`` and with a line ``DTSTART``. Without DTSTART
            the rule starts on Monday 1970-01-05 00:00 of its zone, and COUNT is refused, because it
            would count from there. An UNTIL without a time includes that day. COUNT is at most
            10,000, and its occurrences must lie within 400 years.
        timezone: an IANA name. ``DTSTART;TZID=…`` can give it instead. A DTSTART in UTC is
            converted to this zone.

    Raises:
        ConfigurationError: the rule is invalid or never occurs.

    Example:
        >>> last_friday = RRuleSchedule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "Europe/Zurich")
        >>> last_friday.next_occurrence(datetime(2025, 1, 1, tzinfo=UTC))
        datetime.datetime(2025, 1, 31, 16, 0, tzinfo=datetime.timezone.utc)
    """

    rule: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            self._read()
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigurationError(f"recurrence rule {self.rule!r}: {error}") from None

    def _read(self) -> None:
        from dateutil.rrule import rrulestr  # imported late: programs that only submit do not pay

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
        dates = [f"{name}={parts[name]}" for name in _DATES if name in parts]
        if dates and parts["FREQ"] in ("DAILY", "HOURLY", "MINUTELY", "SECONDLY"):
            # Search by years: dateutil would walk to the year 9999 by the minute.
            yearly = ";".join(["FREQ=YEARLY", *dates])
            if next(iter(rrulestr(yearly, dtstart=anchor)), None) is None:
                raise ValueError("no date matches")
        if "BYDAY" in parts:
            parts["BYDAY"] = _all_numbered(parts)
        if "BYWEEKNO" in parts:  # RFC 5545: the weekday of the start; dateutil takes all seven days
            parts.setdefault("BYDAY", DAYS[anchor.weekday()])
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        keep(self, "_expanded", cast("rrule", rrulestr(text, dtstart=anchor)))
        if next(self._first_walls(), None) is None:
            raise ValueError("no date matches")
        end = _end(until, where) if until else self._after(int(count)) if count else None
        keep(self, "_until", end)

    def _fires_every_hour(self, hours: str | None) -> bool:
        unit = UNITS.get(self._frequency, timedelta(weeks=53))
        if hours is not None and len({int(hour) for hour in hours.split(",")}) < 24:
            return False
        return unit * self._interval <= HOUR or (hours is not None and unit > HOUR)

    def _after(self, count: int) -> datetime:
        """The instant of the last of `count` occurrences."""
        firings: list[datetime] = []
        for wall in self._first_walls():
            found = self._instants(wall)
            if found != firings[-1:]:  # all local times in one gap are the same instant
                firings += found
            if len(firings) >= count and len(found) == 1:  # no earlier instant can follow
                break
        return sorted(firings)[:count][-1]

    def _first_walls(self) -> Iterator[datetime]:
        """The local times of one calendar cycle: a rule that does not match there never matches."""
        end = max(self._anchor, RRULE_ANCHOR).year + _CALENDAR_YEARS
        return takewhile(lambda wall: wall.year < end, self._walls(self._anchor - MICROSECOND))

    def _walls(self, start: datetime) -> Iterator[datetime]:
        for wall in self._expanded.replace(dtstart=self._anchor_before(start)):
            if wall.year == MAXYEAR:  # converting it to another zone could overflow
                return
            if wall > start:
                yield wall

    def _anchor_before(self, start: datetime) -> datetime:
        """Move the anchor forward by whole intervals, so that dateutil has little to walk.

        The day of month, weekday and time of the anchor must stay, because the rule takes from them
        what it does not specify. So an anchor on the 29th to 31st, which some months lack, is not
        moved.
        """
        if start <= self._anchor:
            return self._anchor
        if unit := UNITS.get(self._frequency):
            step = unit * self._interval
            return self._anchor + (start - self._anchor) // step * step
        between = (start.year - self._anchor.year) * 12 + start.month - self._anchor.month - 1
        step_months = self._interval * (12 if self._frequency == "YEARLY" else 1)
        if between < step_months or self._anchor.day > 28:
            return self._anchor
        years, month = divmod(self._anchor.month - 1 + between // step_months * step_months, 12)
        return self._anchor.replace(year=self._anchor.year + years, month=month + 1)


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


_DATES = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYDAY")
_NOT_WITH = {
    "BYWEEKNO": ("MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"),
    "BYYEARDAY": ("MONTHLY", "WEEKLY", "DAILY"),
    "BYMONTHDAY": ("WEEKLY",),
    "BYSETPOS": ("HOURLY", "MINUTELY", "SECONDLY"),  # dateutil would search for hours
}


def _rule_parts(rule: object) -> tuple[str | None, str | None, dict[str, str]]:
    """Split a rule into DTSTART, its TZID, and the parts of the RRULE."""
    if not isinstance(rule, str):
        raise ValueError("a rule must be a text")
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
            raise ValueError(f"{line!r}: only one DTSTART line and one RRULE line are allowed")
    if "FREQ" not in parts:
        raise ValueError("it needs FREQ=…")
    _check_together(parts)
    return start, tzid, parts


def _check_together(parts: dict[str, str]) -> None:
    """Refuse combinations that RFC 5545 forbids or that dateutil misinterprets."""
    frequency = parts["FREQ"]
    numbered = re.search(r"\d", parts.get("BYDAY", "")) is not None
    if numbered and (frequency not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts):
        other = "BYWEEKNO" if "BYWEEKNO" in parts else f"FREQ={frequency}"
        raise ValueError(f"a numbered BYDAY has no meaning with {other}")
    for name, frequencies in _NOT_WITH.items():
        if name in parts and frequency in frequencies:
            raise ValueError(f"{name} is not supported with FREQ={frequency}")
    if "BYSETPOS" in parts and len([name for name in parts if name.startswith("BY")]) == 1:
        raise ValueError("BYSETPOS needs another BY… part to choose from")


def _all_numbered(parts: dict[str, str]) -> str:
    """Expand plain weekdays if BYDAY mixes ``FR`` and ``2SA``: dateutil would intersect the two."""
    days = parts["BYDAY"].split(",")
    if all(len(day) > 2 for day in days) or all(len(day) == 2 for day in days):
        return parts["BYDAY"]
    weeks = 53 if parts["FREQ"] == "YEARLY" and "BYMONTH" not in parts else 5
    plain = [f"{number}{day}" for day in days if len(day) == 2 for number in range(1, weeks + 1)]
    return ",".join([*(day for day in days if len(day) > 2), *plain])


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
    """Parse the parts of a rule; dateutil would accept numbers out of range and never match."""
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
    """DTSTART as a naive local time."""
    moment = datetime.fromisoformat(text)
    local = moment if moment.tzinfo is None else moment.astimezone(where)
    return local.replace(tzinfo=None, fold=0, microsecond=0)


def _end(text: str, where: ZoneInfo) -> datetime:
    """UNTIL as an inclusive instant: the end of a date, the second pass of a repeated time."""
    moment = datetime.fromisoformat(text)
    if "T" not in text:
        moment += 24 * HOUR - MICROSECOND
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=where, fold=1)
    return moment.astimezone(UTC)
