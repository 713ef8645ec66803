"""Look back in a schedule: the latest occurrence before a time, and the misfire grace."""

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
    """The last occurrence in (`after`, `until`], or None.

    Schedules only answer for the next occurrence, so this searches by bisection. It mostly ends
    early, because each step also asks for the following occurrence.
    """
    latest, low, high = None, after, until  # there is no occurrence in (high, until]
    while (found := next_after(schedule, low)) is not None and found <= until:
        latest = low = found
        middle = low + (high - low) / 2
        found = next_after(schedule, middle)
        if found is not None and found <= until:
            latest = low = found
        else:
            high = middle
    return latest


def misfire_grace_of(schedule: TaskScheduleBase, now: datetime, at_most: timedelta) -> timedelta:
    """How late an occurrence may be submitted on its own, if its entry does not say.

    An occurrence that is late by more than the interval is pointless, because the next one replaces
    it. So the grace is the interval or the setting, whichever is shorter. For cron and RRULE, the
    interval is the time between the last two occurrences before `now`.

    Args:
        at_most: the setting.

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
    if not takes_after(schedule):  # this schedule can only be asked about the present
        return at_most
    since = now - 2 * at_most  # a longer interval than the setting changes nothing
    latest = latest_until(schedule, since, now)
    before = latest and latest_until(schedule, since, latest - MICROSECOND)
    return min(at_most, latest - before) if latest and before else at_most
