"""Autoscaled pools: what KEDA and Kubernetes are told."""

from __future__ import annotations

import pytest
from rendering import Charts, Object, environment

from nonet.telemetry.metrics import METRICS


def test_keda_asks_the_schedulers(charts: Charts) -> None:
    """A trigger reads the desired workers of the pool's size at the Service of the schedulers."""
    rendered = charts.ci("keda")
    service = rendered.named("Service", "-scheduler")
    port = service["spec"]["ports"][0]["port"]
    for pool, size, target in (
        ("small", "small", "1"),
        ("large", "large", "2"),
        ("large-gpu", "large", "2"),
    ):
        spec = rendered.named("ScaledObject", f"-worker-{pool}")["spec"]
        assert spec["triggers"] == [
            {
                "type": "metrics-api",
                "metadata": {
                    "url": f"http://{service['metadata']['name']}.tasks.svc:{port}/desired",
                    "format": "json",
                    "valueLocation": size,
                    "targetValue": target,
                },
            }
        ]


def test_scaled_objects_are_well_formed(charts: Charts) -> None:
    """A ScaledObject has the fields that KEDA reads, with whole numbers, and texts as metadata."""
    found = charts.ci("keda").of_kind("ScaledObject")
    assert len(found) == 4
    for item in found:
        spec = item["spec"]
        assert item["apiVersion"] == "keda.sh/v1alpha1"
        assert set(spec) == {
            "scaleTargetRef",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "cooldownPeriod",
            "advanced",
            "triggers",
        }
        for name in ("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"):
            assert type(spec[name]) is int
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
        for trigger in spec["triggers"]:
            assert all(type(value) is str for value in trigger["metadata"].values())


def test_keda_can_look_at_streams_instead(charts: Charts) -> None:
    """A pool may have triggers of its own, and the environment that they name."""
    rendered = charts.ci("keda")
    (trigger,) = rendered.named("ScaledObject", "-worker-medium")["spec"]["triggers"]
    assert trigger["type"] == "redis-streams"
    assert trigger["metadata"]["stream"] == "{nonet}:tasks:normal:medium"
    pod = rendered.named("Deployment", "-worker-medium")["spec"]["template"]
    assert trigger["metadata"]["addressFromEnv"] in environment(pod["spec"]["containers"][0])


def test_schedulers_know_the_slots_of_pools_without_pods(charts: Charts) -> None:
    """Scaled to none a pool keeps its concurrency; of two pools of a size the lower one holds."""
    pools = {"small": {"concurrency": 30}, "gpu": {"size": "medium", "concurrency": 1}}
    pools["large"] = {"enabled": False}
    rendered = charts.render({"redis": {"url": "redis://redis:6379/0"}, "workers": pools})
    scheduler = rendered.named("Deployment", "-scheduler")["spec"]["template"]["spec"]
    (container,) = scheduler["containers"]
    assert environment(container)["NONET_SLOTS"] == "medium:1,small:30"


def test_an_hpa_reads_the_same_number(charts: Charts) -> None:
    """A HorizontalPodAutoscaler wants one pod for each desired worker, or what the values say."""
    rendered = charts.ci("hpa")
    (metric,) = rendered.named("HorizontalPodAutoscaler", "-worker-small")["spec"]["metrics"]
    assert metric["external"]["metric"] == {
        "name": "nonet_desired_workers",
        "selector": {"matchLabels": {"nonet_release": "prod-nonet", "size": "small"}},
    }
    assert {"size"} == set(METRICS["nonet_desired_workers"].labels)
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    (metric,) = rendered.named("HorizontalPodAutoscaler", "-worker-medium")["spec"]["metrics"]
    assert metric["resource"]["name"] == "cpu"


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_pools_shrink_after_the_configured_time(charts: Charts, kind: str) -> None:
    """The time for which fewer must have been wanted is that of the values."""
    rendered = charts.render(
        {
            "redis": {"url": "redis://redis:6379/0"},
            "workerDefaults": {"autoscaling": {"type": kind, "scaleDownSeconds": 77}},
        }
    )
    for item in rendered.of_kind("ScaledObject", "HorizontalPodAutoscaler"):
        assert _behavior(item)["scaleDown"]["stabilizationWindowSeconds"] == 77


def _behavior(item: Object) -> Object:
    spec = item["spec"]
    return spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
