"""What each alert means: samples for which it is there, and samples for which it is not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from chart.promql import NOW, fires
from rendering import NAMESPACE, Charts

_OURS = f'namespace="{NAMESPACE}",nonet_release="prod-nonet"'
_RULES = {
    "enabled": True,
    "oldestAgeSeconds": {"realtime": 30, "normal": 600, "background": 3600},
    "deadTasks": 10,
    "lockWaitSeconds": 60,
    "redisMemory": 0.8,
}
_VALUES = {"redis": {"url": "redis://redis:6379/0"}, "monitoring": {"rules": _RULES}}


@dataclass(frozen=True)
class Case:
    """An alert and what is exported.

    Attributes:
        by: the labels that the alert has then; None: it is not there.
    """

    alert: str
    samples: str
    by: dict[str, str] | None


def there(alert: str, samples: str, **by: str) -> Case:
    return Case(alert, samples, by)


def quiet(alert: str, samples: str) -> Case:
    return Case(alert, samples, None)


def crossing(alert: str, series: str, beyond: str, within: str, by: str = "") -> list[Case]:
    """An alert of one series: with a value beyond its bound, and with one that is not."""
    labels = dict(re.findall(r'(\w+)="([^"]*)"', series)) if by else {}
    found = {name: text for name, text in labels.items() if name == by}
    return [Case(alert, f"{series} {beyond}", found), quiet(alert, f"{series} {within}")]


def waits(*counts: int) -> str:
    """Waits of one class, within 10, 60, 120 seconds and any time, a quarter of an hour long."""
    bounds = zip(("10.0", "60.0", "120.0", "+Inf"), counts, strict=True)
    name = 'nonet_lock_wait_seconds_bucket{task="a:T",size="small",le='
    return "\n".join(f'{name}"{bound}"}} 0 {count}' for bound, count in bounds)


CASES = [
    there(
        "NonetRowsLate",
        """nonet_pipeline_oldest_due_seconds{pipeline="v"} 601
        nonet_pipeline_paused{pipeline="v"} 0""",
        pipeline="v",
    ),
    quiet(
        "NonetRowsLate",
        """nonet_pipeline_oldest_due_seconds{pipeline="v"} 601
        nonet_pipeline_paused{pipeline="v"} 1""",
    ),
    *crossing(
        "NonetPipelineGone", 'nonet_pipeline_processes{pipeline="v"}', "0", "1", by="pipeline"
    ),
    *crossing("NonetRowsStale", 'nonet_pipeline_rows_stale{pipeline="v"}', "1", "0", by="pipeline"),
    *crossing(
        "NonetRowLettersWait",
        'nonet_pipeline_letters_waiting{pipeline="v"}',
        "1",
        "0",
        by="pipeline",
    ),
    there("NonetNotScraped", ""),
    quiet("NonetNotScraped", 'nonet_build_info{pod="p"} 1'),
    there("NonetNoLeader", ""),
    there("NonetNoLeader", 'nonet_scheduler_has_leader{pod="p"} 0'),
    quiet(
        "NonetNoLeader",
        """nonet_scheduler_has_leader{pod="p"} 0
        nonet_scheduler_has_leader{pod="q"} 1""",
    ),
    there(
        "NonetSchedulerBlind",
        f"""nonet_namespace_refreshed_timestamp_seconds{{pod="p"}} {NOW - 61}
        nonet_namespace_refreshed_timestamp_seconds{{pod="q"}} {NOW - 500}""",
    ),
    quiet(
        "NonetSchedulerBlind",
        f"""nonet_namespace_refreshed_timestamp_seconds{{pod="p"}} {NOW - 59}
        nonet_namespace_refreshed_timestamp_seconds{{pod="q"}} {NOW - 500}""",
    ),
    there(
        "NonetNotReady",
        """nonet_ready{pod="p"} 0
        nonet_draining{pod="p"} 0
        nonet_ready{pod="q"} 1""",
        pod="p",
    ),
    quiet(
        "NonetNotReady",
        """nonet_ready{pod="p"} 0
        nonet_draining{pod="p"} 1
        nonet_ready{pod="q"} 1""",
    ),
    there(
        "NonetNoWorkers",
        """nonet_desired_workers{pod="p",size="small"} 2
        nonet_desired_workers{pod="p",size="large"} 2
        nonet_workers{pod="p",size="small"} 0
        nonet_workers{pod="p",size="large"} 1""",
        size="small",
    ),
    quiet(
        "NonetNoWorkers",
        """nonet_desired_workers{pod="p",size="small"} 0
        nonet_stream_depth{pod="p",priority="normal",size="small"} 7
        nonet_workers{pod="p",size="small"} 0""",
    ),
    there(
        "NonetTasksLate",
        'nonet_stream_oldest_age_seconds{pod="p",priority="realtime",size="small"} 31',
        priority="realtime",
        size="small",
    ),
    there(
        "NonetTasksLate",
        'nonet_stream_oldest_age_seconds{pod="p",priority="normal",size="large"} 601',
        priority="normal",
        size="large",
    ),
    quiet(
        "NonetTasksLate",
        """nonet_stream_oldest_age_seconds{pod="p",priority="realtime",size="small"} 29
        nonet_stream_oldest_age_seconds{pod="p",priority="normal",size="small"} 599
        nonet_stream_oldest_age_seconds{pod="p",priority="background",size="small"} 3599""",
    ),
    there(
        "NonetNothingEnds",
        """nonet_stream_in_flight{pod="p",priority="normal",size="small"} 0
        nonet_stream_in_flight{pod="p",priority="realtime",size="small"} 1
        nonet_stream_in_flight{pod="p",priority="normal",size="large"} 1
        nonet_tasks_finished_total{pod="q",task="a:T",size="small",outcome="done"} 5 5
        nonet_tasks_finished_total{pod="r",task="a:T",size="large",outcome="done"} 5 6""",
        size="small",
    ),
    quiet("NonetNothingEnds", 'nonet_stream_in_flight{pod="p",priority="normal",size="small"} 0'),
    *crossing("NonetDelayedOverdue", 'nonet_delayed_overdue_tasks{pod="p"}', "1", "0"),
    there(
        "NonetDeadTasks",
        """nonet_tasks_finished_total{pod="p",task="a:T",size="small",outcome="dead"} 0 6
        nonet_tasks_finished_total{pod="q",task="a:T",size="small",outcome="dead"} 9 14
        nonet_tasks_finished_total{pod="q",task="a:U",size="small",outcome="dead"} 0 10""",
        task="a:T",
    ),
    quiet(
        "NonetDeadTasks",
        'nonet_tasks_finished_total{pod="p",task="a:T",size="small",outcome="done"} 0 99',
    ),
    *crossing("NonetDeadLettersStuck", 'nonet_dying_tasks{pod="p"}', "1", "0"),
    *crossing(
        "NonetTasksCrash", 'nonet_task_crashes_total{pod="p",task="a:T"}', "0 1", "4 4", by="task"
    ),
    there("NonetLockWait", waits(0, 94, 100, 100), task="a:T"),
    quiet("NonetLockWait", waits(0, 95, 100, 100)),
    *crossing("NonetLeasesLost", 'nonet_leases_lost_total{pod="p"}', "2 3", "3 3", by="pod"),
    *crossing(
        "NonetEventLoopBlocked", 'nonet_event_loop_lag_seconds{pod="p"}', "5.1", "4.9", by="pod"
    ),
    *crossing("NonetConfigInvalid", 'nonet_config_valid{pod="p"}', "0", "1"),
    *crossing("NonetConfigRefused", 'nonet_config_refused{pod="p"}', "1", "0", by="pod"),
    *crossing("NonetPeriodicBroken", 'nonet_periodic_broken_entries{pod="p"}', "1", "0"),
    there("NonetWorkflowsFailed", 'nonet_workflows_ended_total{pod="p",state="failed"} 7 8'),
    quiet(
        "NonetWorkflowsFailed",
        """nonet_workflows_ended_total{pod="p",state="failed"} 8 8
        nonet_workflows_ended_total{pod="p",state="done"} 7 8""",
    ),
    *crossing("NonetQuarantined", 'nonet_quarantined_total{pod="p"}', "7 8", "8 8"),
    there(
        "NonetRedisMemory",
        """nonet_redis_memory_used_bytes{pod="p"} 81
        nonet_redis_memory_max_bytes{pod="p"} 100""",
    ),
    quiet(
        "NonetRedisMemory",
        """nonet_redis_memory_used_bytes{pod="p"} 79
        nonet_redis_memory_max_bytes{pod="p"} 100""",
    ),
]


@pytest.fixture
def alerts(charts: Charts) -> list[tuple[str, str]]:
    """Name and expression of each alert."""
    (rule,) = charts.render(_VALUES).of_kind("PrometheusRule")
    return [
        (alert["alert"], alert["expr"])
        for group in rule["spec"]["groups"]
        for alert in group["rules"]
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_is_there_when_it_should_be(alerts: list[tuple[str, str]], case: Case) -> None:
    """It tells what goes wrong, by which labels, and only that; other releases do not count."""
    expected = [] if case.by is None else [case.by]
    assert _found(alerts, case.alert, scraped(case.samples, _OURS)) == expected
    foreign = scraped(case.samples, f'namespace="{NAMESPACE}",nonet_release="other"')
    nothing = _found(alerts, case.alert, "")
    assert _found(alerts, case.alert, foreign) == nothing


def test_each_alert_has_cases(alerts: list[tuple[str, str]]) -> None:
    """Both of those for which it is there and of those for which it is not."""
    for is_quiet in (True, False):
        assert {case.alert for case in CASES if (case.by is None) == is_quiet} == {
            name for name, _ in alerts
        }


def scraped(samples: str, labels: str) -> str:
    """With the labels that the scrape adds."""
    return re.sub(r"\{", f"{{{labels},", samples)


def _found(alerts: list[tuple[str, str]], wanted: str, samples: str) -> list[dict[str, str]]:
    return [
        {name: text for name, text in labels.items() if name not in ("namespace", "nonet_release")}
        for name, expression in alerts
        if name == wanted
        for labels in fires(expression, samples)
    ]
