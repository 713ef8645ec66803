"""Cron expressions, on croniter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

from nonet.errors import ConfigurationError
from nonet.schedules.wallclock import WallClockSchedule, zone

_SOME_DAY = datetime(1970, 1, 5)


@dataclass(frozen=True)
class CronSchedule(WallClockSchedule):
    """A cron expression in the local time of a zone.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week; lists, ranges,
            steps, English names; 0 and 7 are Sunday) or ``@hourly``, ``@daily``, ``@midnight``,
            ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``. As in POSIX, a date matches
            either day field when both are restricted.
        timezone: an IANA name; see the package about clocks that change.

    Raises:
        ConfigurationError: the expression is no such thing, or its dates do not exist.

    Example:
        >>> from datetime import UTC
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
            croniter(fields, _SOME_DAY).get_next(datetime)
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
