"""When a periodic task runs: intervals, cron expressions and RRULEs. Pure; UTC in, UTC out.

Clocks that change (cron and RRULE with a time zone). A rule with fixed hours fires once for
each local time: at the first valid instant if the clocks skip it, on the first pass if they
repeat it. A rule for every hour follows the clock as it passes: it fires on both passes of a
repeated hour and not in a skipped one, so that it keeps firing every real hour or minute.
"""

from __future__ import annotations

from typing import cast

from nonet.base.errors import ConfigurationError, suggestion
from nonet.tasks.schedules.cron import CronSchedule
from nonet.tasks.schedules.lateness import latest_until, misfire_grace_of
from nonet.tasks.schedules.policies import CatchUp, Overlap
from nonet.tasks.schedules.recurrence import RRuleSchedule
from nonet.tasks.schedules.schedule import (
    MICROSECOND,
    IntervalSeconds,
    IntervalSecondsSchedule,
    TaskScheduleBase,
    next_after,
    takes_after,
)
from nonet.tasks.schedules.wallclock import zone

__all__ = [
    "MICROSECOND",
    "SCHEDULES",
    "CatchUp",
    "CronSchedule",
    "IntervalSeconds",
    "IntervalSecondsSchedule",
    "Overlap",
    "RRuleSchedule",
    "TaskScheduleBase",
    "build_schedule",
    "latest_until",
    "misfire_grace_of",
    "next_after",
    "schedule_class",
    "takes_after",
    "zone",
]

SCHEDULES: dict[str, type[TaskScheduleBase]] = {
    "IntervalSecondsSchedule": IntervalSecondsSchedule,
    "IntervalSeconds": IntervalSecondsSchedule,
    "CronSchedule": CronSchedule,
    "RRuleSchedule": RRuleSchedule,
}


def schedule_class(name: str) -> type[TaskScheduleBase]:
    """The schedule class that the configuration calls `name`.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in SCHEDULES:
        raise ConfigurationError(
            f"unknown schedule class {name!r}, known are {', '.join(SCHEDULES)}."
            + suggestion(name, SCHEDULES)
        )
    return SCHEDULES[name]


def build_schedule(
    class_name: str, arg: str | int | float, timezone: str | None = None
) -> TaskScheduleBase:
    """Build the schedule that the configuration describes.

    Args:
        class_name: one of `SCHEDULES`.
        arg: seconds of an interval, else the text of the rule.
        timezone: an IANA name, UTC when None; not for intervals, which have none.

    Raises:
        ConfigurationError: class, argument or zone is wrong.

    Example:
        >>> build_schedule("CronSchedule", "0 */6 * * *", "Europe/Zurich")
        CronSchedule(expression='0 */6 * * *', timezone='Europe/Zurich')
    """
    cls = schedule_class(class_name)
    if cls is IntervalSecondsSchedule:
        if timezone not in (None, "UTC"):
            raise ConfigurationError(f"{class_name} takes no timezone: its grid is one of UTC")
        return IntervalSecondsSchedule(cast(float, arg))  # checked by the class
    if not isinstance(arg, str):
        raise ConfigurationError(f"the argument of {class_name} is a text, not {arg!r}")
    wall_clock = cast(type[CronSchedule] | type[RRuleSchedule], cls)
    return wall_clock(arg, timezone or "UTC")
