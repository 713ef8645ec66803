"""Cron expressions, based on croniter."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules.wallclock import WallClockSchedule, zone

if TYPE_CHECKING:
    from croniter import croniter


class _Prepared(WallClockSchedule):
    """Holds derived attributes that must not be dataclass fields, which are shown and compared."""

    _cron: croniter[datetime]


@dataclass(frozen=True)
class CronSchedule(_Prepared):
    """A cron expression in the local time of a zone.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week) with lists, ranges,
            steps and English names; 0 and 7 are Sunday. ``L`` is the last day of the month, ``15W``
            the weekday nearest to the 15th, ``fri#2`` the second and ``L5`` the last Friday. Or
            ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``,
            ``@annually``. As in POSIX, a date matches either day field if neither is ``*`` or ``?``
            (``*/2`` is not ``*``). A range may wrap around, except one of minutes: ``22-2``,
            ``sat-mon``.
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
        from nonet.tasks.schedules.cron_fields import parse  # croniter is slow to import

        try:
            cron = parse(self.expression)
        except ValueError as error:
            raise ConfigurationError(f"cron expression {self.expression!r}{error}") from None
        keep = object.__setattr__
        keep(self, "_cron", cron)
        keep(self, "_zone", zone(self.timezone))
        keep(self, "_every_hour", cron.expanded[1] == ["*"])

    @property
    def expanded(self) -> str:
        """For the framework: the five fields without aliases, names and ranges that wrap."""
        return " ".join(self._cron.expressions)

    def _walls(self, start: datetime) -> Iterator[datetime]:
        cron = copy(self._cron)  # it keeps its position, and several threads may ask
        cron.set_current(start.replace(second=0, microsecond=0))
        return cron.all_next(datetime)
