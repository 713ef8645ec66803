"""What a process has seen of Redis: the epoch, by which it notices a loss of data, and the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from nonet.base.clock import ClockWatch, steady


class EpochSeen:
    """The newest epoch that this process has seen; several threads may write it.

    Args:
        listeners: called when a new epoch is seen, in the thread that sees it.

    Attributes:
        since: when the epoch began (µs by the server's clock), which identifies it; 0: unknown.
        sequence: the highest sequence seen. The leader raises it, so data with a lower sequence are
            older than those that this process has worked with.
        clock: detects steps of the clock of Redis; daemons check it before they act by time.
    """

    def __init__(self, *listeners: Callable[[], None]) -> None:
        self.since: int = 0
        self.sequence: int = 0
        self.clock: ClockWatch = ClockWatch()
        self._listeners = [*listeners]

    @contextmanager
    def telling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Add a listener while the block runs."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def seen(self) -> str:
        """Argument of the scripts, which compare it with their data and with the server's clock."""
        return f"{self.since}|{self.sequence}|{self.latest}"

    @property
    def latest(self) -> int | str:
        """The latest time, in logical µs, at which a request sent now should run; or empty."""
        return self.clock.latest(steady()) or ""

    def see(self, answer: Sequence[bytes]) -> None:
        """Read the ``[epoch, sequence]`` that a script returned."""
        since, sequence = int(answer[0]), int(answer[1])
        has_changed = 0 < self.since < since
        # Replies of two connections may overtake each other: keep the highest values.
        self.since, self.sequence = max(self.since, since), max(self.sequence, sequence)
        if has_changed:
            for tell in self._listeners.copy():
                tell()

    @property
    def began(self) -> datetime:
        """When the epoch began, by the clock of Redis."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.since)
