"""Durations as people write them, ``30d`` or ``90m``, and as they read them: ``1 h 30 min``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_LONGEST = timedelta(days=36_500)


def duration(text: str, default_unit: str = "") -> timedelta:
    """Parse a number with its unit: d, h, m or s; at most 100 years.

    Args:
        default_unit: what a bare number means. If empty it is an error: seconds and days are too
            easily confused.

    Raises:
        ValueError: the text is not a duration, has no unit, or is too long.

    >>> duration("30d"), duration("1.5h"), duration("90", "s")
    (datetime.timedelta(days=30), datetime.timedelta(seconds=5400), datetime.timedelta(seconds=90))
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([dhms]?)", text.strip().lower(), re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write 30d, 12h, 90m or 3600s")
    number, unit = found[1], found[2] or default_unit
    if not unit:
        raise ValueError(
            f"{text!r} has no unit; write {number}d, {number}h, {number}m or {number}s"
        )
    try:
        length = timedelta(**{_UNITS[unit]: float(number)})
    except OverflowError:
        length = timedelta.max
    if length > _LONGEST:
        raise ValueError(f"{text!r} is more than 100 years")
    return length


def span(seconds: float) -> str:
    """Format a duration.

    >>> span(0.44), span(59.6), span(3725), span(180_000), span(-1)
    ('0.4 s', '1 min', '1 h 2 min', '2 d 2 h', '0 s')
    """
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for unit, name, small, small_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def moment(text: str) -> datetime:
    """Parse a time: how long ago it was, or an instant in ISO 8601, without a zone in UTC.

    Raises:
        ValueError: it is neither.

    >>> moment("2026-07-01T12:00+02:00").isoformat()
    '2026-07-01T10:00:00+00:00'
    """
    if not re.match(r"\d{4}-", text):
        return datetime.now(UTC) - duration(text)
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not an instant; write 2026-07-01T12:00:00Z") from None
