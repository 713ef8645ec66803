"""The occurrences of schedules in the next hours, for a calendar. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from nonet.tasks.schedules import (
    IntervalSecondsSchedule,
    TaskScheduleBase,
    latest_until,
    next_after,
)

HOURS = 24
# Count at most this many per hour for schedules without `count`.
MOST_AN_HOUR = 12
FULL = 3  # the highest `Cell.level`
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cell:
    """The occurrences of one entry in one hour.

    Attributes:
        start: begin of the hour.
        count: how many there are; a lower bound if `is_more`.
        first: the first of them; None: there is none.
        is_more: counting stopped at `MOST_AN_HOUR`.
    """

    start: datetime
    count: int
    first: datetime | None = None
    is_more: bool = False

    @property
    def level(self) -> int:
        """How full it is, from 0 (nothing) to 3.

        >>> noon = datetime(2025, 1, 1, 12)
        >>> [Cell(noon, count).level for count in (0, 1, 2, 12, 3600)]
        [0, 1, 2, 3, 3]
        """
        return next((level for level, most in enumerate((0, 1, 6)) if self.count <= most), FULL)

    @property
    def text(self) -> str:
        """The cell in few characters: the minute of a single occurrence, or how many there are.

        >>> noon = datetime(2025, 1, 1, 12)
        >>> Cell(noon, 1, noon.replace(minute=5)).text, Cell(noon, 360, noon).text
        (':05', '360')
        """
        if not self.count:
            return ""
        if self.count == 1 and not self.is_more and self.first is not None:
            return f":{self.first:%M}"
        return f"{self.count}{'+' if self.is_more else ''}"


def day(schedule: TaskScheduleBase, now: datetime, hours: int = HOURS) -> list[Cell]:
    """Return the next hours of a schedule, the current one first.

    Occurrences of the current hour that are past do not count.

    Example:
        >>> from datetime import UTC
        >>> now = datetime(2025, 1, 1, 8, 30, tzinfo=UTC)
        >>> [cell.count for cell in day(IntervalSecondsSchedule(1200), now)][:3]
        [1, 3, 3]
    """
    begin = now.replace(minute=0, second=0, microsecond=0)
    starts = [begin + _HOUR * number for number in range(hours)]
    if isinstance(schedule, IntervalSecondsSchedule):
        return [_counted(schedule, start, max(now, start - _TICK)) for start in starts]
    found: dict[datetime, list[datetime]] = {start: [] for start in starts}
    end = starts[-1] + _HOUR
    moment = next_after(schedule, now)
    while moment is not None and moment < end:
        start = moment.replace(minute=0, second=0, microsecond=0)
        found[start].append(moment)
        is_full = len(found[start]) > MOST_AN_HOUR
        moment = next_after(schedule, start + _HOUR - _TICK if is_full else moment)
    return [
        Cell(
            start,
            min(len(moments), MOST_AN_HOUR),
            moments[0] if moments else None,
            len(moments) > MOST_AN_HOUR,
        )
        for start, moments in found.items()
    ]


def only(moment: datetime | None, now: datetime, hours: int = HOURS) -> list[Cell]:
    """Return the next hours of an entry of which only the next occurrence is known."""
    begin = now.replace(minute=0, second=0, microsecond=0)
    return [
        Cell(start, 1, moment)
        if moment is not None and start <= moment < start + _HOUR
        else Cell(start, 0)
        for start in (begin + _HOUR * number for number in range(hours))
    ]


def following(schedule: TaskScheduleBase, now: datetime, number: int = 10) -> Iterator[datetime]:
    """Yield the next occurrences.

    Example:
        >>> from datetime import UTC
        >>> now = datetime(2025, 1, 1, 8, 30, tzinfo=UTC)
        >>> [moment.hour for moment in following(IntervalSecondsSchedule(3600), now, 3)]
        [9, 10, 11]
    """
    moment: datetime | None = now
    for _ in range(number):
        moment = next_after(schedule, moment) if moment else None
        if moment is None:
            return
        yield moment


@dataclass(frozen=True, slots=True)
class ClockChange:
    """When the clocks of a zone change, and what a schedule does around it.

    Attributes:
        at: the instant.
        before: the offset from UTC before, such as ``+01:00``.
        after: the offset from then on.
        last: the last occurrence before it; null: there is none in a day.
        first: the first occurrence from then on; null: the schedule ends before.
    """

    at: datetime
    before: str
    after: str
    last: datetime | None
    first: datetime | None


def clock_change(schedule: TaskScheduleBase, now: datetime) -> ClockChange | None:
    """Return when the clocks of the zone of a schedule change next, within a year.

    >>> from datetime import UTC
    >>> from nonet.tasks.schedules import CronSchedule
    >>> morning, now = CronSchedule("0 8 * * *", "Europe/Zurich"), datetime(2026, 1, 1, tzinfo=UTC)
    >>> found = clock_change(morning, now)
    >>> found.at.isoformat(), found.before, found.after, found.last.hour, found.first.hour
    ('2026-03-29T01:00:00+00:00', '+01:00', '+02:00', 7, 6)
    """
    zone = ZoneInfo(str(getattr(schedule, "timezone", "UTC")))

    def offset(moment: datetime) -> timedelta | None:
        return moment.astimezone(zone).utcoffset()

    begin = now.replace(minute=0, second=0, microsecond=0)
    days = (begin + _DAY * number for number in range(366))
    day = next((day for day in days if offset(day) != offset(day + _DAY)), None)
    if day is None:
        return None
    quarters = (day + _HOUR / 4 * number for number in range(4 * HOURS + 1))
    at = next(moment for moment in quarters if offset(moment) != offset(day))
    before = at - _TICK
    last = latest_until(schedule, max(now, at - _DAY), before)
    earlier, later = (moment.astimezone(zone).isoformat()[-6:] for moment in (before, at))
    return ClockChange(at, earlier, later, last, next_after(schedule, before))


_TICK = timedelta(microseconds=1)


def _counted(schedule: IntervalSecondsSchedule, start: datetime, after: datetime) -> Cell:
    count = schedule.count(after, start + _HOUR - _TICK)
    return Cell(start, count, schedule.next_occurrence(after) if count else None)
