"""A periodic task that is encrypted; alone, as its scheduler would submit it in other tests."""

from __future__ import annotations

from nonet import IntervalSecondsSchedule, PeriodicBaseTask, Size


class Nightly(PeriodicBaseTask):
    """Every second."""

    _schedule = IntervalSecondsSchedule(1)
    size = Size.SMALL
    encrypted = True

    async def execute(self) -> str:
        return "done"
