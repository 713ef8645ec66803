"""Which data set of Redis this process has seen last: an emptied Redis is noticed by everybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta


class EpochSeen:
    """What a process knows of the epoch; several threads may write it.

    Attributes:
        since: its name, which is when it began (µs by the server's clock); 0: not known yet.
        sequence: the highest that was seen. The leader raises it, so that data with a lower one
            are older than what this process worked with.
    """

    def __init__(self) -> None:
        self.since: int = 0
        self.sequence: int = 0
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` when another epoch is seen to have begun, in the thread that sees it."""
        self._tell = listener

    @property
    def seen(self) -> str:
        """For the scripts, which tell by it whether Redis has lost what we know of."""
        return f"{self.since}|{self.sequence}"

    def see(self, answer: Sequence[bytes]) -> None:
        """Learn what a script said, ``[epoch, sequence]``."""
        since, sequence = int(answer[0]), int(answer[1])
        has_changed = 0 < self.since < since
        # Replies of two connections may cross: the newer of both counts.
        self.since, self.sequence = max(self.since, since), max(self.sequence, sequence)
        if has_changed:
            self._tell()

    @property
    def began(self) -> datetime:
        """When the epoch began, by the clock of Redis."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.since)
