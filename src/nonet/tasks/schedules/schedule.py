"""What every schedule is, how to ask one, and the plain interval."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.base.errors import ConfigurationError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class TaskScheduleBase(ABC):
    """Base of schedules; subclass it to write your own.

    A subclass may define ``next_occurrence(self)`` without `after`. It can only be asked about
    the present, so it is asked once per firing and occurrences missed meanwhile are unknown.

    Example:
        class EveryFullMoon(TaskScheduleBase):
            def next_occurrence(self, after: datetime | None = None) -> datetime | None:
                return next_full_moon(after or datetime.now(UTC))
    """

    @abstractmethod
    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first occurrence strictly after `after`, or None when there is none.

        Args:
            after: an aware datetime; the present when omitted.
        """


@dataclass(frozen=True)
class IntervalSecondsSchedule(TaskScheduleBase):
    """Every `seconds` seconds, on a grid anchored at the Unix epoch: restarts do not shift it.

    Args:
        seconds: the interval, at least 0.001; taken as whole microseconds.

    Raises:
        ConfigurationError: `seconds` is no number in range.

    Example:
        >>> IntervalSecondsSchedule(3600).next_occurrence(datetime(2025, 1, 1, 8, 30, tzinfo=UTC))
        datetime.datetime(2025, 1, 1, 9, 0, tzinfo=datetime.timezone.utc)
    """

    seconds: float

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ConfigurationError(f"an interval is a number of seconds, not {seconds!r}")
        if not 0.001 <= seconds <= 366 * 86400:  # not true of NaN, either
            # Python refuses to write a number of thousands of digits.
            written = "so many" if abs(seconds) > 10**18 else repr(seconds)
            raise ConfigurationError(
                f"an interval of {written} seconds is not between 0.001 and a year"
            )

    @property
    def interval(self) -> timedelta:
        """The exact interval."""
        return timedelta(seconds=self.seconds)

    def next_occurrence(self, after: datetime | None = None) -> datetime | None:
        """The first point of the grid strictly after `after`; see `TaskScheduleBase`.

        Args:
            after: an aware datetime; the present when omitted.

        Raises:
            ValueError: `after` is naive.
        """
        passed = (present_or(after) - EPOCH) // self.interval
        return EPOCH + (passed + 1) * self.interval

    def count(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (`after`, `until`].

        Args:
            after: where it begins, aware; an occurrence at this very instant does not count.
            until: where it ends, aware; one at this very instant counts.
        """
        return (until - EPOCH) // self.interval - (after - EPOCH) // self.interval


IntervalSeconds = IntervalSecondsSchedule


def takes_after(schedule: TaskScheduleBase) -> bool:
    """Whether a schedule can be asked about another time than the present."""
    return bool(inspect.signature(schedule.next_occurrence).parameters)


def next_after(schedule: TaskScheduleBase, after: datetime) -> datetime | None:
    """Ask any schedule, an author's too, for its next occurrence after `after`.

    A naive answer is read as UTC. One without `after` parameter answers for the present, and its
    answer is returned as it is.

    Raises:
        ConfigurationError: the answer is no datetime, or not later than `after`.
    """
    zero_argument = not takes_after(schedule)
    answer: object = (
        schedule.next_occurrence() if zero_argument else schedule.next_occurrence(after)
    )
    if answer is None:
        return None
    if not isinstance(answer, datetime):
        raise ConfigurationError(f"{schedule!r}: next_occurrence returned {answer!r}, no datetime")
    found = answer.replace(tzinfo=UTC) if answer.tzinfo is None else answer.astimezone(UTC)
    if found <= after and not zero_argument:
        raise ConfigurationError(
            f"{schedule!r}: next_occurrence({after}) returned {found}, which is not later"
        )
    return found


def present_or(after: datetime | None) -> datetime:
    """`after` in UTC, or the present."""
    if after is None:
        return datetime.now(UTC)
    if after.tzinfo is None:
        raise ValueError(f"next_occurrence needs an aware datetime, not {after!r}")
    return after.astimezone(UTC)
