"""How late an occurrence may be, by how far apart they are. Schedules only look forward."""

from __future__ import annotations

from datetime import datetime, timedelta

from nonet.tasks.schedules.schedule import (
    MICROSECOND,
    IntervalSecondsSchedule,
    TaskScheduleBase,
    next_after,
    takes_after,
)


def latest_until(schedule: TaskScheduleBase, after: datetime, until: datetime) -> datetime | None:
    """The last occurrence in (`after`, `until`], by bisection; None if there is none."""
    found = next_after(schedule, after)
    if found is None or found > until:
        return None
    low, high = found, until  # an occurrence; a time after which none is left
    while high - low > MICROSECOND:
        middle = low + (high - low) / 2
        found = next_after(schedule, middle)
        if found is not None and found <= until:
            low = found
        else:
            high = middle
    return low


def misfire_grace_of(schedule: TaskScheduleBase, now: datetime, at_most: timedelta) -> timedelta:
    """How late an occurrence may be and still be fired for itself, unless its entry says so.

    Args:
        at_most: the setting. The interval is smaller if a later occurrence makes good for it: for
            cron and RRULE the time between the last two occurrences up to `now`.

    Example:
        >>> from datetime import UTC
        >>> now = datetime(2025, 1, 1, tzinfo=UTC)
        >>> misfire_grace_of(IntervalSecondsSchedule(5), now, timedelta(seconds=60)).seconds
        5
        >>> misfire_grace_of(IntervalSecondsSchedule(3600), now, timedelta(seconds=60)).seconds
        60
    """
    if isinstance(schedule, IntervalSecondsSchedule):
        return min(at_most, timedelta(seconds=schedule.seconds))
    if not takes_after(schedule):  # it knows nothing but the present
        return at_most
    since = now - 2 * at_most  # those further apart than the setting do not matter
    latest = latest_until(schedule, since, now)
    before = latest and latest_until(schedule, since, latest - MICROSECOND)
    return min(at_most, latest - before) if latest and before else at_most
