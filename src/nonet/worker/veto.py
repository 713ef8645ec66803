"""Whether a worker takes anything: its veto while memory is short or the machine is busy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from nonet.base.amounts import format_bytes
from nonet.worker.machine import free_memory, load_per_core

logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a worker asks of its machine before it takes anything.

    Attributes:
        memory_floor: bytes that must be free; 0: it does not look.
        load_ceiling: processes per core that may want to run; 0: it does not look.
    """

    memory_floor: int = 0
    load_ceiling: float = 0.0

    def veto(self, free: int | None, load: float) -> str:
        """Why nothing is to be taken, or empty.

        Args:
            free: bytes; None: not known, which is no reason.
            load: of the last minute, per core.

        >>> Fitness(memory_floor=2**30).veto(2**29, 0.0)
        'memory: 512 MiB free, below the floor of 1 GiB'
        >>> Fitness(load_ceiling=1.5).veto(None, 2.25)
        'load: 2.25 per core, above the ceiling of 1.5'
        >>> Fitness(memory_floor=2**30, load_ceiling=1.5).veto(2**30, 1.5)
        ''
        """
        if self.memory_floor and free is not None and free < self.memory_floor:
            floor = format_bytes(self.memory_floor)
            return f"memory: {format_bytes(free)} free, below the floor of {floor}"
        if self.load_ceiling and load > self.load_ceiling:
            return f"load: {load:.2f} per core, above the ceiling of {self.load_ceiling:g}"
        return ""


class Veto:
    """Looks at the machine, not more often than twice a second.

    Args:
        free, load: what `Fitness.veto` is asked with.
    """

    def __init__(
        self,
        fitness: Fitness,
        *,
        free: Callable[[], int | None] = free_memory,
        load: Callable[[], float] = load_per_core,
    ) -> None:
        self._fitness = fitness
        self._free, self._load = free, load
        self._next_look = 0.0
        self._reason = ""

    def reason(self) -> str:
        """Why this worker takes nothing now, or empty."""
        if self._fitness == Fitness() or time.monotonic() < self._next_look:
            return self._reason
        self._reason = self._fitness.veto(
            self._free() if self._fitness.memory_floor else None,
            self._load() if self._fitness.load_ceiling else 0.0,
        )
        self._next_look = time.monotonic() + _LOOK_EVERY_SECONDS
        return self._reason
