"""The base class of schedules, how to ask any schedule, and the plain interval."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from nonet.base.errors import ConfigurationError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class TaskScheduleBase(ABC):
    """Base class of schedules: subclass it to write your own.

    A subclass may define ``next_occurrence(self)`` without `after`. Such a schedule can only be
    asked about the present: it is called once per occurrence, and occurrences missed while no
    scheduler ran are unknown.

    Example:
        class EveryFullMoon(TaskScheduleBase):
            def next_occurrence(self, after: datetime | None = None) -> datetime | None:
                return next_full_moon(after or datetime.now(UTC))
    """

    @abstractmethod
    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """Return the first occurrence strictly after `after`, or None.

        Args:
            after: an aware datetime; None: now.
        """


@dataclass(frozen=True)
class IntervalSecondsSchedule(TaskScheduleBase):
    """Run every `seconds` seconds, counted from the Unix epoch, so that restarts do not shift it.

    Args:
        seconds: the interval, 0.001 to a year (366 days), rounded to microseconds.

    Raises:
        ConfigurationError: `seconds` is not a number in this range.

    Example:
        >>> IntervalSecondsSchedule(3600).next_occurrence(datetime(2025, 1, 1, 8, 30, tzinfo=UTC))
        datetime.datetime(2025, 1, 1, 9, 0, tzinfo=datetime.timezone.utc)
    """

    seconds: float

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ConfigurationError(f"an interval must be a number of seconds, not {seconds!r}")
        if not 0.001 <= seconds <= 366 * 86400:  # NaN fails this comparison too
            raise ConfigurationError("an interval must be between 0.001 seconds and a year")

    @property
    def interval(self) -> timedelta:
        """The exact interval."""
        return timedelta(seconds=self.seconds)

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """Return the first point of the grid strictly after `after`; see `TaskScheduleBase`.

        Args:
            after: an aware datetime; None: now.

        Raises:
            ValueError: `after` is naive.
        """
        passed = (present_or(after) - EPOCH) // self.interval
        return EPOCH + (passed + 1) * self.interval

    def count(self, after: datetime, until: datetime) -> int:
        """Count the occurrences in (`after`, `until`].

        Args:
            after: start, an aware datetime; an occurrence at this instant does not count.
            until: end, an aware datetime; an occurrence at this instant counts.
        """
        return (until - EPOCH) // self.interval - (after - EPOCH) // self.interval


IntervalSeconds = IntervalSecondsSchedule


def takes_after(schedule: TaskScheduleBase) -> bool:
    """Whether a schedule can be asked about times other than the present."""
    return _takes_after(type(schedule))


@lru_cache(maxsize=1000)
def _takes_after(cls: type[TaskScheduleBase]) -> bool:
    return len(inspect.signature(cls.next_occurrence).parameters) > 1  # besides `self`


def next_after(schedule: TaskScheduleBase, after: datetime) -> datetime | None:
    """Ask any schedule, including an author's own, for the next occurrence after `after`.

    A naive answer counts as UTC. A schedule without the parameter `after` answers for the present,
    and its answer is not compared with `after`.

    Raises:
        ConfigurationError: the answer is not a datetime, or not later than `after`.
    """
    zero_argument = not takes_after(schedule)
    answer: object = (
        schedule.next_occurrence() if zero_argument else schedule.next_occurrence(after)
    )
    if answer is None:
        return None
    if not isinstance(answer, datetime):
        raise ConfigurationError(
            f"{schedule!r}: next_occurrence returned {answer!r}, which is not a datetime"
        )
    found = answer.replace(tzinfo=UTC) if answer.tzinfo is None else answer.astimezone(UTC)
    if found <= after and not zero_argument:
        raise ConfigurationError(
            f"{schedule!r}: next_occurrence({after}) returned {found}, which is not later"
        )
    return found


def present_or(after: datetime | None) -> datetime:
    """`after` in UTC, or the current time."""
    if after is None:
        return datetime.now(UTC)
    if after.tzinfo is None:
        raise ValueError(f"next_occurrence needs an aware datetime, not {after!r}")
    return after.astimezone(UTC)
