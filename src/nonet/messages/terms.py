"""The terms of a submission: lines ``name|value|…`` that scripts read, such as its deadline."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

StartBy = float | timedelta | datetime
"""The latest start of a task: seconds or a duration from its submission, or an instant."""

# Ten years, the longest time until a deadline.
_LONGEST = timedelta(days=3653)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RELATIVE = re.compile(r"^start_by\|\+(\d+)", re.MULTILINE)


def start_by_problem(value: object) -> str:
    """Return what is wrong with a ``start_by``; empty if it is valid.

    >>> start_by_problem(30), start_by_problem(timedelta(minutes=1))
    ('', '')
    >>> start_by_problem(0)
    'must be seconds or a timedelta above 0, at most ten years, not 0'
    """
    if isinstance(value, datetime):
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # A span below a microsecond would be 0; the comparison also rejects nan.
    if is_number and _MICROSECOND.total_seconds() <= seconds <= _LONGEST.total_seconds():  # type: ignore[operator]  # seen above
        return ""
    return f"must be seconds or a timedelta above 0, at most ten years, not {value!r:.100}"


def start_by_term(start_by: StartBy, *, keep: bool) -> str:
    """Return the line of a deadline: µs of the wall clock or, with a ``+``, from the submission.

    Args:
        start_by: valid by `start_by_problem`; a naive instant is in UTC.
        keep: whether a task that misses it gets a row in SQL.

    >>> start_by_term(1.5, keep=True)
    'start_by|+1500000|1'
    >>> start_by_term(datetime(1970, 1, 1, 0, 0, 2), keep=False)
    'start_by|2000000|'
    """
    if isinstance(start_by, datetime):
        instant = start_by if start_by.tzinfo else start_by.replace(tzinfo=UTC)
        when = f"{max(0, (instant - _EPOCH) // _MICROSECOND)}"
    else:
        span = start_by if isinstance(start_by, timedelta) else timedelta(seconds=start_by)
        when = f"+{span // _MICROSECOND}"
    return f"start_by|{when}|{1 if keep else ''}"


def counted_from(terms: str, submitted: datetime) -> str:
    """Return `terms` with a deadline relative to `submitted`, for a task that is sent later.

    >>> counted_from("start_by|+1500000|1", datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    'start_by|61500000|1'
    """
    start = (submitted - _EPOCH) // _MICROSECOND
    return _RELATIVE.sub(lambda found: f"start_by|{start + int(found[1])}", terms)
