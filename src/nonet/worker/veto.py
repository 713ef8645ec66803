"""Stop a worker from taking tasks while memory is short or the machine is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from nonet.base.amounts import format_bytes
from nonet.worker.machine_load import free_memory, load_per_core

_CHECK_SECONDS = 0.5
_NAMED_CLASSES = 3


class Fitness(Struct, frozen=True):
    """What a worker requires of its machine before it takes a task.

    Attributes:
        memory_floor: bytes that must be free; 0: no limit.
        load_ceiling: highest load average per core; 0: no limit.
    """

    memory_floor: int = 0
    load_ceiling: float = 0.0

    def veto(self, free: int | None, load: float) -> str:
        """Return why the worker must take nothing, or an empty text.

        Args:
            free: free memory in bytes; None if unknown, which causes no veto.
            load: load average of the last minute, per core.

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


def naming(veto: str, classes: Iterable[str]) -> str:
    """Add the classes that run in the worker, because one of them may be the cause.

    Args:
        classes: one for each attempt; empty while its envelope is unread.

    >>> naming("load: 3", ["a:A", "", "a:B", "a:A"]), naming("load: 3", [])
    ('load: 3; it runs a:A, a:B', 'load: 3')
    >>> naming("load: 3", "ABCD")
    'load: 3; it runs A, B, C, …'
    """
    names = list(dict.fromkeys(filter(None, classes)))
    more = ", …" if len(names) > _NAMED_CLASSES else ""
    return f"{veto}; it runs {', '.join(names[:_NAMED_CLASSES])}{more}" if names else veto


class Veto:
    """Checks the machine, at most twice a second.

    Args:
        free, load: return the arguments of `Fitness.veto`.
    """

    def __init__(
        self,
        fitness: Fitness,
        *,
        free: Callable[[], int | None] = free_memory,
        load: Callable[[], float] = load_per_core,
    ) -> None:
        self._fitness = fitness
        self._is_needed = fitness != Fitness()
        self._free, self._load = free, load
        self._next_check = 0.0
        self._reason = ""

    def reason(self) -> str:
        """Return why this worker must take nothing now, or an empty text."""
        if not self._is_needed or time.monotonic() < self._next_check:
            return self._reason
        self._reason = self._fitness.veto(
            self._free() if self._fitness.memory_floor else None,
            self._load() if self._fitness.load_ceiling else 0.0,
        )
        self._next_check = time.monotonic() + _CHECK_SECONDS
        return self._reason
