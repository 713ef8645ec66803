"""Cron expressions."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules.wallclock import WallClockSchedule, zone


class _Prepared(WallClockSchedule):
    """Holds derived attributes that must not be dataclass fields, which are shown and compared."""

    _fields: Sequence[Sequence[int] | None]


@dataclass(frozen=True)
class CronSchedule(_Prepared):
    """A cron expression in the local time of a zone.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week) with lists, ranges,
            steps and English names; 0 and 7 are Sunday. Or ``@hourly``, ``@daily``, ``@midnight``,
            ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``. As in POSIX, a date matches
            either day field if neither is ``*`` (``*/2`` is not ``*``). A range may wrap around:
            ``22-2``, ``sat-mon``.
        timezone: an IANA name. A fixed local time that the clocks skip or repeat runs once.

    Raises:
        ConfigurationError: the expression is invalid, or its dates do not exist.

    Example:
        >>> from datetime import UTC
        >>> CronSchedule("30 2 * * *", "Europe/Zurich").next_occurrence(
        ...     datetime(2025, 3, 30, tzinfo=UTC))      # 02:30 is skipped that night
        datetime.datetime(2025, 3, 30, 1, 0, tzinfo=datetime.timezone.utc)
    """

    expression: str
    timezone: str = "UTC"
    _until = None

    def __post_init__(self) -> None:
        try:
            fields = _cron_fields(self.expression)
        except ValueError as error:
            raise ConfigurationError(f"cron expression {self.expression!r}{error}") from None
        keep = object.__setattr__
        keep(self, "_fields", fields)
        keep(self, "_zone", zone(self.timezone))
        keep(self, "_every_hour", fields[1] is None or len(fields[1]) == 24)
        _, _, days, months, weekdays = fields
        if days and not weekdays and days[0] > max(_LENGTHS[month] for month in months or [1]):
            raise ConfigurationError(f"cron expression {self.expression!r}: no date matches")

    @property
    def expanded(self) -> str:
        """For the framework: the five fields as ``*`` or lists of numbers."""
        return " ".join("*" if one is None else ",".join(map(str, one)) for one in self._fields)

    def _walls(self, start: datetime) -> Iterator[datetime]:
        minutes, hours = self._fields[0] or range(60), self._fields[1] or range(24)
        today = start.timetuple()[:3]
        for day in self._days(*today):
            over = (start.hour, start.minute) if day == today else (-1, 0)
            for hour in hours:
                if hour < over[0]:
                    continue
                for minute in minutes:
                    if (hour, minute) > over:
                        yield datetime(*day, hour, minute)

    def _days(self, year: int, month: int, first: int) -> Iterator[tuple[int, int, int]]:
        """The days of the rule, as year, month and day, from the given one on."""
        _, _, days, months, weekdays = self._fields
        is_any = days is None and weekdays is None
        while year <= MAXYEAR:
            if months is None or month in months:
                weekday, length = monthrange(year, month)  # of the first; Monday is 0 here
                for day in range(first, length + 1):
                    is_named = day in (days or ()) or (weekday + day) % 7 in (weekdays or ())
                    if is_any or is_named:
                        yield year, month, day
            first = 1
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)


# The most days of each month.
_LENGTHS = [0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True)
class _Field:
    """One field of an expression: the range of its numbers, and the names for them."""

    name: str
    lowest: int
    highest: int
    words: Sequence[str] = ()

    def expand(self, text: str) -> list[int] | None:
        """The field as sorted numbers; None: it is ``*``.

        Raises:
            ValueError: the reason, to be appended to the expression.
        """
        if text in ("*", "*/1"):
            return None
        return sorted({number for item in text.split(",") for number in self._numbers(item)})

    def _numbers(self, item: str) -> list[int]:
        found = _ITEM.fullmatch(item)
        if found is None:
            strange = re.findall(r"[a-z]+|[^a-z0-9]", item)
            wrong = next((word for word in strange if word not in (*self.words, *"*,/-")), item)
            raise self._not_understood(wrong)
        first, last, step = found.groups()
        low = self.lowest if first == "*" else self._number(first)
        high = self._number(last) if last else self.highest if first == "*" or step else low
        if step and not 1 <= int(step) <= self.highest:
            raise ValueError(f": a step of {step} does not fit into the {self.name}")
        size = self.highest - self.lowest + 1
        past = high + size if high < low else high  # a range such as 22-2 wraps around
        steps = range(low, past + 1, int(step or "1"))
        return [(number - self.lowest) % size + self.lowest for number in steps]

    def _number(self, text: str) -> int:
        if text in self.words:
            return self.words.index(text) + self.lowest
        if not text.isdecimal():
            raise self._not_understood(text)
        number = int(text)
        # 7 means Sunday too.
        if not self.lowest <= number <= self.highest + (self.words is _DAYS):
            raise ValueError(
                f": {number} is out of range in the {self.name} ({self.lowest} to {self.highest})"
            )
        return number

    def _not_understood(self, text: str) -> ValueError:
        return ValueError(
            f": {text!r} is not understood in the {self.name}; for the last or nth day use"
            " RRuleSchedule"
        )


_ITEM = re.compile(r"(\*|[a-z]+|\d{1,3})(?:(?<!\*)-([a-z]+|\d{1,3}))?(?:/(\d{1,3}))?", re.ASCII)
_FIELDS = [
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 6, _DAYS),
]


def _cron_fields(expression: object) -> list[list[int] | None]:
    """The five fields, see `_Field.expand`.

    Raises:
        ValueError: the reason, to be appended to the expression.
    """
    if not isinstance(expression, str):
        raise ValueError(" is not a text")
    if expression.startswith("@") and expression not in _ALIASES:
        raise ValueError(f" is an unknown alias, known are {', '.join(_ALIASES)}")
    texts = _ALIASES.get(expression, expression).lower().split()
    if len(texts) != 5:
        raise ValueError(
            f" has {len(texts)} fields instead of 5 (minute, hour, day of month, month, day of"
            " week); for seconds use IntervalSecondsSchedule"
        )
    return [field.expand(text) for field, text in zip(_FIELDS, texts, strict=True)]
