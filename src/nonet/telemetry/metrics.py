"""All metrics by name, and cheap counters for the code of each task.

Counters are plain numbers; `nonet.telemetry.exposition` converts them when Prometheus scrapes.
`scripts/reference` makes the table of `docs/reference/metrics.md` from it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nonet.rules.vectors import DURATIONS

UNKNOWN = "unknown"
"""The value of the label ``task`` for classes that this process does not know."""

ROUND_TRIPS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


class Metric(Struct, frozen=True):
    """Name and meaning of a metric.

    Attributes:
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: one line, shown in ``/metrics``.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


# Kind, name, labels (-: none) and help.
TABLE = """
# Of every daemon.
gauge nonet_build_info version Version of Nonet
gauge nonet_ready - Whether /readyz answers 200
gauge nonet_draining - Whether the daemon is draining
counter nonet_log_errors_total handler Exceptions of log handlers
# Of workers and schedulers.
gauge nonet_event_loop_lag_seconds - Longest delay of the loop in the last 30 s
histogram nonet_redis_round_trip_seconds - Duration of one script call to Redis
gauge nonet_config_version version Version of the applied configuration
gauge nonet_config_refused - Whether the newest configuration cannot be applied
counter nonet_middleware_errors_total middleware Exceptions of middleware
# Of workers.
counter nonet_tasks_started_total task,size Attempts started
counter nonet_tasks_finished_total task,size,outcome Attempts ended
histogram nonet_task_wait_seconds priority,size Time until a runnable task was fetched
histogram nonet_lock_wait_seconds task Time parked for locks, limiters or a pause
histogram nonet_task_run_seconds task Duration of attempts
counter nonet_task_crashes_total task Child processes that died during an attempt
counter nonet_leases_lost_total - Attempts voided because a lease was lost
counter nonet_settles_stale_total - Settles refused because the delivery was lost
gauge nonet_worker_slots size Tasks that the worker can run at a time
gauge nonet_worker_slots_busy size Tasks that the worker runs now
gauge nonet_worker_code_left - Ended attempts whose code ignores its cancellation and still runs
gauge nonet_worker_accepting - Whether the worker takes tasks
counter nonet_worker_vetoes_total reason Times that it stopped taking tasks
gauge nonet_worker_children - Child processes of the worker
gauge nonet_worker_memory_bytes - Resident memory of the worker and its children at its last beat
counter nonet_event_loop_blocked_total task Times that a task blocked the loop
# Of pipelines.
counter nonet_pipeline_processed_total pipeline,outcome Rows that left a worker
counter nonet_pipeline_fetches_total pipeline Statements that fetched due rows
counter nonet_pipeline_leases_lost_total pipeline Leases of rows that were lost
counter nonet_pipeline_heartbeat_failures_total - Failed renewals of row leases
histogram nonet_pipeline_wait_seconds pipeline Time from the due time of a row to its start
histogram nonet_pipeline_run_seconds pipeline Duration of a row in a worker
gauge nonet_pipeline_workers pipeline Rows that this process processes at a time
gauge nonet_pipeline_rows_running pipeline Rows in process in this process
gauge nonet_pipeline_rows_queued pipeline Leased rows that wait for a worker
gauge nonet_pipeline_paused pipeline Whether no row is fetched
gauge nonet_pipeline_database_up pipeline Whether the last fetch succeeded
gauge nonet_pipeline_letters_waiting pipeline Whether dead letters of rows cannot be written
# Of schedulers.
gauge nonet_scheduler_is_leader - Whether this scheduler leads
counter nonet_scheduler_loop_failures_total loop Failed passes of its loops
gauge nonet_periodic_entries - Enabled periodic entries
gauge nonet_periodic_broken_entries - Periodic entries that cannot be fired
gauge nonet_namespace_refreshed_timestamp_seconds - When this scheduler last read the namespace
# Of the namespace, from each scheduler.
counter nonet_tasks_submitted_total priority,size Tasks accepted since Redis was last empty
gauge nonet_active_tasks task,priority,size Tasks that have not ended
gauge nonet_stream_depth priority,size Tasks in a stream, queued or running
gauge nonet_stream_in_flight priority,size Tasks that a worker has fetched
gauge nonet_stream_oldest_age_seconds priority,size Age of the oldest task that no worker has
gauge nonet_tenant_active_tasks tenant Tasks that have not ended
gauge nonet_tenant_waiting_tasks tenant Tasks that wait for the turn of a tenant
gauge nonet_tenant_oldest_age_seconds tenant Age of the oldest of these
gauge nonet_tenant_running_tasks tenant Attempts that workers run
gauge nonet_tenant_share_used tenant Part of all starts of the last 5 minutes
gauge nonet_tenant_share_due tenant Part of these that the weight gives
gauge nonet_tenant_wait_seconds tenant,quantile Time until a runnable task was fetched, in 5 minutes
counter nonet_tenant_started_total tenant Attempts started
counter nonet_tenant_ended_total tenant Tasks that workers ended
counter nonet_tenant_failed_total tenant Tasks that ended dead or expired, without expected errors
counter nonet_tenant_retried_total tenant Failed attempts with another one
gauge nonet_delayed_tasks - Tasks that wait for their time
gauge nonet_delayed_overdue_tasks - Tasks whose promotion is over 1 s late
gauge nonet_waiting_tasks - Tasks that wait for locks, a resume or other steps
gauge nonet_blocked_steps - Steps that wait for others of their workflow
gauge nonet_workflows state Workflows that have not ended, or are kept as failed
counter nonet_workflows_ended_total state Workflows ended
gauge nonet_dying_tasks - Dead letters that wait for SQL
gauge nonet_dead_letters status Dead letters in SQL
gauge nonet_quarantine_entries - Messages in the quarantine
counter nonet_quarantined_total - Messages quarantined
counter nonet_anomalies_total kind Events that should not happen
gauge nonet_paused - Pauses in force
gauge nonet_workers size Registered workers
gauge nonet_pipeline_processes pipeline Processes that run a pipeline
gauge nonet_pipeline_rows_due pipeline Due rows, at most 10001 are counted
gauge nonet_pipeline_rows_leased pipeline Due rows that a process has leased
gauge nonet_pipeline_rows_stale pipeline Due rows that dead processes left
gauge nonet_pipeline_oldest_due_seconds pipeline Longest wait of a due row that is not leased
gauge nonet_desired_workers size Workers that all runnable tasks would keep busy
gauge nonet_scheduler_has_leader - Whether a scheduler leads
gauge nonet_scheduler_leader_info leader Name of the leader
gauge nonet_scheduler_term - Last term
gauge nonet_config_valid - Whether the configuration source is applied as it is
gauge nonet_config_published_info version Version of the published configuration
gauge nonet_config_published_timestamp_seconds - When it was published
gauge nonet_epoch_timestamp_seconds - When the current epoch of Redis began
gauge nonet_redis_memory_used_bytes - Memory that Redis uses
gauge nonet_redis_memory_max_bytes - Memory limit of Redis
# Of the dashboard.
counter nonet_web_requests_total route,method,status Requests answered
histogram nonet_web_request_seconds route Duration of requests
# Of fleets.
gauge nonet_fleet_workers size,state Workers of this fleet
"""


