"""Periodic tasks; apart from the others, which would share their scheduler with them."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import note

from nonet import (
    CronSchedule,
    IntervalSecondsSchedule,
    Overlap,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
    RRuleSchedule,
    Size,
    context,
)


@dataclass
class Tick(PeriodicBaseTask):
    """Every second."""

    _schedule = IntervalSecondsSchedule(1)
    _overlap = Overlap.QUEUE  # a worker that stalls for a second on a busy machine skips none
    _misfire_grace = 60.0  # nor does a scheduler
    size = Size.SMALL

    async def execute(self) -> None:
        note("start", occurrence=context().labels.get("occurrence"))


class TickOfVo(PeriodicVoAwareBaseTask):
    """Every second, once for each VO."""

    default_schedule = IntervalSecondsSchedule(1)
    _misfire_grace = 60.0
    size = Size.SMALL

    async def execute(self) -> None:
        note("start", vo=self.vo, occurrence=context().labels.get("occurrence"))


@dataclass
class AtNight(PeriodicBaseTask):
    """By a cron expression."""

    _schedule = CronSchedule("0 3 * * *")
    size = Size.SMALL

    async def execute(self) -> None:
        note("start")


@dataclass
class OnMondays(PeriodicBaseTask):
    """By a recurrence rule."""

    _schedule = RRuleSchedule("FREQ=WEEKLY;BYDAY=MO;BYHOUR=6;BYMINUTE=0;BYSECOND=0")
    size = Size.SMALL

    async def execute(self) -> None:
        note("start")


@dataclass
class Exhausted(PeriodicBaseTask):
    """A rule whose last occurrence has passed: it must not disturb the others."""

    _schedule = RRuleSchedule("DTSTART:20200101T000000Z\nRRULE:FREQ=DAILY;COUNT=1")
    size = Size.SMALL

    async def execute(self) -> None:
        note("start")
