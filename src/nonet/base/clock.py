"""Detect steps of the Redis server's clock by comparing it with a local clock that never steps."""

from __future__ import annotations

import time
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

# Clocks differ by up to this much without a step, because NTP slews them.
TOLERANCE = timedelta(seconds=5)
# Ignore slower replies, because the time at which the script ran is too uncertain.
_SLOW_SECONDS = 1.0
# An older reading says too little: clocks drift apart by seconds a day.
_FRESH_SECONDS = 3600.0
# The leader has this long to correct a step. After that, the new time is accepted.
_GIVE_UP_SECONDS = 60.0


class Reading(Struct, frozen=True):
    """One reading of the Redis server's clock.

    Attributes:
        sent, received: times of the request and of its reply, in seconds of `steady`.
        now: the time that Redis returned, in logical microseconds.
    """

    sent: float
    received: float
    now: int


def steady() -> float:
    """Return the seconds of a clock that cannot be set and keeps counting during suspend."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def clock_step(previous: Reading, current: Reading) -> timedelta:
    """Return the step of the clock between two readings, or zero.

    The script ran at an unknown moment between `sent` and `received`. So the time between the two
    readings is only known to lie between `least` and `most`: outside, the clock was set.
    """
    passed = timedelta(microseconds=current.now - previous.now)
    least = timedelta(seconds=max(0.0, current.sent - previous.received))
    most = timedelta(seconds=current.received - previous.sent)
    if least - TOLERANCE <= passed <= most + TOLERANCE:
        return timedelta(0)
    return passed - (least + most) / 2


class ClockWatch:
    """Compares each reading with the last reading that showed no step."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._since: float | None = None

    @property
    def before(self) -> int:
        """The last reading without a step, in logical microseconds."""
        return self._last.now if self._last else 0

    def latest(self, instant: float) -> int | None:
        """Return the latest time, in logical µs, at which a request sent at `instant` should run.

        A slow request may run later. None before the first reading, and long after the last one.
        """
        last = self._last  # another thread may replace it
        if last is None or instant - last.sent > _FRESH_SECONDS:
            return None
        passed = timedelta(seconds=instant - last.sent) + TOLERANCE
        return last.now + passed // timedelta(microseconds=1)

    def look(self, reading: Reading) -> timedelta:
        """Return the step since the last good reading. If it is zero, this reading is good.

        The same step is returned until `correct` is called, or for `_GIVE_UP_SECONDS`, so that a
        standby scheduler can correct it if it becomes leader meanwhile.
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
        """Continue from a reading as if there had been no step."""
        now = reading.now - step // timedelta(microseconds=1)
        self._last, self._since = replace(reading, now=now), None
