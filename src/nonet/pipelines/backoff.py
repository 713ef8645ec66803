"""When a pipeline fetches, and how much. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_STEPS = (0.5, 1.0, 2.0, 5.0)
_SPREAD = 0.2
# The share of empty fetches after which the pause is the shortest: rows may have been skipped
# because other rows claim them.
_IMPATIENCE = 0.1
_LOWER, _UPPER = 0.5, 2.0


@dataclass(slots=True)
class Pauses:
    """The pauses between fetches that found nothing: 0.5, 1, 2, then 5 seconds, ± 20 %."""

    empty: int = 0

    def after(self, found: int) -> float:
        """Seconds until the next fetch, unless a hint comes before; 0 after a fetch with rows."""
        if found:
            self.empty = 0
            return 0.0
        if self.empty >= len(_STEPS) and random.random() < _IMPATIENCE:
            self.empty = 0
        pause = _STEPS[min(self.empty, len(_STEPS) - 1)]
        self.empty += 1
        return pause * random.uniform(1 - _SPREAD, 1 + _SPREAD)


def queue_size(workers: int, queue: int | None) -> int:
    """How many rows are leased in advance at most.

    >>> queue_size(20, None), queue_size(20, 5)
    (40, 5)
    """
    return math.ceil(workers * _UPPER) if queue is None else queue


def wanted(queued: int, workers: int, queue: int | None) -> int:
    """How many rows to fetch now: none while the queue holds enough.

    >>> wanted(9, 20, None), wanted(10, 20, None)
    (31, 0)
    """
    size = queue_size(workers, queue)
    low = min(size, math.ceil(workers * _LOWER))
    return size - queued if queued < low else 0
