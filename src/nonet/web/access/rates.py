"""Limit the rate of requests of one caller, in this process."""

from __future__ import annotations

import time

_MOST_CALLERS = 10_000


class Rates:
    """How many requests each caller may still send.

    Args:
        per_second: requests a second in the long run.
        burst: requests at once.
    """

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, caller: str) -> float:
        """Count a request; return 0, or the seconds after which the caller may try again."""
        now = time.monotonic()
        left, at = self._left.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < 1:
            return (1 - left) / self._per_second
        if len(self._left) >= _MOST_CALLERS and caller not in self._left:
            self._forget(now)
        self._left[caller] = left - 1, now
        return 0.0

    def _forget(self, now: float) -> None:
        """Forget callers that have all their requests again; all, if that is too few."""
        full = now - self._burst / self._per_second
        self._left = {caller: item for caller, item in self._left.items() if item[1] > full}
        if len(self._left) >= _MOST_CALLERS:
            self._left.clear()
