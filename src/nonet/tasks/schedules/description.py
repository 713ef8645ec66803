"""Describe schedules: in a text that can be read back, and in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules.cron import CronSchedule
from nonet.tasks.schedules.recurrence import RRuleSchedule
from nonet.tasks.schedules.schedule import IntervalSecondsSchedule, TaskScheduleBase

_KNOWN = {cls.__name__: cls for cls in (IntervalSecondsSchedule, CronSchedule, RRuleSchedule)}
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]


def describe(schedule: TaskScheduleBase) -> str:
    """Describe a schedule in a text that is the same after a restart.

    Example:
        >>> describe(IntervalSecondsSchedule(60)), describe(CronSchedule("@daily"))
        ('IntervalSecondsSchedule(60)', "CronSchedule('@daily', 'UTC')")
    """
    name = type(schedule).__name__
    if not is_dataclass(schedule):
        return f"{name}()"
    values = [getattr(schedule, item.name) for item in fields(schedule) if item.init]
    return f"{name}({', '.join(map(stable, values))})"


@lru_cache(maxsize=1000)
def described(text: str) -> TaskScheduleBase | None:
    """Read back what `describe` wrote; None for the schedule of an author's own class.

    Example:
        >>> described("CronSchedule('@daily', 'UTC')"), described("FullMoon()")
        (CronSchedule(expression='@daily', timezone='UTC'), None)
    """
    name, _, arguments = text.partition("(")
    cls = _KNOWN.get(name)
    if cls is None:
        return None
    try:
        values = ast.literal_eval(f"({arguments[:-1]},)")
        made: TaskScheduleBase = cls(*values)
    except (ConfigurationError, ValueError, TypeError, SyntaxError):
        return None
    return made


def stable(value: object) -> str:
    """Return a text that is the same in every process: sets and keys sorted, no addresses."""
    if isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        items = sorted(f"{stable(key)}: {stable(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(stable, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(stable, value)))}}}"
    text = repr(value)
    return type(value).__qualname__ if re.search(r" at 0x[0-9a-f]+", text) else text


def in_words(text: str) -> str:
    """Put a schedule, as `describe` wrote it, into words; else show its rule as it is written.

    Example:
        >>> in_words("IntervalSecondsSchedule(10)"), in_words("CronSchedule('5 2 * * 1', 'UTC')")
        ('every 10 s', 'at 02:05 on Monday (UTC)')
        >>> in_words("CronSchedule('*/10 * * * *', 'Europe/Zurich')"), in_words("FullMoon()")
        ('every 10 minutes (Europe/Zurich)', 'FullMoon()')
        >>> in_words("RRuleSchedule('FREQ=MONTHLY;BYDAY=-1FR', 'UTC')")
        'monthly: BYDAY=-1FR (UTC)'
    """
    schedule = described(text)
    match schedule:
        case IntervalSecondsSchedule():
            return f"every {_span(schedule.seconds)}"
        case CronSchedule():
            return f"{_cron(schedule.expression)} ({schedule.timezone})"
        case RRuleSchedule():
            return f"{_rrule(schedule.rule)} ({schedule.timezone})"
    return text


def zone_of(text: str) -> str:
    """Return the time zone of a schedule, as `describe` wrote it; UTC if it has none.

    >>> zone_of("CronSchedule('@daily', 'Europe/Zurich')"), zone_of("IntervalSecondsSchedule(60)")
    ('Europe/Zurich', 'UTC')
    """
    return str(getattr(described(text), "timezone", "UTC"))


def _span(seconds: float) -> str:
    for size, unit, word in ((86_400, "d", "day"), (3600, "h", "hour"), (60, "min", "minute")):
        if seconds >= size and seconds % size == 0:
            return word if seconds == size else f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _cron(expression: str) -> str:
    """Put the common forms of a cron expression into words."""
    fields = expression.split()
    if len(fields) != 5:
        return f"cron {expression}"
    minute, hour, *days = fields
    when = _time(minute, hour)
    if when and days == ["*"] * 3:
        return f"{when} every day" if when.startswith("at ") else when
    if when and days[:2] == ["*", "*"] and days[2].isdigit() and int(days[2]) <= 7:
        return f"{when} on {_DAYS[int(days[2]) % 7]}"
    return f"cron {expression}"


def _time(minute: str, hour: str) -> str:
    """Put minute and hour of a cron expression into words; empty if they are not plain."""
    if minute.isdigit() and hour.isdigit():
        return f"at {int(hour):02}:{int(minute):02}"
    if hour == "*" and minute.isdigit():
        return f"every hour at :{int(minute):02}"
    if (minute, hour) == ("*", "*"):
        return "every minute"
    if hour == "*" and (step := re.fullmatch(r"\*/(\d+)", minute)) and 60 % int(step[1]) == 0:
        return f"every {step[1]} minutes"
    if minute.isdigit() and (step := re.fullmatch(r"\*/(\d+)", hour)) and 24 % int(step[1]) == 0:
        return f"every {step[1]} hours at :{int(minute):02}"
    return ""


def _rrule(rule: str) -> str:
    parts = rule.split()[-1].upper().removeprefix("RRULE:").rstrip(";").split(";")
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    frequency = named.pop("FREQ", "").lower()
    step = named.pop("INTERVAL", "1")
    words = frequency if step == "1" else f"{frequency}, every {step}."
    rest = "; ".join(f"{name}={value}" for name, value in named.items())
    return f"{words}: {rest}" if rest else words
