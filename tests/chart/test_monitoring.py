"""Monitors, alerts and the dashboard: they find the pods, and ask for what is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from metrics_names import series_names
from rendering import NAMESPACE, Charts, Object, Rendered

from nonet.telemetry.metrics import METRICS

_REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_DURATION = re.compile(r"[0-9]+(ms|s|m|h)")
_ON = {
    "redis": {"url": "redis://redis:6379/0"},
    "monitoring": {"enabled": True, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
}


@pytest.fixture
def monitored(charts: Charts) -> Rendered:
    """The defaults with everything of monitoring."""
    return charts.render(_ON)


def test_monitors_find_all_daemons(monitored: Rendered) -> None:
    """PodMonitor and ServiceMonitor scrape each daemon once, at a port that it has."""
    pods = monitored.named("PodMonitor", "-worker")["spec"]
    services = monitored.named("ServiceMonitor", "-scheduler")["spec"]
    (service,) = monitored.of_kind("Service")
    assert services["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert set(pods) == {"selector", "podMetricsEndpoints"}
    assert set(services) == {"selector", "endpoints"}
    (endpoint,) = services["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (scraped,) = pods["podMetricsEndpoints"]
    for name, pod, container in monitored.daemons():
        is_found = pods["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        is_served = service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert is_found != is_served, name
        assert scraped["port"] == container["ports"][0]["name"]
    for item in (endpoint, scraped):
        assert set(item) == {"port", "path", "interval", "scrapeTimeout", "relabelings"}
        assert item["path"] == "/metrics"
        assert _DURATION.fullmatch(item["interval"]) and _DURATION.fullmatch(item["scrapeTimeout"])
        (relabeling,) = item["relabelings"]
        assert relabeling == {
            "action": "replace",
            "targetLabel": "nonet_release",
            "replacement": "prod-nonet",
        }


def test_alerts_are_well_formed(monitored: Rendered) -> None:
    """Each alert is PromQL, says how long it must hold, how bad it is, and what it means."""
    for alert in _alerts(monitored):
        assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
        promql_parser.parse(alert["expr"])
        assert _DURATION.fullmatch(alert["for"])
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"].endswith(f"({NAMESPACE}/prod-nonet)")
        for selector in re.findall(r"nonet_[a-z_]+(\{[^}]*\})?", alert["expr"]):
            if "nonet_release" not in alert["expr"]:
                raise AssertionError(alert["alert"])
            assert not selector or f'namespace="{NAMESPACE}",nonet_release="prod-nonet"' in selector


def test_alerts_are_explained(charts: Charts, monitored: Rendered) -> None:
    """Each alert has a section of its own in docs/reference/alerts.md, and each section an alert.

    It leads there if the values say where the page is; nobody is sent to what is no URL.
    """
    text = (_REFERENCE / "alerts.md").read_text(encoding="utf-8")
    page = "https://docs.example.org/alerts"
    anchors = {f"{page}#{title.lower()}" for title in re.findall(r"(?m)^## (.+)$", text)}
    rules = {**_ON["monitoring"]["rules"], "runbook": page}
    found = charts.render({**_ON, "monitoring": {**_ON["monitoring"], "rules": rules}})
    assert {alert["annotations"]["runbook_url"] for alert in _alerts(found)} == anchors
    assert all(set(alert["annotations"]) == {"summary"} for alert in _alerts(monitored))


def test_alerts_wait_for_two_leases_of_the_leader(charts: Charts) -> None:
    """No leader is an alert after twice the time in which another one takes over."""
    for settings, expected in (({}, "60s"), ({"LEADER_TTL": 12.5}, "26s")):
        rendered = charts.render({**_ON, "settings": settings})
        (alert,) = [item for item in _alerts(rendered) if item["alert"] == "NonetNoLeader"]
        assert alert["for"] == expected


def test_alerts_and_dashboard_use_exported_series(monitored: Rendered) -> None:
    """Each series in an alert or the dashboard is one that Nonet has."""
    asked = {name for text in _asked(monitored) for name in re.findall(r"\bnonet_[a-z_]+", text)}
    asked -= {"nonet_release", "nonet_namespace"}
    assert asked and asked <= series_names(), asked - series_names()


def test_alerts_and_dashboard_use_existing_labels(monitored: Rendered) -> None:
    """What a series is selected by is a label of that metric, or one that the scrape adds."""
    # The last one is there if there are several namespaces.
    scraped = {"namespace", "nonet_release", "pod", "nonet_namespace"}
    for expression in _asked(monitored):
        for name, matchers in re.findall(r"\b(nonet_[a-z_]+)\{([^}]*)\}", expression):
            metric = METRICS[re.sub(r"_bucket$", "", name)]
            labels = set(re.findall(r"(\w+)=~?\"", matchers))
            assert labels <= scraped | set(metric.labels), expression
        known = set().union(*(METRICS[name].labels for name in METRICS), scraped, {"le"})
        for group in re.findall(r"(?:by|on|without) \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", group)) <= known, expression


def test_the_dashboard_is_one(monitored: Rendered) -> None:
    """The dashboard is found by Grafana's sidecar, its panels have ids, texts and PromQL."""
    config = monitored.named("ConfigMap", "-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    panels = json.loads(config["data"]["nonet.json"])["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12
    for panel in panels:
        assert panel["description"], panel["title"]
    for expression in _expressions(monitored):
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))
        assert 'namespace="$namespace",nonet_release="$release"' in expression


def test_alerts_can_be_left_out_and_added(charts: Charts) -> None:
    """`disabled` leaves alerts out, `extra` adds rules, `alertLabels` labels all of ours."""
    alerts = list(_alerts(charts.ci("everything")))
    assert "NonetQuarantined" not in {item["alert"] for item in alerts}
    assert [item for item in alerts if item["alert"] == "Mine"] == [
        {"alert": "Mine", "expr": "vector(1)"}
    ]
    assert all(item["labels"]["team"] == "physics" for item in alerts if item["alert"] != "Mine")


def _asked(rendered: Rendered) -> Iterator[str]:
    """All PromQL of the alerts and the dashboard."""
    yield from (item["expr"] for item in _alerts(rendered))
    yield from _expressions(rendered)


def _alerts(rendered: Rendered) -> Iterator[Object]:
    (item,) = rendered.of_kind("PrometheusRule")
    for group in item["spec"]["groups"]:
        yield from group["rules"]


def _expressions(rendered: Rendered) -> Iterator[str]:
    """What the dashboard asks, but for the names of namespaces and releases."""
    dashboard: Any = json.loads(rendered.named("ConfigMap", "-dashboard")["data"]["nonet.json"])
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yield from (item["expr"] for item in dashboard["annotations"]["list"])
