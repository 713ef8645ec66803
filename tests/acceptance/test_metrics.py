"""What real daemons tell Prometheus and autoscalers."""

from __future__ import annotations

import re
import time

import pytest
from metrics_names import Watched, series_names, watched

from nonet.telemetry.metrics import METRICS

NAMESPACE_ONLY = re.compile(
    r"nonet_(tasks_submitted|active_tasks|stream_|delayed_|waiting|dying|dead_letters|quarantine|"
    r"anomalies|paused|workers|desired|scheduler_(has_leader|leader|term)|config_(valid|published)|"
    r"epoch)"
)


@pytest.fixture(scope="module")
def system() -> Watched:
    return watched()


def test_all_that_is_documented_is_exported(system: Watched) -> None:
    """A running system has each metric, of its type and with its labels, and no other ones."""
    found = {
        family.name: family
        for daemon in system.by_daemon.values()
        for family in daemon.values()
        if family.name.startswith("nonet_")
    }
    assert set(found) == {name.removesuffix("_total") for name in METRICS}
    for name, metric in METRICS.items():
        family = found[name.removesuffix("_total")]
        labels = {frozenset(set(sample.labels) - {"le"}) for sample in family.samples}
        assert (family.type, labels) == (metric.kind, {frozenset(metric.labels)}), name
    assert {name for name in system.names() if name.startswith("nonet_")} == series_names()
    assert "process_resident_memory_bytes" in system.names()


def test_attempts_are_counted_by_class_and_outcome(system: Watched) -> None:
    """Each attempt that began has ended once, but for the one that runs."""
    ends = {
        ("Succeeds", "done"): 3,
        ("Fails", "retry"): 1,
        ("Fails", "dead"): 1,
        ("Crashes", "crash"): 1,
        ("Crashes", "done"): 1,
        ("GivesBack", "back"): 1,
        ("GivesBack", "done"): 1,
        ("Blocks", "done"): 1,
        ("Holds", "done"): 2,
        ("Holds", "cancelled"): 1,
    }
    finished = {
        (sample.labels["task"].partition(":")[2], sample.labels["outcome"]): sample.value
        for sample in system.by_daemon["worker"]["nonet_tasks_finished"].samples
        if sample.name.endswith("_total") and sample.value
    }
    assert finished == ends
    assert sum(system.values("worker", "nonet_tasks_started_total")) == sum(ends.values()) + 1
    name = "metrics_tasks:Holds"
    assert system.value("worker", "nonet_tasks_started_total", task=name, size="small") == 4
    assert sum(system.values("worker", "nonet_task_crashes_total")) == 1
    crashes = "metrics_tasks:Crashes"
    assert system.value("worker", "nonet_task_crashes_total", task=crashes) == 1
    blocks = "metrics_tasks:Blocks"
    assert system.value("worker", "nonet_event_loop_blocked_total", task=blocks) == 1
    assert system.value("worker", "nonet_worker_slots") == 4
    assert system.value("worker", "nonet_worker_slots_busy") == 1
    assert system.value("worker", "nonet_leases_lost_total") == 0


def test_durations_are_counted_by_class_and_stream(system: Watched) -> None:
    """How long tasks ran, stood in their stream, and waited for locks, each for itself."""
    blocks = {"task": "metrics_tasks:Blocks"}
    assert system.value("worker", "nonet_task_run_seconds_count", **blocks) == 1
    assert 0.6 <= system.value("worker", "nonet_task_run_seconds_sum", **blocks) < 60
    assert system.value("worker", "nonet_task_run_seconds_bucket", **blocks, le="0.5") == 0
    waits = {"priority": "normal", "size": "small"}
    assert system.value("worker", "nonet_task_wait_seconds_count", **waits) == 14
    assert 0 < system.value("worker", "nonet_task_wait_seconds_sum", **waits) < 600
    holds = {"task": "metrics_tasks:Holds"}
    # One or both of two: nobody gets a lock in the first moments of a new Redis.
    assert system.value("worker", "nonet_lock_wait_seconds_count", **holds) in (1, 2)
    assert 0 < system.value("worker", "nonet_lock_wait_seconds_sum", **holds) < 600
    # Who was delayed has not waited for a lock, and who met none neither.
    for name in ("Succeeds", "Fails"):
        waited = {"task": f"metrics_tasks:{name}"}
        assert system.values("worker", "nonet_lock_wait_seconds_count", **waited) == []
    assert system.value("worker", "nonet_redis_round_trip_seconds_count") >= 1


@pytest.mark.parametrize("daemon", ["leader", "standby"])
def test_each_scheduler_reports_the_namespace(system: Watched, daemon: str) -> None:
    """Depth, what runs, what waits and why, dead letters, workers, configuration and Redis."""

    def value(name: str, **labels: str) -> float:
        return system.value(daemon, name, **labels)

    small, medium = ({"priority": "normal", "size": size} for size in ("small", "medium"))
    assert value("nonet_tasks_submitted_total", **small) == 14
    assert value("nonet_tasks_submitted_total", **medium) == 1
    for size, in_flight in ((small, 1), (medium, 0)):
        assert value("nonet_stream_depth", **size) == 1
        assert value("nonet_stream_in_flight", **size) == in_flight
    assert value("nonet_stream_oldest_age_seconds", **small) == 0
    assert 0 < value("nonet_stream_oldest_age_seconds", **medium) < 600
    assert value("nonet_active_tasks", task="metrics_tasks:Holds", **small) == 3
    assert (value("nonet_delayed_tasks"), value("nonet_waiting_tasks")) == (1, 2)
    assert (value("nonet_delayed_overdue_tasks"), value("nonet_dying_tasks")) == (0, 0)
    assert value("nonet_dead_letters", status="PENDING") == 1
    assert value("nonet_workers", size="small") == value("nonet_workers", size="large") == 1
    assert value("nonet_desired_workers", size="medium") == 1
    assert value("nonet_scheduler_has_leader") == value("nonet_config_valid") == 1
    assert 0 < value("nonet_redis_memory_used_bytes") < value("nonet_redis_memory_max_bytes")
    assert time.time() - value("nonet_namespace_refreshed_timestamp_seconds") < 600
    assert time.time() - value("nonet_epoch_timestamp_seconds") < 600


def test_schedulers_differ_in_what_is_their_own(system: Watched) -> None:
    """One leads; of the namespace both say the same."""
    leads = [system.value(who, "nonet_scheduler_is_leader") for who in ("leader", "standby")]
    assert leads == [1, 0]
    shared = {
        name: [
            {tuple(sample.labels.items()) for sample in system.by_daemon[who][name].samples}
            for who in ("leader", "standby")
        ]
        for name in system.by_daemon["leader"]
        if NAMESPACE_ONLY.match(name)
    }
    assert len(shared) >= 20
    assert all(first == second for first, second in shared.values())


def test_autoscalers_get_each_size(system: Watched) -> None:
    """The leader and the standby answer alike; a size that is not wanted is 0, not absent."""
    first, second = system.desired
    assert first == second
    assert list(first) == ["small", "medium", "large"]
    assert (first["small"], first["medium"], first["large"]) == (1, 1, 0)


def test_a_fleet_and_its_workers_have_ports_of_their_own(system: Watched) -> None:
    """The fleet counts its workers by state; the first has the next port."""
    ready = system.value("fleet", "nonet_fleet_workers", size="large", state="ready")
    assert (ready, system.value("fleet", "nonet_ready")) == (1, 1)
    assert system.value("member", "nonet_worker_slots", size="large") == 1
    assert "nonet_worker_slots" not in system.by_daemon["fleet"]
