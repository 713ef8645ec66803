"""Decide when to kill a child process. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# How often to measure the memory and CPU time of a child that has a limit.
LOOK_SECONDS = 0.05
# How often to read the deadlines of a child: the worker writes them without a message.
BOARD_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an attempt.

    Attributes:
        attempt: its number, as on the board.
        memory: bytes; 0: no limit.
        cpu: CPU time of the process in seconds, earlier attempts included; 0: no limit.
    """

    attempt: int = 0
    memory: int = 0
    cpu: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether the process must be measured."""
        return self.memory > 0 or self.cpu > 0

    def next_look(self, lease_ends: float, kill_at: float, now: float) -> float:
        """Return when to check the child again (monotonic).

        >>> Bounds().next_look(lease_ends=12.0, kill_at=20.0, now=11.9)
        12.0
        """
        look = now + (LOOK_SECONDS if self.is_measured else BOARD_SECONDS)
        return min(look, lease_ends or look, kill_at or look)

    def exceeded(
        self, lease_ends: float, kill_at: float, now: float, memory: int = 0, cpu: float = 0.0
    ) -> str:
        """Return why to kill the child: ``lease``, ``time``, ``memory`` or ``cpu``; empty: do not.

        Args:
            lease_ends, kill_at: its deadlines on the board; 0: it has none.
            memory, cpu: usage of the process in bytes and seconds; ignored unless `is_measured`.

        >>> Bounds(memory=100).exceeded(lease_ends=12.0, kill_at=0.0, now=10.0, memory=101)
        'memory'
        """
        if 0 < lease_ends <= now:
            return "lease"
        if 0 < self.memory < memory:
            return "memory"
        if 0 < self.cpu < cpu:
            return "cpu"
        return "time" if 0 < kill_at <= now else ""
