"""How many workers a size wants: pure decisions from what Redis tells of streams and workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A registered worker.

    Attributes:
        id: its incarnation.
        slots: how many tasks it runs at a time; 0: it did not say.
        busy: deliveries that it holds.
        takes: whether it takes more when it has a free slot; one that drains does not.
        drains: whether it is about to end.
    """

    id: str
    slots: int
    busy: int
    takes: bool = True
    drains: bool = False

    @property
    def free(self) -> int:
        """Slots that take a task at once."""
        return max(0, self.slots - self.busy) if self.takes else 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What one size has to do, and who is there to do it, at one instant.

    Attributes:
        runnable: queued tasks that nothing but a free slot keeps from running; an estimate where
            very many are queued.
        running: deliveries in the hands of workers, dead ones too: they run again.
        workers: those that are registered.
        known_slots: of one worker, as those said who were there last; 0: nobody was.
    """

    size: str
    runnable: int
    running: int
    workers: tuple[LiveWorker, ...] = ()
    known_slots: int = 0

    @property
    def live(self) -> int:
        """How many workers take tasks."""
        return sum(worker.takes for worker in self.workers)

    @property
    def free(self) -> int:
        """Slots that take a task at once."""
        return sum(worker.free for worker in self.workers)

    def slots(self, default: int) -> float:
        """Slots of one worker: the mean of those that say so, else `default`."""
        told = [worker.slots for worker in self.workers if worker.slots > 0]
        return sum(told) / len(told) if told else default


def desired(demand: Demand, default_slots: int) -> int:
    """How many workers would run all at once that can run now.

    Args:
        default_slots: of one worker, if none is there to ask.

    Example:
        >>> desired(Demand("medium", runnable=5, running=1), default_slots=4)
        2
    """
    return math.ceil((demand.running + demand.runnable) / demand.slots(default_slots))


def spawns(
    demand: Demand, default_slots: int, *, starting: int = 0, alive: int = 0, room: int
) -> int:
    """How many workers a fleet starts now, for what is queued beyond all free slots.

    Args:
        default_slots: of one worker, if none is there to ask.
        starting: workers that were started and are not registered: each is as good as free.
        alive: workers of this fleet, those that start too; a round doubles them at most.
        room: how many more it may have.
    """
    slots = demand.slots(default_slots)
    left = demand.runnable - demand.free - starting * slots
    return max(0, min(math.ceil(left / slots), max(1, alive), room))


class Need:
    """When somebody is to be told that workers are missing: once for each need.

    Args:
        patience: for so long (seconds) they must be missing.
        cooldown: after so long it is told again, if they still are.
    """

    def __init__(self, patience: float, cooldown: float) -> None:
        self._patience = patience
        self._cooldown = cooldown
        self._since: float | None = None
        self._told_at: float | None = None

    def is_due(self, missing: int, now: float) -> bool:
        """Whether to tell now. A need that was met ends; what comes after it is another one."""
        if missing <= 0:
            self._since = self._told_at = None
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._patience:
            return False
        if self._told_at is not None and now - self._told_at < self._cooldown:
            return False
        self._told_at = now
        return True


def live_worker(
    id: str, busy: int, told: Any, *, takes: bool = True, drains: bool = False
) -> LiveWorker:
    """A worker by what it says of itself, which may be of another version, or garbage."""
    info = told if isinstance(told, Mapping) else {}
    slots = info.get("concurrency", 0)
    is_number = isinstance(slots, int) and not isinstance(slots, bool)
    return LiveWorker(id, max(0, slots) if is_number else 0, busy, takes, drains)
