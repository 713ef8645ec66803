"""The vectors in which workers count: what happened to a class, tenant or stream in a span of time.

A vector maps a place to a count, and leaves out those that are 0. The first places are `COUNTS`;
then come the buckets of waiting times, then the buckets of running times, both with the bounds of
`DURATIONS`; then attempts started by size, which only vectors of tenants have; then `LOAD`, which
only vectors of streams have. Workers make vectors, and the leader those of loads;
``add_figures.lua`` and ``fold.lua`` add them, and `nonet.rules.figures` reads the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nonet.base.streams import Size
from nonet.rules.reasons import Reason

# Upper bounds of buckets in seconds, from an empty task to a task of half a day; a last bucket has
# none.
DURATIONS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(60, 300, 900, 3600, 14400, 43200),
)
ENDS = ("done", *map(str, Reason))
"""How tasks end: done, or for a reason."""
COUNTS = (*ENDS, "retried")
BUCKETS = len(DURATIONS) + 1
WAITED = len(COUNTS)
RAN = WAITED + BUCKETS
_STARTED = RAN + BUCKETS
LOAD = _STARTED + len(Size)
LOADS = ("queued", "running", "waiting", "delayed", "oldest_ms", "submitted")
"""How much there was at an instant, and how many tasks had been submitted: largest numbers."""


def vector(
    counts: Sequence[int],
    waited: Sequence[int],
    ran: Sequence[int],
    minus: Mapping[int, int],
    started: Sequence[int] = (),
) -> dict[int, int]:
    """Return what has been counted since an earlier vector: number by place, without zeros.

    Args:
        counts: as `COUNTS`.
        waited, ran: numbers by bucket.
        minus: the earlier vector.
        started: attempts by size.

    >>> before = vector([1, 0, 0], [1, 0], [], {})
    >>> before, vector([3, 0, 1], [1, 0], [], before)
    ({0: 1, 12: 1}, {0: 2, 2: 1})
    """
    found = {}
    for first, numbers in ((0, counts), (WAITED, waited), (RAN, ran), (_STARTED, started)):
        for place, number in enumerate(numbers, first):
            if more := number - minus.get(place, 0):
                found[place] = more
    return found


def end_counts(done: int, reasons: Mapping[str, int], retried: int) -> list[int]:
    """Return the numbers of `COUNTS`.

    Args:
        reasons: how many tasks ended for each reason.
    """
    return [done, *(reasons.get(reason, 0) for reason in Reason), retried]


def load_vector(**loads: int) -> dict[int, int]:
    """Return the vector of how much there is.

    Args:
        loads: as `LOADS`.

    >>> load_vector(queued=7, waiting=0)
    {57: 7, 59: 0}
    """
    return {LOAD + LOADS.index(name): number for name, number in loads.items()}


def packed(vector: Mapping[int, int]) -> bytes:
    """Return a vector as scripts get and keep it."""
    return msgspec.msgpack.encode([part for pair in vector.items() for part in pair])


def merged(vectors: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add vectors, but keep the largest number of each of `LOADS`."""
    total: dict[int, int] = {}
    for one in vectors:
        for place, number in one.items():
            known = total.get(place, 0)
            total[place] = known + number if place < LOAD else max(known, number)
    return total


def starts_of(vector: Mapping[int, int]) -> dict[Size, int]:
    """Return how many attempts of a tenant have started, by size.

    >>> starts_of(vector([], [], [], {}, started=[3, 0, 1]))[Size.LARGE]
    1
    """
    return {size: vector.get(place, 0) for place, size in enumerate(Size, _STARTED)}


def started_in(vector: Mapping[int, int]) -> int:
    """Return how many attempts of a tenant have started."""
    return sum(starts_of(vector).values())
