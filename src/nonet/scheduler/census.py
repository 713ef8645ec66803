"""Collect figures of a namespace for metrics and autoscalers.

Every scheduler collects them, leading or not, so that there is no gap when the leader changes.
Requests are answered from memory; outdated figures are left out.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

from nonet.rules.pipelines import PipelineStatus
from nonet.scheduler.tenant_metrics import TenantCensus, tenant_samples
from nonet.stores.namespace.figures import Figures, Measures, complete
from nonet.stores.namespace.pipelines import PipelineReports
from nonet.stores.sql.dead_letters import DeadLetters
from nonet.telemetry.metrics import UNKNOWN, Sample

_LOOK_SECONDS = 5.0
_SQL_SECONDS = 60.0
# Figures older than this are left out.
_STALE_SECONDS = 30.0
_STALE_SQL_SECONDS = 5 * _SQL_SECONDS
_ANOMALIES = {
    "settle-lost": "settle:lost",
    "finish-broken": "finish:broken",
    "task-unknown": "tasks:unknown",
    "overflow-failed": "overflow:failed",
}


class Census:
    """Read the figures of a namespace every 5 seconds, and count its dead letters every minute.

    Args:
        dead_letters: opens their store.
        reports: what the processes that run pipelines report.
        has_sql: whether there is a database.
        names: classes that get a label of their own; all others share ``unknown``.
        tenants: reads the tenants.
    """

    def __init__(
        self,
        measures: Measures,
        dead_letters: Callable[[], Awaitable[DeadLetters]],
        reports: PipelineReports,
        has_sql: Callable[[], bool],
        names: Collection[str],
        tenants: Callable[[], Awaitable[TenantCensus]],
    ) -> None:
        self._measures = measures
        self._dead_letters = dead_letters
        self._reports = reports
        self._pipelines: Sequence[PipelineStatus] = ()
        self._has_sql = has_sql
        self._names = frozenset(names)
        self._read_tenants = tenants
        self._tenants: TenantCensus | None = None
        self._figures: Figures | None = None
        self._memory: tuple[int | None, int | None] = (None, None)
        self._letters: Mapping[str, int] = {}
        # Monotonic time to detect outdated figures, wall time for the metric.
        self._seen_at = self._letters_at = -_STALE_SQL_SECONDS
        self._refreshed = 0.0

    async def look(self) -> float:
        """Read the figures from Redis; return the seconds until the next call."""
        measures = self._measures
        figures, memory = await measures.figures(count_accepted=True), await measures.memory()
        self._memory, self._figures = memory, figures
        self._seen_at, self._refreshed = time.monotonic(), time.time()
        self._tenants, self._pipelines = await self._read_tenants(), await self._reports.read()
        return _LOOK_SECONDS

    async def count_letters(self) -> float:
        """Count the dead letters in SQL; return the seconds until the next call."""
        if self._has_sql():
            letters = await self._dead_letters()
            self._letters = {str(status): n for status, n in (await letters.count()).items()}
            self._letters_at = time.monotonic()
        return _SQL_SECONDS

    def desired(self) -> dict[str, int] | None:
        """Return how many workers each size needs; None if unknown."""
        figures = self._fresh()
        return complete(figures.desired) if figures and figures.desired else None

    def samples(self) -> Iterator[Sample]:
        """Yield the figures as metrics."""
        yield "nonet_namespace_refreshed_timestamp_seconds", (), self._refreshed
        if time.monotonic() - self._letters_at < _STALE_SQL_SECONDS:
            for status, number in self._letters.items():
                yield "nonet_dead_letters", (status,), number
        figures = self._fresh()
        if figures is None:
            return
        yield from _of_streams(figures)
        yield from _of_schedulers(figures)
        yield from _of_workflows(figures)
        yield from self._of_classes(figures)
        if self._tenants is not None:
            yield from tenant_samples(self._tenants)
        for item in self._pipelines:
            yield "nonet_pipeline_processes", (item.name,), len(item.replicas)
            yield "nonet_pipeline_rows_due", (item.name,), item.rows.due
            yield "nonet_pipeline_rows_leased", (item.name,), item.rows.leased
            yield "nonet_pipeline_rows_stale", (item.name,), item.rows.stale
            yield "nonet_pipeline_oldest_due_seconds", (item.name,), item.rows.oldest
        for size, number in complete(figures.workers).items():
            yield "nonet_workers", (size,), number
        for size, number in (self.desired() or {}).items():
            yield "nonet_desired_workers", (size,), number
        for kind, name in _ANOMALIES.items():
            yield "nonet_anomalies_total", (kind,), figures.counters.get(name, 0)
        for name, value in (
            ("nonet_redis_memory_used_bytes", self._memory[0]),
            ("nonet_redis_memory_max_bytes", self._memory[1]),
        ):
            if value:  # a server without maxmemory has no limit, rather than a limit of 0
                yield name, (), value

    def _fresh(self) -> Figures | None:
        return self._figures if time.monotonic() - self._seen_at < _STALE_SECONDS else None

    def _of_classes(self, figures: Figures) -> Iterator[Sample]:
        active: dict[tuple[str, ...], int] = {}
        for (name, *stream), number in figures.active.items():
            labels = (name if name in self._names else UNKNOWN, *stream)
            active[labels] = active.get(labels, 0) + number
        for labels, number in active.items():
            yield "nonet_active_tasks", labels, number


def _of_streams(figures: Figures) -> Iterator[Sample]:
    submitted = figures.submitted or {}
    for labels, found in figures.streams.items():
        yield "nonet_tasks_submitted_total", labels, submitted.get(labels, 0)
        yield "nonet_stream_depth", labels, found.depth
        yield "nonet_stream_in_flight", labels, found.in_flight
        yield "nonet_stream_oldest_age_seconds", labels, found.oldest
    yield "nonet_delayed_tasks", (), figures.delayed
    yield "nonet_delayed_overdue_tasks", (), figures.overdue
    yield "nonet_waiting_tasks", (), figures.waiting
    yield "nonet_dying_tasks", (), figures.dying
    yield "nonet_quarantine_entries", (), figures.quarantined
    yield "nonet_quarantined_total", (), figures.counters.get("quarantined", 0)
    yield "nonet_paused", (), figures.paused


def _of_workflows(figures: Figures) -> Iterator[Sample]:
    yield "nonet_blocked_steps", (), figures.blocked
    for state, number in figures.workflows.items():
        yield "nonet_workflows", (state,), number
    for state in ("done", "failed", "cancelled"):
        ended = figures.counters.get(f"workflows:{state}", 0)
        yield "nonet_workflows_ended_total", (state,), ended


def _of_schedulers(figures: Figures) -> Iterator[Sample]:
    yield "nonet_scheduler_has_leader", (), float(bool(figures.leader))
    if figures.leader:
        yield "nonet_scheduler_leader_info", (figures.leader.partition("/")[0],), 1
    yield "nonet_scheduler_term", (), figures.term
    yield "nonet_config_valid", (), float(not figures.config_problem)
    if figures.config:
        yield "nonet_config_published_info", (figures.config,), 1
        yield "nonet_config_published_timestamp_seconds", (), figures.config_since
    yield "nonet_epoch_timestamp_seconds", (), figures.epoch
