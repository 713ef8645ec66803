"""How many tasks a worker fetches at once after replies of Redis were lost."""

from __future__ import annotations

from msgspec import Struct

_GROW_SECONDS = 60.0
# How many replies with a single task are lost in a row until the task is set aside.
_TRIES = 3


class Batch(Struct):
    """Fetches fewer tasks at once while larger replies are lost.

    A reply may exceed the output buffer of the client in Redis, or may be too large for a slow
    network. Fetching the same number of tasks again would lose them again.

    Attributes:
        most: how many tasks of a kind to fetch at once; None: no limit.
        losses: number of lost replies since there was no limit.

    Example:
        >>> batch = Batch()
        >>> batch.lost(30, now=0.0)
        >>> batch.of(50), batch.of(7)
        (15, 7)
    """

    most: int | None = None
    losses: int = 0
    _first: int = 0
    _alone: int = 0
    _grows_at: float = 0.0

    def of(self, wanted: int) -> int:
        """Return how many of `wanted` tasks to fetch now."""
        return wanted if self.most is None else min(wanted, self.most)

    @property
    def is_stuck(self) -> bool:
        """Whether the task of the next lost reply is to be set aside."""
        return self._alone >= _TRIES - 1

    @property
    def is_narrow(self) -> bool:
        """Whether replies were lost repeatedly: a single loss is an interruption of the network."""
        return self.losses > 1

    def lost(self, number: int, now: float) -> None:
        """Record that a reply with this many tasks was lost at `now` (monotonic)."""
        if self.most is None:
            self._first = number
        self._alone = self._alone + 1 if self.most == 1 and not self.is_stuck else 0
        self.most = max(1, self.of(number) // 2)
        self.losses += 1
        self._grows_at = now + _GROW_SECONDS

    def arrived(self, number: int, now: float) -> None:
        """Record that a reply with this many tasks arrived; allow more each minute."""
        if number:
            self._alone = 0
        if self.most is not None and now >= self._grows_at:
            self.most, self._grows_at = 2 * self.most, now + _GROW_SECONDS
            if self.most >= self._first:
                self.most, self.losses = None, 0
