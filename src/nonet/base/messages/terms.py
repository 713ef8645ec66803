"""When a task may and must start: its delay and, as a term that scripts read, its deadline.

Terms are lines ``name|value|…``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

StartBy = float | timedelta | datetime
"""The latest start of a task: seconds or a duration from its submission, or an instant."""

Delay = float | timedelta
"""The earliest start of a task: seconds or a duration from its submission."""

# Ten years, the longest delay, and the longest time until a deadline.
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
    >>> start_by_problem(datetime(2030, 1, 1))
    'datetime.datetime(2030, 1, 1, 0, 0) has no time zone: pass an aware datetime'
    """
    if isinstance(value, datetime):
        return f"{value!r} has no time zone: pass an aware datetime" if is_naive(value) else ""
    # A span below a microsecond would be 0.
    if _is_span_from(_MICROSECOND.total_seconds(), value):
        return ""
    return f"must be seconds or a timedelta above 0, at most ten years, not {value!r:.100}"


def delay_problem(value: object) -> str:
    """Return what is wrong with a ``delay``; empty if it is valid.

    >>> delay_problem(0), delay_problem(timedelta(minutes=1))
    ('', '')
    >>> delay_problem(-1)
    'must be seconds or a timedelta from 0 to ten years, not -1'
    """
    if _is_span_from(0, value):
        return ""
    return f"must be seconds or a timedelta from 0 to ten years, not {value!r:.100}"


def _is_span_from(least: float, value: object) -> bool:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    return least <= seconds <= _LONGEST.total_seconds()  # also rejects nan


def is_naive(instant: datetime) -> bool:
    """Whether an instant has no time zone."""
    return instant.utcoffset() is None


def span_of(value: float | timedelta) -> timedelta:
    """Convert seconds or a duration."""
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def unix_microseconds(instant: datetime) -> int:
    """Convert an aware instant; one before 1970 gives 0.

    >>> unix_microseconds(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
    2000000
    """
    return max(0, (instant - _EPOCH) // _MICROSECOND)


def microseconds(span: float | timedelta) -> int:
    """Convert seconds or a duration.

    >>> microseconds(1.5)
    1500000
    """
    return span_of(span) // _MICROSECOND


def start_by_term(start_by: StartBy, *, keep: bool) -> str:
    """Return the line of a deadline: µs of the wall clock or, with a ``+``, from the submission.

    Args:
        start_by: valid by `start_by_problem`.
        keep: whether a task that misses it gets a row in SQL.

    >>> start_by_term(1.5, keep=True)
    'start_by|+1500000|1'
    >>> start_by_term(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), keep=False)
    'start_by|2000000|'
    """
    if isinstance(start_by, datetime):
        when = f"{unix_microseconds(start_by)}"
    else:
        when = f"+{microseconds(start_by)}"
    return f"start_by|{when}|{1 if keep else ''}"


def counted_from(terms: str, submitted: datetime) -> str:
    """Return `terms` with a deadline relative to `submitted`, for a task that is sent later.

    >>> counted_from("start_by|+1500000|1", datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    'start_by|61500000|1'
    """
    start = (submitted - _EPOCH) // _MICROSECOND
    return _RELATIVE.sub(lambda found: f"start_by|{start + int(found[1])}", terms)


def step_term(
    workflow: str, edges: str, after: Sequence[str], *, any_failed: bool, delay_us: int
) -> str:
    """Return the first line of the terms of a step, see ``scripts/lib/staging.lua``.

    Args:
        edges: letters of the edges that leave the step.
        after: its predecessors, each the letter of the edge and the place.
        any_failed: whether it has an edge on failure, so that at least one of them must fail.
        delay_us: µs to wait after its release.

    >>> step_term("w", "sf", ["s0", "a1"], any_failed=False, delay_us=0)
    'step w sf - - s0 a1'
    """
    any_word, delay = "1" if any_failed else "-", str(delay_us or "-")
    return " ".join(("step", workflow, edges or "-", any_word, delay, *after))


def tenant_term(terms: str) -> str:
    """Return the line with the tenant of a task, or an empty text.

    >>> tenant_term("start_by|+1500000|1\\ntenant|acme"), tenant_term("")
    ('tenant|acme', '')
    """
    return next((line for line in terms.split("\n") if line.startswith("tenant|")), "")


def predecessors(terms: str) -> str:
    """Return the predecessors of a step as they are in its terms.

    >>> predecessors("step w sf - - s0 a1"), predecessors("step w - - -")
    ('s0 a1', '')
    """
    return " ".join(terms.partition("\n")[0].split(" ", 5)[5:])
