"""The figures of classes and tenants as operators read them, from `nonet.rules.vectors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from nonet.rules.vectors import BUCKETS, COUNTS, DURATIONS, RAN, WAITED, merged

OTHERS = "others"
"""The name of all classes beyond the number that a slot of time has room for."""


class Resolution(NamedTuple):
    """How fine figures are kept, and for how long: in seconds."""

    slot: int
    kept: int


RESOLUTIONS = (Resolution(60, 2 * 3600), Resolution(600, 48 * 3600))


_UNITS = ((3600, "h"), (60, "min"), (1, "s"))


def _brief(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.2g}ms" if seconds < 0.1 else f"{1000 * seconds:.0f}ms"
    size, unit = next(item for item in _UNITS if seconds >= item[0] * (1 if item[0] == 1 else 2))
    return f"{seconds / size:.2g}{unit}" if seconds / size < 10 else f"{seconds / size:.0f}{unit}"


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles in seconds, see `percentile`; None: nothing was counted."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def in_words(self) -> str:
        """The percentiles in one column, so that a row fits 80 columns.

        >>> Times(0.0042, 1.25, 300).in_words, Times().in_words
        ('4.2ms 1.2s 5min', '')
        """
        known = (self.p50, self.p95, self.p99)
        return " ".join(_brief(seconds) for seconds in known if seconds is not None)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the workers counted of one class in a span of time.

    Attributes:
        ended: tasks that a worker ended, in whatever state.
        failed: tasks that ended dead or expired, without those in `expected`.
        expected: tasks that ended dead with an error that their class declares as expected.
        retried: attempts that failed, or whose process died, and were followed by another one.
        wait: how long tasks were runnable before a worker fetched them.
        run: how long attempts ran.
    """

    ended: int = 0
    failed: int = 0
    expected: int = 0
    retried: int = 0
    wait: Times = Times()
    run: Times = Times()


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """The figures of one slot of time, which begins at `at`."""

    at: datetime
    figures: Figures


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The figures of one class.

    Attributes:
        name: full class name; ``unknown``: classes that the worker did not know; ``others``:
            classes for which there was no room.
        since: start of the first slot; the figures reach until now.
        slot_seconds: length of a slot.
        ended_per_minute, failed_per_minute, retried_per_minute: rates from `since` to now.
        total: the figures of the whole time.
        series: one item for each slot in which something was counted, the oldest first.
    """

    name: str
    since: datetime
    slot_seconds: int
    ended_per_minute: float
    failed_per_minute: float
    retried_per_minute: float
    total: Figures
    series: tuple[SlotFigures, ...]


def resolution_for(span: timedelta) -> Resolution:
    """Return the finest resolution that is kept for a span, else the coarsest one.

    >>> resolution_for(timedelta(hours=1)).slot, resolution_for(timedelta(days=1)).slot
    (60, 600)
    """
    wanted = span.total_seconds()
    return next((one for one in RESOLUTIONS if wanted <= one.kept), RESOLUTIONS[-1])


def figures_of(vector: Mapping[int, int]) -> Figures:
    """Read a vector.

    >>> figures_of({0: 4, 1: 1, 4: 4}).wait.p50
    0.0005
    """
    counts = {name: vector.get(place, 0) for place, name in enumerate(COUNTS)}
    return Figures(**counts, wait=_times(vector, WAITED), run=_times(vector, RAN))


def class_figures(
    name: str,
    slots: Mapping[datetime, Mapping[int, int]],
    since: datetime,
    now: datetime,
    slot: int,
) -> ClassFigures:
    """Return the figures of a class.

    Args:
        slots: vectors by the start of their slot.
        since: start of the first slot.
        slot: its length in seconds.
    """
    total = figures_of(merged(slots.values()))
    minutes = max((now - since).total_seconds(), 1.0) / 60
    return ClassFigures(
        name=name,
        since=since,
        slot_seconds=slot,
        ended_per_minute=total.ended / minutes,
        failed_per_minute=total.failed / minutes,
        retried_per_minute=total.retried / minutes,
        total=total,
        series=tuple(SlotFigures(at, figures_of(slots[at])) for at in sorted(slots)),
    )


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the time in seconds below which this share of the durations lies.

    It is interpolated within its bucket, as Prometheus does; in the last one, which has no upper
    bound, it is the lower bound.

    >>> percentile([0, 10], 0.5), percentile([0] * 20 + [1], 0.5), percentile([], 0.5)
    (0.00175, 43200, None)
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below = 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            lower = DURATIONS[bucket - 1] if bucket else 0.0
            if bucket == len(DURATIONS):
                return lower
            return lower + (DURATIONS[bucket] - lower) * (rank - below) / count
        below += count
    return DURATIONS[-1]  # rounding


def _times(vector: Mapping[int, int], first: int) -> Times:
    counts = [vector.get(place, 0) for place in range(first, first + BUCKETS)]
    return Times(*(percentile(counts, share) for share in (0.50, 0.95, 0.99)))
