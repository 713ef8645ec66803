"""Every metric by name, and what counts cheaply enough for each task.

Whoever counts does so in plain numbers; they are turned into what Prometheus reads only when it
asks, see `nonet.telemetry.exposition`. `docs/reference/metrics.md` has the same table for people.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

UNKNOWN = "unknown"
"""The label ``task`` of what is of no class that this process knows."""

# From a task that does nothing to one of half a day.
DURATIONS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(60, 300, 900, 3600, 14400, 43200),
)
ROUND_TRIPS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric is called and means.

    Attributes:
        help: one line, for whoever looks at ``/metrics``.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _metric(kind: Kind, name: str, labels: str, help: str) -> Metric:
    return Metric(name, kind, tuple(labels.split()), help)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        # Of every daemon.
        _metric("gauge", "nonet_build_info", "version", "Version of Nonet"),
        _metric("gauge", "nonet_ready", "", "Whether /readyz answers 200"),
        _metric("gauge", "nonet_draining", "", "Whether it ends: it takes nothing more"),
        # Of workers and schedulers.
        _metric(
            "gauge",
            "nonet_event_loop_lag_seconds",
            "",
            "Longest time without an answer of the event loop, in the last 30 s",
        ),
        _metric(
            "histogram",
            "nonet_redis_round_trip_seconds",
            "",
            "How long Redis took for one script",
        ),
        _metric("gauge", "nonet_config_version", "version", "Configuration that is applied"),
        _metric("gauge", "nonet_config_refused", "", "Whether the newest one cannot be applied"),
        # Of workers.
        _metric("counter", "nonet_tasks_started_total", "task size", "Attempts begun"),
        _metric("counter", "nonet_tasks_finished_total", "task size outcome", "Attempts ended"),
        _metric(
            "histogram",
            "nonet_task_wait_seconds",
            "priority size",
            "From the moment at which a task could be fetched to its fetch",
        ),
        _metric(
            "histogram",
            "nonet_lock_wait_seconds",
            "task",
            "How long tasks were parked for locks, limiters or a pause",
        ),
        _metric("histogram", "nonet_task_run_seconds", "task", "How long attempts took"),
        _metric(
            "counter",
            "nonet_task_crashes_total",
            "task",
            "Child processes that died with an attempt",
        ),
        _metric(
            "counter", "nonet_leases_lost_total", "", "Attempts voided because a lease was lost"
        ),
        _metric(
            "counter", "nonet_settles_stale_total", "", "Settles of what was not ours any more"
        ),
        _metric("gauge", "nonet_worker_slots", "size", "Tasks that it runs at a time"),
        _metric("gauge", "nonet_worker_slots_busy", "size", "Tasks that it runs now"),
        _metric(
            "gauge",
            "nonet_worker_code_left",
            "",
            "Attempts that have ended although their code ignores its cancellation and runs on",
        ),
        _metric("gauge", "nonet_worker_accepting", "", "Whether it takes tasks"),
        _metric(
            "counter", "nonet_worker_vetoes_total", "reason", "How often it began to take nothing"
        ),
        _metric("gauge", "nonet_worker_children", "", "Its child processes"),
        _metric(
            "gauge",
            "nonet_worker_memory_bytes",
            "",
            "Resident memory of it and its children, as of its last beat",
        ),
        _metric(
            "counter",
            "nonet_event_loop_blocked_total",
            "task",
            "How often the event loop was blocked, and by whom",
        ),
        # Of schedulers.
        _metric("gauge", "nonet_scheduler_is_leader", "", "Whether this scheduler leads"),
        _metric(
            "counter", "nonet_scheduler_loop_failures_total", "loop", "Failed passes of its loops"
        ),
        _metric("gauge", "nonet_periodic_entries", "", "Periodic entries that are planned"),
        _metric("gauge", "nonet_periodic_broken_entries", "", "Those that cannot be fired"),
        _metric(
            "gauge",
            "nonet_namespace_refreshed_timestamp_seconds",
            "",
            "When this scheduler last looked at the namespace",
        ),
        # Of the namespace, from each scheduler.
        _metric(
            "counter",
            "nonet_tasks_submitted_total",
            "priority size",
            "Tasks accepted since somebody watches, or Redis was last empty",
        ),
        _metric(
            "gauge",
            "nonet_active_tasks",
            "task priority size",
            "Tasks that have not ended, in whatever state",
        ),
        _metric(
            "gauge", "nonet_stream_depth", "priority size", "Tasks in a stream, queued and running"
        ),
        _metric(
            "gauge", "nonet_stream_in_flight", "priority size", "Those in the hands of workers"
        ),
        _metric(
            "gauge",
            "nonet_stream_oldest_age_seconds",
            "priority size",
            "Age of the oldest task in a stream that no worker has fetched",
        ),
        _metric("gauge", "nonet_delayed_tasks", "", "Tasks that wait for their time"),
        _metric(
            "gauge",
            "nonet_delayed_overdue_tasks",
            "",
            "What should have been promoted more than 1 s ago",
        ),
        _metric("gauge", "nonet_waiting_tasks", "", "Tasks that wait for locks or a resume"),
        _metric("gauge", "nonet_dying_tasks", "", "Dead letters that wait for SQL"),
        _metric("gauge", "nonet_dead_letters", "status", "Dead letters in SQL"),
        _metric("gauge", "nonet_quarantine_entries", "", "Entries of the quarantine"),
        _metric("counter", "nonet_quarantined_total", "", "Bytes that were put there"),
        _metric("counter", "nonet_anomalies_total", "kind", "What should not happen"),
        _metric("gauge", "nonet_paused", "", "How many pauses hold"),
        _metric("gauge", "nonet_workers", "size", "Registered workers"),
        _metric(
            "gauge",
            "nonet_desired_workers",
            "size",
            "Workers that all that can run now would use",
        ),
        _metric("gauge", "nonet_scheduler_has_leader", "", "Whether a scheduler leads"),
        _metric("gauge", "nonet_scheduler_leader_info", "leader", "Which one"),
        _metric("gauge", "nonet_scheduler_term", "", "The last term"),
        _metric("gauge", "nonet_config_valid", "", "Whether the configuration is applied as it is"),
        _metric("gauge", "nonet_config_published_info", "version", "What is published"),
        _metric("gauge", "nonet_config_published_timestamp_seconds", "", "Since when"),
        _metric(
            "gauge", "nonet_epoch_timestamp_seconds", "", "Since when Redis has had these data"
        ),
        _metric("gauge", "nonet_redis_memory_used_bytes", "", "Memory that Redis uses"),
        _metric("gauge", "nonet_redis_memory_max_bytes", "", "Its maxmemory"),
        # Of fleets.
        _metric("gauge", "nonet_fleet_workers", "size state", "Workers of this fleet"),
    )
}


class Histogram:
    """Durations by buckets. One thread observes; any may read.

    Args:
        bounds: upper ends of the buckets in seconds, ascending; there is one more without an end.

    Example:
        >>> times = Histogram((0.1, 1.0))
        >>> times.observe(0.5)
        >>> times.counts, times.sum
        ([0, 1, 0], 0.5)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = DURATIONS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one; less than nothing, of a clock that was set, counts as nothing."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def has_some(self) -> bool:
        """Whether anything was counted."""
        return any(self.counts)


@dataclass(slots=True)
class Peak:
    """The largest of the values of the last while: at most `seconds`, at least half as long.

    Example:
        >>> lag = Peak(30)
        >>> lag.note(0.25, at=0)
        >>> lag.largest(at=10), lag.largest(at=50)
        (0.25, 0.0)
    """

    seconds: float = 30.0
    _half: int = field(default=0, repr=False)
    _values: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def note(self, value: float, at: float | None = None) -> None:
        """A value of now; `at`: monotonic seconds."""
        self._turn(at)
        self._values = (self._values[0], max(self._values[1], value))

    def largest(self, at: float | None = None) -> float:
        """The largest one; 0 if there was none."""
        self._turn(at)
        return max(self._values)

    def _turn(self, at: float | None) -> None:
        half = int((time.monotonic() if at is None else at) / (self.seconds / 2))
        if half != self._half:
            self._values = (self._values[1] if half == self._half + 1 else 0.0, 0.0)
            self._half = half


Sample = tuple[str, tuple[str, ...], "float | Histogram"]
"""Name of a metric, the values of its labels in the order of `METRICS`, and its value."""

Samples = Iterable[Sample]
