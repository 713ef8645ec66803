"""How many tasks a second ended lately, and when streams are empty at that rate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nonet.base.streams import Priority
from nonet.rules.figures import Times, figures_of
from nonet.rules.vectors import merged


@dataclass(frozen=True, slots=True)
class Throughput:
    """What workers ended lately.

    Attributes:
        seconds: the span of time.
        ended_rate: tasks a second that ended.
        failed_rate: tasks a second that ended dead or expired, without expected errors.
        wait: how long tasks were runnable before a worker fetched them.
        run: how long attempts ran.
        class_rates: tasks a second that ended, by class.
    """

    seconds: float = 0.0
    ended_rate: float = 0.0
    failed_rate: float = 0.0
    wait: Times = field(default_factory=Times)
    run: Times = field(default_factory=Times)
    class_rates: Mapping[str, float] = field(default_factory=dict)


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


def throughput_of(
    slots_by_class: Mapping[str, Mapping[datetime, Mapping[int, int]]],
    first: datetime,
    now: datetime,
) -> Throughput:
    """Return the throughput of a few slots of time.

    The time before the first slot that has something does not count: perhaps nothing ran then.

    Args:
        slots_by_class: vectors by class and start of their slot, see `nonet.rules.figures`.
        first: since when something can have been counted.
    """
    begins = [at for slots in slots_by_class.values() for at in slots]
    if not begins:
        return Throughput()
    seconds = max((now - max(first, min(begins))).total_seconds(), 1.0)
    sums = {name: merged(slots.values()) for name, slots in slots_by_class.items()}
    total = figures_of(merged(sums.values()))
    rates = {name: figures_of(vector).ended / seconds for name, vector in sums.items()}
    ended, failed = total.ended / seconds, total.failed / seconds
    return Throughput(seconds, ended, failed, total.wait, total.run, rates)


def seconds_to_empty(
    streams: Sequence[StreamLoad],
    active: Mapping[tuple[str, str], int],
    class_rates: Mapping[str, float],
) -> dict[str, float]:
    """Estimate the seconds until the queued tasks of each stream have started.

    Workers serve the streams of their size in the order of priorities, so a stream waits for those
    before it. The rate of a size is the sum of the rates of its classes, weighted by the share of
    their active tasks. A stream is missing if no class with active tasks of its size has ended a
    task lately.

    Args:
        active: tasks that have not ended, by class and stream.
        class_rates: tasks a second that ended, by class.

    >>> loads = [StreamLoad("normal", "small", 20, 1, 5)]
    >>> loads.append(StreamLoad("background", "small", 10, 0, 9))
    >>> both = {("Mail", "normal:small"): 21, ("Mail", "background:small"): 10}
    >>> seconds_to_empty(loads, both, {"Mail": 2.0})
    {'normal:small': 10.0, 'background:small': 15.0}
    >>> seconds_to_empty(loads, both, {})
    {}
    """
    total: Counter[str] = Counter()
    for (task, _), number in active.items():
        total[task] += number
    queued_ahead: Counter[str] = Counter()
    rate: dict[str, float] = {}
    for (task, stream), number in active.items():
        size = stream.partition(":")[2]
        share = class_rates.get(task, 0.0) * number / max(1, total[task])
        rate[size] = rate.get(size, 0.0) + share
    found = {}
    for load in sorted(streams, key=lambda item: list(Priority).index(Priority(item.priority))):
        queued_ahead[load.size] += load.queued
        if rate.get(load.size):
            found[load.name] = queued_ahead[load.size] / rate[load.size]
    return found
