"""Periodic tasks that ask their scheduler to stop; apart from those that must not."""

from __future__ import annotations

import itertools
import os
import signal

from nonet import IntervalSecondsSchedule, PeriodicBaseTask, Size

_made = itertools.count(1)


def _stop_when_submitted() -> None:
    """Each of the two is made once to see that it can be; the third one is to be submitted."""
    if next(_made) == 3:
        os.kill(os.getpid(), signal.SIGTERM)


class First(PeriodicBaseTask):
    """Due at the same instants as `Second`."""

    _schedule = IntervalSecondsSchedule(1)
    size = Size.SMALL

    def __init__(self) -> None:
        _stop_when_submitted()

    async def execute(self) -> None: ...


class Second(PeriodicBaseTask):
    """Due at the same instants as `First`."""

    _schedule = IntervalSecondsSchedule(1)
    size = Size.SMALL

    def __init__(self) -> None:
        _stop_when_submitted()

    async def execute(self) -> None: ...
