"""Schedules in local time: the part of cron and RRULE that handles changing clocks."""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from nonet.base.errors import ConfigurationError, suggestion
from nonet.tasks.schedules.schedule import TaskScheduleBase, present_or

# Abbreviations and offsets that people write instead of a zone: CEST, UTC+2, +02:00.
_SHORT = re.compile(r"[A-Z]{2,5}|[A-Z]{0,5} ?[+-][0-9:.]+")


class WallClockSchedule(TaskScheduleBase):
    """A schedule whose rule gives naive local times, which this class converts to UTC."""

    _zone: ZoneInfo
    _every_hour: bool
    _until: datetime | None

    @abstractmethod
    def _walls(self, start: datetime) -> Iterator[datetime]:
        """The naive local times of the rule after `start`, ascending."""

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """Return the first occurrence strictly after `after`, in UTC, or None.

        Args:
            after: an aware datetime; None: now.

        Raises:
            ValueError: `after` is naive.
        """
        moment = present_or(after)
        if self._until is not None and moment >= self._until:
            return None
        found = self._search(moment)
        return None if found and self._until and found > self._until else found

    def _search(self, moment: datetime) -> datetime | None:
        here = moment.astimezone(self._zone)
        wall = here.replace(tzinfo=None, fold=0)
        best: datetime | None = None
        # In the first pass of a repeated hour, local times before `wall` will occur again.
        start = wall - _to_be_repeated(here) if self._every_hour else wall
        for candidate in self._walls(start):
            for instant in self._instants(candidate):
                if instant > moment:
                    best = min(instant, best or instant)
            if best is not None and candidate > wall:
                break
        return best

    def _instants(self, wall: datetime) -> list[datetime]:
        """The instants of a local time: one, or two if it is repeated.

        In a gap, a rule with fixed hours gets the end of the gap, and a rule for every hour gets
        none.
        """
        first = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        second = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        if first == second:
            return [first]
        if first > second:  # in a gap, fold=0 is the later instant (PEP 495)
            return [] if self._every_hour else [_end_of_gap(second, first, self._zone)]
        return [first, second] if self._every_hour else [first]


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ConfigurationError: the name is unknown.
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        if _SHORT.fullmatch(name):
            hint = " Write a place such as Europe/Zurich, which defines when the clocks change"
        else:
            hint = suggestion(name, available_timezones())
        raise ConfigurationError(f"unknown time zone {name!r}.{hint}") from None


def _to_be_repeated(here: datetime) -> timedelta:
    """By how much the clocks will go back if `here` is in the first pass of a repeated hour."""
    first, second = here.replace(fold=0).utcoffset(), here.replace(fold=1).utcoffset()
    assert first is not None and second is not None  # a ZoneInfo always has an offset
    return first - second if here.fold == 0 else timedelta()


def _end_of_gap(before: datetime, behind: datetime, where: ZoneInfo) -> datetime:
    """The instant in (`before`, `behind`] at which the clocks go forward."""
    offset = behind.astimezone(where).utcoffset()

    def changed(seconds: int) -> bool:
        return (before + timedelta(seconds=seconds)).astimezone(where).utcoffset() == offset

    span = range(int((behind - before).total_seconds()))
    return before + timedelta(seconds=bisect_left(span, True, key=changed))