def _metrics() -> Iterator[Metric]:
    for line in TABLE.strip().splitlines():
        if not line.startswith("#"):
            kind, name, labels, text = line.split(maxsplit=3)
            yield Metric(name, kind, () if labels == "-" else tuple(labels.split(",")), text)


METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _metrics()}


class Histogram:
    """Durations in buckets. One thread observes; any thread may read.

    Args:
        bounds: upper bounds of the buckets in seconds, ascending; a last bucket has none.

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

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, perhaps several times; a negative one, after a clock was set, is 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum += seconds * times

    @property
    def has_some(self) -> bool:
        """Whether anything was counted."""
        return any(self.counts)


class Peak(Struct):
    """The largest value of the last `seconds`, or of at least half that time.

    Example:
        >>> lag = Peak(30)
        >>> lag.note(0.25, at=0)
        >>> lag.largest(at=10), lag.largest(at=50)
        (0.25, 0.0)
    """

    seconds: float = 30.0
    _half: int = 0
    _values: tuple[float, float] = (0.0, 0.0)

    def note(self, value: float, at: float | None = None) -> None:
        """Record a value; `at`: monotonic seconds, by default now."""
        self._turn(at)
        self._values = (self._values[0], max(self._values[1], value))

    def largest(self, at: float | None = None) -> float:
        """Return the largest value, or 0."""
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
