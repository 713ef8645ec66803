"""The figures of classes, tenants and streams as operators read them: `nonet.rules.vectors`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from nonet.rules.reasons import Reason
from nonet.rules.vectors import (
    BUCKETS,
    COUNTS,
    DURATIONS,
    ENDS,
    LOAD,
    LOADS,
    RAN,
    WAITED,
    merged,
    started_in,
)

OTHERS = "others"
"""The name of all classes beyond the number that a slot of time has room for."""


class Resolution(NamedTuple):
    """How fine figures are kept, and for how long: in seconds."""

    slot: int
    kept: int


RESOLUTIONS = (Resolution(60, 3 * 3600), Resolution(3600, 15 * 86400))
DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
LONGEST = timedelta(days=14)
"""How far figures go back; the day before can be compared, too."""

_NO_FAILURES = ("done", Reason.EXPECTED, Reason.CANCELLED)

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
    """What the workers counted in a span of time.

    Attributes:
        ended: tasks that a worker ended, in whatever state.
        failed: tasks that ended dead or expired, without those in `expected`.
        expected: tasks that ended dead with an error that their class declares as expected.
        retried: attempts that failed, or whose process died, and were followed by another one.
        wait: how long tasks were runnable before a worker fetched them.
        run: how long attempts ran; of tenants it is not counted.
        started: attempts that began; only of tenants.
        ends: how many tasks ended ``done`` or for each other reason, without those that are 0.
    """

    ended: int = 0
    failed: int = 0
    expected: int = 0
    retried: int = 0
    wait: Times = Times()
    run: Times = Times()
    started: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """How much there was, as the leader notes it each minute; of an hour the largest numbers.

    Attributes:
        queued, running, waiting, delayed: how many tasks were in each state. Of a stream only those
            that were queued and running are known.
        oldest_seconds: age of the oldest queued task.
        submitted_per_minute: tasks that were submitted since the slot before; None: not counted.
    """

    queued: int = 0
    running: int = 0
    waiting: int = 0
    delayed: int = 0
    oldest_seconds: float = 0.0
    submitted_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """The figures of one slot of time, which begins at `at`.

    Attributes:
        load: how much there was; None: not known, or not a stream.
    """

    at: datetime
    figures: Figures
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class FigureSeries:
    """The figures of a class, a stream, a tenant, or of all together.

    Attributes:
        name: full class name, ``unknown`` for classes that the worker did not know; name of the
            stream or the tenant; ``all``. ``others`` or ``(others)``: those for which there was no
            room.
        since: start of the first slot; the figures reach until now.
        slot_seconds: length of a slot.
        ended_per_minute, failed_per_minute, retried_per_minute: rates from `since` to now.
        ended_per_minute_before: rate of the same time a day earlier, by hours; None: not known.
        total: the figures of the whole time.
        series: one item for each slot in which something was counted, the oldest first; empty if
            the figures of several were asked for.
        before: the hours of the day before that are compared with `series`.
    """

    name: str
    since: datetime
    slot_seconds: int
    ended_per_minute: float
    failed_per_minute: float
    retried_per_minute: float
    total: Figures
    series: tuple[SlotFigures, ...]
    ended_per_minute_before: float | None = None
    before: tuple[SlotFigures, ...] = ()


def resolution_for(span: timedelta) -> Resolution:
    """Return the finest resolution that is kept for a span, else the coarsest one.

    >>> resolution_for(timedelta(hours=3)).slot, resolution_for(timedelta(days=1)).slot
    (60, 3600)
    """
    wanted = span.total_seconds()
    return next((one for one in RESOLUTIONS if wanted <= one.kept), RESOLUTIONS[-1])


def figures_of(vector: Mapping[int, int]) -> Figures:
    """Read a vector.

    >>> found = figures_of({0: 4, 1: 1, 11: 2, 12: 5})
    >>> found.ended, found.failed, found.retried, found.ends, found.wait.p50
    (5, 1, 2, {'done': 4, 'retries': 1}, 0.0005)
    """
    ends = {end: number for place, end in enumerate(ENDS) if (number := vector.get(place, 0))}
    return Figures(
        ended=sum(ends.values()),
        failed=sum(number for end, number in ends.items() if end not in _NO_FAILURES),
        expected=ends.get(Reason.EXPECTED, 0),
        retried=vector.get(COUNTS.index("retried"), 0),
        wait=_times(vector, WAITED),
        run=_times(vector, RAN),
        started=started_in(vector),
        ends=ends,
    )


def figure_series(
    name: str,
    slots: Mapping[datetime, Mapping[int, int]],
    since: datetime,
    now: datetime,
    slot: int,
    *,
    before: Mapping[datetime, Mapping[int, int]] | None = None,
    is_whole: bool = True,
) -> FigureSeries:
    """Return the figures of a class, a stream or a tenant.

    Args:
        slots: vectors by the start of their slot.
        since: start of the first slot.
        slot: its length in seconds.
        before: the hours that overlap this time a day earlier; None: they are not asked for.
        is_whole: return the slots, too.
    """
    total = figures_of(merged(slots.values()))
    minutes = max((now - since).total_seconds(), 1.0) / 60
    return FigureSeries(
        name=name,
        since=since,
        slot_seconds=slot,
        ended_per_minute=total.ended / minutes,
        failed_per_minute=total.failed / minutes,
        retried_per_minute=total.retried / minutes,
        total=total,
        series=tuple(_read_slots(slots)) if is_whole else (),
        ended_per_minute_before=_rate_before(before, since, now),
        before=tuple(_read_slots(before)) if before and is_whole else (),
    )


def _rate_before(
    before: Mapping[datetime, Mapping[int, int]] | None, since: datetime, now: datetime
) -> float | None:
    """Return how many tasks ended a minute in hours that overlap a time a day earlier."""
    if not before:
        return None
    one = next(iter(before))
    hours = math.ceil((now - DAY - one) / _HOUR) - (since - DAY - one) // _HOUR
    return figures_of(merged(before.values())).ended / (60 * max(1, hours))


def _read_slots(slots: Mapping[datetime, Mapping[int, int]]) -> Iterator[SlotFigures]:
    before: tuple[datetime, int] | None = None
    for at in sorted(slots):
        vector = slots[at]
        load = {name: vector[place] for place, name in enumerate(LOADS, LOAD) if place in vector}
        is_noted = bool(load)
        number, rate = load.pop("submitted", None), None
        if number is not None:
            if before is not None:  # fewer than before: Redis has lost its data
                rate = max(0, number - before[1]) / ((at - before[0]) / _MINUTE)
            before = at, number
        oldest = load.pop("oldest_ms", 0) / 1000
        shown = Load(**load, oldest_seconds=oldest, submitted_per_minute=rate) if is_noted else None
        yield SlotFigures(at, figures_of(vector), shown)


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
