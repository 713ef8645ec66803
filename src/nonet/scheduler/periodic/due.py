"""Decide which occurrences of a periodic entry are due, and which of them fire. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules import (
    MICROSECOND,
    CatchUp,
    IntervalSecondsSchedule,
    TaskScheduleBase,
    latest_until,
    next_after,
    takes_after,
)

BATCH = 1_000  # the most occurrences within the grace that one call of `due` fires


@dataclass(frozen=True)
class Occurrence:
    """One occurrence, and whether it fires.

    Attributes:
        instant: when it is due.
        missed: number of older occurrences that never fire, with this one if it does not fire; a
            lower bound if more than 1,000 were counted.
        fires: False: it is skipped.
    """

    instant: datetime
    missed: int = 0
    fires: bool = True


@dataclass(frozen=True)
class Due:
    """What to do for an entry now.

    Attributes:
        steps: oldest first; the instant of the last one is the new `last`.
        next: when to check again: strictly after `now`, or the first remaining occurrence if the
            batch was full. None when the schedule is exhausted.
    """

    steps: list[Occurrence]
    next: datetime | None


def due(
    schedule: TaskScheduleBase,
    last: datetime | None,
    now: datetime,
    misfire_grace: timedelta,
    *,
    catch_up: CatchUp = CatchUp.ONE,
    catch_up_limit: int = 100,
    planned: datetime | None = None,
) -> Due:
    """Decide what an entry fires at `now`.

    All occurrences in (`last`, `now`] that are younger than `misfire_grace` fire. Of the older
    ones, `catch_up` selects: ``one`` fires the latest, unless a younger one follows; ``skip`` fires
    none; ``all`` fires the latest `catch_up_limit`. At most 1,000 younger ones fire at a time; the
    next call, with the last fired one as `last`, fires the rest.

    Args:
        schedule: schedule of the entry.
        last: the occurrence fired last. None for a new entry, which fires nothing yet: store `now`
            as its `last`, so that a restart does not lose the next occurrence.
        now: the current time, by the clock of the server.
        misfire_grace: how late an occurrence may fire as if in time.
        planned: `Due.next` of the previous call. Store and pass it: a custom schedule whose method
            takes no `after` cannot be asked for it again. Others ignore it.

    Raises:
        ConfigurationError: an author's schedule returns no valid time, or the same one again.

    Example:
        >>> from datetime import UTC
        >>> last = datetime(2025, 1, 1, tzinfo=UTC)
        >>> now = last + timedelta(hours=5, seconds=10)
        >>> decision = due(IntervalSecondsSchedule(3600), last, now, timedelta(seconds=60))
        >>> [(step.instant.hour, step.missed) for step in decision.steps], decision.next.hour
        ([(5, 4)], 6)
    """
    if not takes_after(schedule):
        if planned is None or planned > now:
            return Due([], planned or next_after(schedule, now))
        is_passed = catch_up is CatchUp.SKIP and planned <= now - misfire_grace
        step = Occurrence(planned, missed=1, fires=False) if is_passed else Occurrence(planned)
        return Due([step], _next_answer(schedule, planned, now))
    if last is None:
        return Due([], next_after(schedule, now))
    cutoff = now - misfire_grace
    steps = _make_good(schedule, last, cutoff, catch_up, catch_up_limit)
    moment = next_after(schedule, max(last, cutoff))
    for _ in range(BATCH):
        if moment is None or moment > now:
            break
        steps.append(Occurrence(moment))
        moment = next_after(schedule, moment)
    if catch_up is CatchUp.ONE and len(steps) > 1 and steps[0].instant <= cutoff:
        older, younger, *others = steps
        steps = [replace(younger, missed=older.missed + 1), *others]
    return Due(steps, moment)


def _next_answer(schedule: TaskScheduleBase, planned: datetime, now: datetime) -> datetime | None:
    """Ask a schedule that takes no `after` parameter; fail if it repeats its answer."""
    answer = next_after(schedule, now)
    if answer is not None and answer <= planned:
        raise ConfigurationError(
            f"next_occurrence returned {answer}, which is not after the occurrence of {planned}"
        )
    return answer


def _make_good(
    schedule: TaskScheduleBase, last: datetime, cutoff: datetime, catch_up: CatchUp, limit: int
) -> list[Occurrence]:
    """Decide on the occurrences in (`last`, `cutoff`]."""
    latest = latest_until(schedule, last, cutoff)
    if latest is None:
        return []
    number = count(schedule, last, latest)
    if catch_up is CatchUp.SKIP:
        return [Occurrence(latest, missed=number, fires=False)]
    if catch_up is CatchUp.ONE:
        return [Occurrence(latest, missed=number - 1)]
    first, *others = _newest(schedule, last, latest, limit)
    missed = max(0, number - 1 - len(others))
    return [Occurrence(first, missed=missed), *map(Occurrence, others)]


def _newest(
    schedule: TaskScheduleBase, after: datetime, latest: datetime, limit: int
) -> list[datetime]:
    """Return the last `limit` occurrences in (`after`, `latest`], oldest first."""
    low, high = after, latest  # at least `limit` follow `low`, fewer follow `high`
    while high - low > MICROSECOND and count(schedule, low, latest) > limit:
        middle = low + (high - low) / 2
        if count(schedule, middle, latest) >= limit:
            low = middle
        else:
            high = middle
    found: deque[datetime] = deque(maxlen=limit)
    moment = next_after(schedule, low)
    while moment is not None and moment <= latest:
        found.append(moment)
        moment = next_after(schedule, moment)
    return list(found)


def count(schedule: TaskScheduleBase, after: datetime, until: datetime) -> int:
    """Count the occurrences in (`after`, `until`]; stop counting beyond `BATCH`.

    >>> from datetime import UTC
    >>> day = datetime(2025, 1, 1, tzinfo=UTC)
    >>> count(IntervalSecondsSchedule(2), day, day + timedelta(days=4))
    172800
    """
    if isinstance(schedule, IntervalSecondsSchedule):
        return schedule.count(after, until)
    number = 0
    moment = next_after(schedule, after)
    while moment is not None and moment <= until and number < BATCH + 2:
        number += 1
        moment = next_after(schedule, moment)
    return number
