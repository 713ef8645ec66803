"""When a child process is to be killed. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

# How often memory and CPU time are looked at, of those that have a limit.
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an attempt may take.

    Attributes:
        kill_at: monotonic seconds; 0: there is no such time.
        memory: bytes; 0: any number.
        cpu: seconds of CPU time of the process, its past included; 0: any number.
    """

    kill_at: float = 0.0
    memory: int = 0
    cpu: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether somebody has to look at the process itself."""
        return self.memory > 0 or self.cpu > 0

    def next_look(self, lease_ends: float, now: float) -> float:
        """When the child has to be looked at again (monotonic).

        >>> Bounds(kill_at=20.0).next_look(lease_ends=12.0, now=10.0)
        12.0
        """
        times = [time for time in (self.kill_at, lease_ends) if time > 0]
        if self.is_measured:
            times.append(now + LOOK_SECONDS)
        return min(times, default=math.inf)

    def exceeded(self, lease_ends: float, now: float, memory: int, cpu: float) -> str:
        """Why it is to be killed: ``lease``, ``time``, ``memory``, ``cpu``; empty: it is not.

        Args:
            lease_ends: by the board; 0: it has no lease.
            memory, cpu: of the process now; looked at only if `is_measured`.

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
