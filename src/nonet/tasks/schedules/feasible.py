"""Whether a recurrence rule can occur at all, told without walking through the calendar.

dateutil looks for a date that never comes until the year 9999; with a rule for every minute
that takes hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import gcd

DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
UNITS = {
    "SECONDLY": timedelta(seconds=1),
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}
_DATE_PARTS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYDAY")
_TIME_PARTS = {
    "DAILY": [],
    "HOURLY": ["BYHOUR"],
    "MINUTELY": ["BYHOUR", "BYMINUTE"],
    "SECONDLY": ["BYHOUR", "BYMINUTE", "BYSECOND"],
}
_SOME_MONDAY = datetime(1970, 1, 5)
_MOST_WEEKS = 5  # in which a month has the same weekday


def check_feasible(parts: Mapping[str, str], anchor: datetime) -> None:
    """See that a rule has a date.

    Args:
        parts: of the rule, each by itself checked.

    Raises:
        ValueError: none of its dates, or of its hours, ever comes.
    """
    frequency = parts["FREQ"]
    if "BYSETPOS" in parts:
        most = _most_per_period(parts)
        if all(abs(place) > most for place in _numbers(parts, "BYSETPOS")):
            raise ValueError(f"BYSETPOS goes beyond the {most} that one period has at most")
    if frequency in ("YEARLY", "MONTHLY"):
        return
    from dateutil.rrule import rrulestr  # here: who only submits and executes needs none

    dates = [f"{name}={parts[name]}" for name in _DATE_PARTS if name in parts]
    yearly = ";".join(["FREQ=YEARLY", *dates])
    if dates and next(iter(rrulestr(yearly, dtstart=anchor)), None) is None:
        raise ValueError("no date matches")
    if frequency != "WEEKLY" and not _meets_week(parts, anchor):
        raise ValueError(f"counted from {anchor}, no time of the week matches")


def _most_per_period(parts: Mapping[str, str]) -> int:
    """An upper limit of how many times one year, month … has."""
    frequency = parts["FREQ"]
    finer = list(UNITS).index(frequency) if frequency in UNITS else len(UNITS)
    most = 1
    for place, name in enumerate(("BYSECOND", "BYMINUTE", "BYHOUR")):
        if finer > place:
            most *= len(set(_numbers(parts, name)) or {0})
    if frequency == "YEARLY":
        return most * 366
    if frequency == "MONTHLY" and "BYMONTHDAY" in parts:
        return most * len(set(_numbers(parts, "BYMONTHDAY")))
    if frequency in ("MONTHLY", "WEEKLY") and "BYDAY" in parts:
        return (
            most
            * len(set(parts["BYDAY"].split(",")))
            * (_MOST_WEEKS if frequency == "MONTHLY" else 1)
        )
    return most


def _meets_week(parts: Mapping[str, str], anchor: datetime) -> bool:
    """Whether steps of the interval ever come upon one of the weekdays and times of the rule."""
    week = round(UNITS["WEEKLY"].total_seconds())
    step = round(UNITS[parts["FREQ"]].total_seconds()) * int(parts.get("INTERVAL", "1"))
    # What is finer than the frequency is what the rule says, wherever the steps come.
    names = _TIME_PARTS[parts["FREQ"]]
    wanted = [set(_numbers(parts, name)) if name in parts else None for name in names]
    days = {DAYS.index(day) for day in parts["BYDAY"].split(",")} if "BYDAY" in parts else None
    start = round((anchor - _SOME_MONDAY).total_seconds())
    for seconds in range(start % gcd(step, week), week, gcd(step, week)):
        day, time = divmod(seconds, 86400)
        if days is not None and day not in days:
            continue
        values = (time // 3600, time // 60 % 60, time % 60)
        if all(want is None or value in want for value, want in zip(values, wanted, strict=False)):
            return True
    return False


def _numbers(parts: Mapping[str, str], name: str) -> list[int]:
    return [int(item) for item in parts[name].split(",")] if name in parts else []
