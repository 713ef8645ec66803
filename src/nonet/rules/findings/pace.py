"""How fast tasks ended lately, and how long streams need at that pace. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nonet.base.streams import Priority
from nonet.rules.figures import Times, figures_of, merged


@dataclass(frozen=True, slots=True)
class Pace:
    """What workers ended lately.

    Attributes:
        seconds: the span of time.
        ended, failed: tasks a second; `failed` are those that are dead or expired.
        wait: how long tasks were runnable before a worker fetched them.
        run: how long attempts ran.
        classes: tasks a second that ended, by class.
    """

    seconds: float = 0.0
    ended: float = 0.0
    failed: float = 0.0
    wait: Times = field(default_factory=Times)
    run: Times = field(default_factory=Times)
    classes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """The tasks of one priority and size.

    Attributes:
        queued: tasks that no worker has fetched.
        running: tasks that workers have.
        oldest_seconds: age of the oldest queued task; 0: none is queued.
    """

    priority: str
    size: str
    queued: int
    running: int
    oldest_seconds: float

    @property
    def name(self) -> str:
        """``PRIORITY:SIZE``."""
        return f"{self.priority}:{self.size}"


def pace_of(
    classes: Mapping[str, Mapping[datetime, Mapping[int, int]]], first: datetime, now: datetime
) -> Pace:
    """Return the pace of a few slots of time.

    The time before the first slot that has something does not count: perhaps nothing ran then.

    Args:
        classes: vectors by class and start of their slot, see `nonet.rules.figures`.
        first: since when something can have been counted.
    """
    begins = [at for slots in classes.values() for at in slots]
    if not begins:
        return Pace()
    seconds = max((now - max(first, min(begins))).total_seconds(), 1.0)
    sums = {name: merged(slots.values()) for name, slots in classes.items()}
    total = figures_of(merged(sums.values()))
    rates = {name: figures_of(vector).ended / seconds for name, vector in sums.items()}
    ended, failed = total.ended / seconds, total.failed / seconds
    return Pace(seconds, ended, failed, total.wait, total.run, rates)


def drains(
    streams: Sequence[StreamLoad],
    active: Mapping[tuple[str, str], int],
    classes: Mapping[str, float],
) -> dict[str, float]:
    """Estimate the seconds until the queued tasks of each stream have started.

    Workers serve the streams of their size in the order of priorities, so a stream waits for those
    before it. The pace of a size is the pace of its classes, weighted by their share. A stream is
    missing if no task of its classes ended lately.

    Args:
        active: tasks that have not ended, by class and stream.
        classes: tasks a second that ended, by class.

    >>> loads = [StreamLoad("normal", "small", 20, 1, 5)]
    >>> loads.append(StreamLoad("background", "small", 10, 0, 9))
    >>> both = {("Mail", "normal:small"): 21, ("Mail", "background:small"): 10}
    >>> drains(loads, both, {"Mail": 2.0})
    {'normal:small': 10.0, 'background:small': 15.0}
    >>> drains(loads, both, {})
    {}
    """
    total: Counter[str] = Counter()
    for (task, _), number in active.items():
        total[task] += number
    of_size: Counter[str] = Counter()
    rate: dict[str, float] = {}
    for (task, stream), number in active.items():
        size = stream.partition(":")[2]
        share = classes.get(task, 0.0) * number / max(1, total[task])
        rate[size] = rate.get(size, 0.0) + share
    found = {}
    for load in sorted(streams, key=lambda item: list(Priority).index(Priority(item.priority))):
        of_size[load.size] += load.queued
        if rate.get(load.size):
            found[load.name] = of_size[load.size] / rate[load.size]
    return found
