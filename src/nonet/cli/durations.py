"""Lengths of time as operators write them: ``30d``, ``12h``, ``90m``, ``3600s``."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_LONGEST = timedelta(days=36_500)


def duration(text: str) -> timedelta:
    """A length of time with its unit, at most a century.

    Raises:
        typer.BadParameter: a bare number among others: seconds and days are too easily mixed up.

    >>> duration("30d"), duration("1.5h")
    (datetime.timedelta(days=30), datetime.timedelta(seconds=5400))
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([dhms]?)", text.strip().lower(), re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no length of time; write 30d, 12h, 90m or 3600s")
    number, unit = found.groups()
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
