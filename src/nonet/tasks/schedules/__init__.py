"""When a periodic task runs: intervals, cron expressions and RRULEs. Pure; UTC in, UTC out.

When the clocks change, a cron or RRULE schedule in a time zone behaves like this:

- A rule with fixed hours runs once per local time. If the clocks skip that time, it runs at the
  first valid instant after the gap; if they repeat it, it runs the first time only.
- A rule for every hour keeps running every real hour or minute: in both passes of a repeated hour,
  and not in a skipped one.
"""

from __future__ import annotations

from typing import cast

from nonet.base.errors import ConfigurationError, suggestion
from nonet.tasks.periodic_policies import CatchUp, Overlap
from nonet.tasks.schedules.cron import CronSchedule
from nonet.tasks.schedules.lateness import latest_until, misfire_grace_of
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
        ConfigurationError: no schedule class has this name.
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
    """Build a schedule from its description in the configuration.

    Args:
        class_name: one of `SCHEDULES`.
        arg: seconds of an interval, or the text of the rule.
        timezone: an IANA name; None: UTC. An interval takes none.

    Raises:
        ConfigurationError: the class, argument or time zone is wrong.

    Example:
        >>> build_schedule("CronSchedule", "0 */6 * * *", "Europe/Zurich")
        CronSchedule(expression='0 */6 * * *', timezone='Europe/Zurich')
    """
    cls = schedule_class(class_name)
    if cls is IntervalSecondsSchedule:
        if timezone not in (None, "UTC"):
            raise ConfigurationError(f"{class_name} takes no timezone: intervals count in UTC")
        return IntervalSecondsSchedule(cast(float, arg))  # the class validates it
    if not isinstance(arg, str):
        raise ConfigurationError(f"the argument of {class_name} must be a text, not {arg!r}")
    wall_clock = cast(type[CronSchedule] | type[RRuleSchedule], cls)
    return wall_clock(arg, timezone or "UTC")
