"""Parse cron expressions with croniter, in the dialect of `nonet.CronSchedule`."""

from __future__ import annotations

import re
from datetime import datetime

from croniter import CroniterBadDateError, CroniterError, croniter

_FIELDS = [
    ("minute", 0, 59, ""),
    ("hour", 0, 23, ""),
    ("day of month", 1, 31, ""),
    ("month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    ("day of week", 0, 6, "sun mon tue wed thu fri sat"),
]
_RANGE = re.compile(r"(\d+)-(\d+)(?:/(\d+))?", re.ASCII)


def parse(expression: object) -> croniter[datetime]:
    """Parse the expression of a `nonet.CronSchedule`.

    Raises:
        ValueError: the reason, to be appended to the expression.
    """
    if not isinstance(expression, str):
        raise ValueError(" is not a text")
    texts = expression.lower().split()
    if not expression.startswith("@"):
        if len(texts) != 5:
            raise ValueError(
                f" has {len(texts)} fields instead of 5 (minute, hour, day of month, month, day of"
                " week); for seconds use IntervalSecondsSchedule"
            )
        texts = [_unambiguous(text, *field) for text, field in zip(texts, _FIELDS, strict=True)]
    try:
        cron = croniter(" ".join(texts), 0.0, datetime)
        cron.get_next()
    except CroniterBadDateError:
        raise ValueError(": no date matches") from None
    except CroniterError as error:
        raise ValueError(_reason(texts, error)) from None
    is_special = cron.nth_weekday_of_month or cron.nearest_weekday
    if is_special and ["*"] not in (cron.expanded[2], cron.expanded[4]):
        raise ValueError(
            ": '#', 'W' and 'L5' cannot be combined with the other day field; use RRuleSchedule"
        )
    return cron


def _unambiguous(text: str, name: str, low: int, high: int, names: str) -> str:
    """Write a field such that croniter reads it as POSIX does.

    croniter takes ``5-5`` for the whole field, miscounts the steps of some ranges that wrap around,
    and, when it combines the two day fields, takes ``*/2`` for ``*``.

    Raises:
        ValueError: the reason, to be appended to the expression.
    """
    if text.startswith(("h", "r")):
        raise ValueError(f": {text!r} in the {name} means any value; write the number")
    if text in ("*", "*/1"):
        return "*"
    for step in re.findall(r"/(\d+)", text):
        if not 1 <= int(step) <= high:
            raise ValueError(f": a step of {step} does not fit into the {name}")
    words, size = names.split(), high - low + 1

    def number(found: re.Match[str]) -> str:
        return str(words.index(found[0]) + low) if found[0] in words else found[0]

    def written_out(item: str) -> str:
        item = re.sub(r"^\*(?=/|$)", f"{low}-{high}", item)
        found = _RANGE.fullmatch(item)
        if found is None or (first := int(found[1])) < (last := int(found[2])):
            return item
        if last < low or first > max(high, 7):  # 7 is Sunday
            raise ValueError(f": {item!r} is not valid as {name} ({low} to {high})")
        if last < first and name == "minute":  # most likely a typing error, and nearly every minute
            raise ValueError(
                f": {item!r} runs backwards; write two ranges, such as {first}-{high},{low}-{last}"
            )
        numbers = range(first, last + size * (last < first) + 1, int(found[3] or "1"))
        return ",".join(str((number - low) % size + low) for number in numbers)

    return ",".join(map(written_out, re.sub("[a-z]+", number, text).split(",")))


def _reason(texts: list[str], error: Exception) -> str:
    """Name the field that croniter refuses."""
    if len(texts) != 5:
        return " is an unknown alias, known are @hourly, @daily, @weekly, @monthly, @yearly"
    for index, (name, low, high, _) in enumerate(_FIELDS):
        fields = ["*"] * 5
        fields[index] = texts[index]
        if not croniter.is_valid(" ".join(fields)):
            return f": {texts[index]!r} is not valid as {name} ({low} to {high})"
    return f": {error}"
