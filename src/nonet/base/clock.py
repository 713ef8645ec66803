"""Whether somebody set the clock of Redis, judged by a clock that nobody can set."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta

# What clocks may differ by for other reasons: NTP that slews, the rounding of a step.
TOLERANCE = timedelta(seconds=5)
# A reply that took longer says too little about when the script ran.
_SLOW_SECONDS = 1.0
# So long whoever leads may need until it puts the clock right; later the step stays.
_GIVE_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the clock of Redis.

    Attributes:
        sent, received: before and after it, by `steady`, seconds.
        now: what Redis said, logical microseconds.
    """

    sent: float
    received: float
    now: int


def steady() -> float:
    """Seconds by a clock that nobody sets and that goes on while the host sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def clock_step(previous: Reading, current: Reading) -> timedelta:
    """By how much the clock was set between two readings; zero if it need not have been.

    The time between the two looks lies between `least` and `most`, however long each took.
    """
    passed = timedelta(microseconds=current.now - previous.now)
    least = timedelta(seconds=max(0.0, current.sent - previous.received))
    most = timedelta(seconds=current.received - previous.sent)
    if least - TOLERANCE <= passed <= most + TOLERANCE:
        return timedelta(0)
    return passed - (least + most) / 2


class ClockWatch:
    """Compares each reading with the last good one."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._since: float | None = None

    @property
    def before(self) -> int:
        """Logical microseconds at the last good reading."""
        return self._last.now if self._last else 0

    def latest(self, instant: float) -> int | None:
        """Logical microseconds that a look which is sent now cannot exceed, unless it is slow.

        None before the first reading.
        """
        if self._last is None:
            return None
        passed = timedelta(seconds=instant - self._last.sent) + TOLERANCE
        return self._last.now + passed // timedelta(microseconds=1)

    def look(self, reading: Reading) -> timedelta:
        """By how much the clock was set since the last good reading; else that is a good one.

        A step is found again and again, until `correct` or for `_GIVE_UP_SECONDS`: who stands by
        may lead soon, and whoever leads now may be faster.
        """
        if reading.received - reading.sent > _SLOW_SECONDS:
            return timedelta(0)
        step = clock_step(self._last, reading) if self._last else timedelta(0)
        if step:
            self._since = reading.sent if self._since is None else self._since
            if reading.sent - self._since < _GIVE_UP_SECONDS:
                return step
        self._last, self._since = reading, None
        return timedelta(0)

    def correct(self, reading: Reading, step: timedelta) -> None:
        """Time goes on from a reading as if there had been no step."""
        now = reading.now - step // timedelta(microseconds=1)
        self._last, self._since = replace(reading, now=now), None
