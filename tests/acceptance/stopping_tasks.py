"""Periodic tasks that ask their scheduler to stop; apart from those that must not."""

from __future__ import annotations

import itertools
import os
import signal

from nonet import IntervalSecondsSchedule, PeriodicBaseTask, Size

_made = itertools.count(1)


class First(PeriodicBaseTask):
    """One of five that are due at the same instants.

    Each is made once to see that it can be; the sixth one is the first to be submitted.
    """

    _schedule = IntervalSecondsSchedule(1)
    size = Size.SMALL

    def __init__(self) -> None:
        if next(_made) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    async def execute(self) -> None: ...


class Second(First): ...


class Third(First): ...


class Fourth(First): ...


class Fifth(First): ...
