"""Durations on the command line: ``30d``, ``12h``, ``90m``, ``3600s``."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_LONGEST = timedelta(days=36_500)


def duration(text: str, default_unit: str = "") -> timedelta:
    """Parse a number with its unit: d, h, m or s; at most 100 years.

    Args:
        default_unit: what a bare number means. If empty it is an error: seconds and days are too
            easily confused.

    Raises:
        typer.BadParameter: the text is not a duration, has no unit, or is too long.

    >>> duration("30d"), duration("1.5h"), duration("90", "s")
    (datetime.timedelta(days=30), datetime.timedelta(seconds=5400), datetime.timedelta(seconds=90))
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([dhms]?)", text.strip().lower(), re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30d, 12h, 90m or 3600s")
    number, unit = found[1], found[2] or default_unit
    if not unit:
        raise typer.BadParameter(
            f"{text!r} has no unit; write {number}d, {number}h, {number}m or {number}s"
        )
    try:
        length = timedelta(**{_UNITS[unit]: float(number)})
    except OverflowError:
        length = timedelta.max
    if length > _LONGEST:
        raise typer.BadParameter(f"{text!r} is more than 100 years")
    return length
