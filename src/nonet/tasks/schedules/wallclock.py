"""What cron and RRULE share: local times, and what happens when the clocks change."""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from nonet.base.errors import ConfigurationError, suggestion
from nonet.tasks.schedules.schedule import TaskScheduleBase, present_or

# CEST, UTC+2, +02:00: what people write instead of a zone.
_SHORT = re.compile(r"[A-Z]{2,5}|[A-Z]{0,5} ?[+-][0-9:.]+")


class WallClockSchedule(TaskScheduleBase):
    """What cron and RRULE share: a rule over naive local times, resolved to instants here."""

    _zone: ZoneInfo
    _every_hour: bool
    _until: datetime | None

    @abstractmethod
    def _walls(self, start: datetime) -> Iterator[datetime]:
        """The rule's naive local times after `start`, ascending."""

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first occurrence strictly after `after`, in UTC; None when there is none.

        Args:
            after: an aware datetime; the present when omitted.

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


def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        if _SHORT.fullmatch(name):
            hint = " Write a place, such as Europe/Zurich: it knows when its clocks change"
        else:
            hint = suggestion(name, available_timezones())
        raise ConfigurationError(f"unknown time zone {name!r}.{hint}") from None


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
