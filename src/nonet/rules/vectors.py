"""The vectors in which workers count: what happened to a class or a tenant in a span of time.

A vector maps a place to a count, and leaves out those that are 0. The first places are `COUNTS`;
then come the buckets of waiting times, then the buckets of running times, both with the bounds of
`DURATIONS`; then attempts started by size, which only vectors of tenants have. Workers make
vectors, ``add_figures.lua`` adds them, and `nonet.rules.figures` reads the sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nonet.base.streams import Size

# Upper bounds of buckets in seconds, from an empty task to a task of half a day; a last bucket has
# none.
DURATIONS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(60, 300, 900, 3600, 14400, 43200),
)
COUNTS = ("ended", "failed", "retried", "expected")
BUCKETS = len(DURATIONS) + 1
WAITED = len(COUNTS)
RAN = WAITED + BUCKETS
_STARTED = RAN + BUCKETS


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
    ({0: 1, 4: 1}, {0: 2, 2: 1})
    """
    found = {}
    for first, numbers in ((0, counts), (WAITED, waited), (RAN, ran), (_STARTED, started)):
        for place, number in enumerate(numbers, first):
            if more := number - minus.get(place, 0):
                found[place] = more
    return found


def merged(vectors: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Add vectors."""
    total: Counter[int] = Counter()
    for one in vectors:
        total.update(one)
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
