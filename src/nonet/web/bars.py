"""Lay out spans of time as bars, one line for each task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from nonet.rules.spans import Span

WIDTH = 1000
"""Width of a line: the picture is as wide as its column."""
_LEAST = 3  # a shorter bar is not seen


class Bar(NamedTuple):
    """A span in the picture."""

    x: float
    width: float
    span: Span


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the lines begin and end; `lines` has the bars of each."""

    begin: datetime
    end: datetime
    lines: Sequence[Sequence[Bar]]


def axis(lines: Sequence[Sequence[Span]], now: datetime) -> Axis | None:
    """Lay out lines on one axis; None if nothing is known of any.

    >>> from datetime import timedelta
    >>> now = datetime(2026, 7, 1, 12)
    >>> ran = Span("ran", 1, now - timedelta(seconds=5), None)
    >>> waited = Span("waited", 1, now - timedelta(seconds=10), ran.begin)
    >>> [(bar.x, bar.width) for bar in axis([[waited, ran]], now).lines[0]]
    [(0.0, 500.0), (500.0, 500.0)]
    """
    every = [span for line in lines for span in line]
    if not every:
        return None
    begin = min(span.begin for span in every)
    end = max(span.end or now for span in every)
    scale = WIDTH / ((end - begin).total_seconds() or 1.0)

    def bar(span: Span) -> Bar:
        width = max(_LEAST, span.lasted(now).total_seconds() * scale)
        x = (span.begin - begin).total_seconds() * scale
        return Bar(round(min(x, WIDTH - _LEAST), 1), round(min(width, WIDTH), 1), span)

    return Axis(begin, end, [[bar(span) for span in line] for line in lines])
