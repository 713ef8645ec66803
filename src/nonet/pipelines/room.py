"""Which rows may run in this process now: any number, or one suspect alone: `RowAdmission`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nonet.pipelines.processing import Item

# A process starts no other row for up to ALONE_SECONDS, so that a suspect can run alone. If the
# suspect still cannot start, another process may try: this one pauses for that time multiplied by
# _PAUSE_FACTOR, then waits twice as long. So a suspect also runs where all rows are long.
ALONE_SECONDS = 60.0
_PAUSE_FACTOR = 5.0


class RowAdmission:
    """The rows that all pipelines of this process run.

    A row that was present when a process died may kill this process as well. It runs alone, so that
    a death blames no other row.
    """

    def __init__(self) -> None:
        self._running: set[Item] = set()
        self._reserved: Item | None = None
        self._reserved_at = 0.0
        self._patience = ALONE_SECONDS
        self._pause_ends = 0.0
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call a function when a reservation begins, when its row may start, and when it ends."""
        self._watchers.append(changed)

    @property
    def is_reserved(self) -> bool:
        """Whether a suspect runs alone, or waits for the others to end."""
        return self._reserved is not None

    @property
    def overdue_suspect(self) -> Item | None:
        """The suspect that has waited too long for the others to end."""
        is_late = time.monotonic() - self._reserved_at >= self._patience
        item = self._reserved
        return item if is_late and item is not None and item not in self._running else None

    def reserve(self, item: Item) -> bool:
        """Let no other row start until this one has left; return False if that is impossible."""
        if self.is_reserved or time.monotonic() < self._pause_ends:
            return False
        self._reserved, self._reserved_at = item, time.monotonic()
        self._tell()
        return True

    def admits(self, item: Item) -> bool:
        """Whether a row may start now."""
        if item is self._reserved:
            return not self._running
        return self._reserved is None

    def enter(self, item: Item) -> None:
        """Record that a row runs."""
        self._running.add(item)
        if item is self._reserved:
            self._patience = ALONE_SECONDS

    def leave(self, item: Item) -> None:
        """Record that a row has ended, or will not start."""
        self._running.discard(item)
        if item is self._reserved:
            self._reserved = None
            self._tell()
        elif self.is_reserved and not self._running:
            self._tell()  # the suspect may start

    def give_up_waiting(self, item: Item) -> None:
        """Withdraw an overdue suspect, and reserve nothing for a while."""
        self._pause_ends = time.monotonic() + _PAUSE_FACTOR * self._patience
        self._patience *= 2
        self.leave(item)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()
