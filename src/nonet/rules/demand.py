"""How many workers a size needs: decisions from the state of streams and workers. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A registered worker.

    Attributes:
        id: its incarnation.
        slots: how many tasks it runs at a time; 0: unknown.
        busy: deliveries that it holds.
        takes: whether it fetches tasks for free slots; a draining worker does not.
        drains: whether it is draining.
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
    """The tasks and workers of one size at one instant.

    Attributes:
        runnable: queued tasks that need only a free slot; an estimate if very many are queued.
        running: deliveries that workers hold, including dead workers, as these tasks run again.
        workers: the registered workers.
        known_slots: slots of one worker, as the last workers reported them; 0: unknown.
    """

    size: str
    runnable: int
    running: int
    workers: tuple[LiveWorker, ...] = ()
    known_slots: int = 0

    @property
    def live(self) -> int:
        """The number of workers that fetch tasks."""
        return sum(worker.takes for worker in self.workers)

    @property
    def free(self) -> int:
        """Slots that take a task at once."""
        return sum(worker.free for worker in self.workers)

    def slots(self, default: int) -> float:
        """Slots of one worker: the mean of the reported numbers, else `default`."""
        known = [worker.slots for worker in self.workers if worker.slots > 0]
        return sum(known) / len(known) if known else default


def desired(demand: Demand, default_slots: int) -> int:
    """How many workers are needed to run all runnable tasks at once.

    Args:
        default_slots: slots of one worker, if none reports them.

    Example:
        >>> desired(Demand("medium", runnable=5, running=1), default_slots=4)
        2
    """
    return math.ceil((demand.running + demand.runnable) / demand.slots(default_slots))


def spawns(
    demand: Demand, default_slots: int, *, starting: int = 0, alive: int = 0, room: int
) -> int:
    """How many workers a fleet starts now, for tasks beyond all free slots.

    Args:
        default_slots: slots of one worker, if none reports them.
        starting: workers that were started but are not registered yet; their slots count as free.
        alive: workers of this fleet, including starting ones; one round at most doubles them.
        room: how many more workers the fleet may have.
    """
    needed = math.ceil((demand.runnable - demand.free) / demand.slots(default_slots))
    return max(0, min(needed - starting, max(1, alive), room))


class Need:
    """Decides when to report that workers are missing.

    Args:
        patience: how long (seconds) they must be missing first.
        cooldown: seconds between reports while they are still missing.
    """

    def __init__(self, patience: float, cooldown: float) -> None:
        self._patience = patience
        self._cooldown = cooldown
        self._since: float | None = None
        self._reported_at: float | None = None

    def is_due(self, missing: int, now: float) -> bool:
        """Whether to report now. Once no worker is missing, the next need starts anew."""
        if missing <= 0:
            self._since = self._reported_at = None
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._patience:
            return False
        if self._reported_at is not None and now - self._reported_at < self._cooldown:
            return False
        self._reported_at = now
        return True
