"""Decide when to kill a child process. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

# How often to measure the memory and CPU time of a child that has a limit.
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an attempt.

    Attributes:
        kill_at: when to kill it (monotonic); 0: never.
        memory: bytes; 0: no limit.
        cpu: CPU time of the process in seconds, earlier attempts included; 0: no limit.
    """

    kill_at: float = 0.0
    memory: int = 0
    cpu: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether the process must be measured."""
        return self.memory > 0 or self.cpu > 0

    def next_look(self, lease_ends: float, now: float) -> float:
        """Return when to check the child again (monotonic).

        >>> Bounds(kill_at=20.0).next_look(lease_ends=12.0, now=10.0)
        12.0
        """
        times = [time for time in (self.kill_at, lease_ends) if time > 0]
        if self.is_measured:
            times.append(now + LOOK_SECONDS)
        return min(times, default=math.inf)

    def exceeded(self, lease_ends: float, now: float, memory: int, cpu: float) -> str:
        """Return why to kill the child: ``lease``, ``time``, ``memory`` or ``cpu``; empty: do not.

        Args:
            lease_ends: its deadline on the board; 0: it has none.
            memory, cpu: usage of the process in bytes and seconds; ignored unless `is_measured`.

        >>> Bounds(memory=100).exceeded(lease_ends=12.0, now=10.0, memory=101, cpu=0.0)
        'memory'
        """
        if 0 < lease_ends <= now:
            return "lease"
        if 0 < self.memory < memory:
            return "memory"
        if 0 < self.cpu < cpu:
            return "cpu"
        return "time" if 0 < self.kill_at <= now else ""
