"""What a pipeline counts in its process."""

from __future__ import annotations

import pytest

from nonet.pipelines import pipeline_tally as tally
from nonet.pipelines.pipeline_tally import PipelineTally
from nonet.telemetry.metrics import METRICS, Histogram


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(tally.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_wait_are_of_the_last_minute(clock: list[float]) -> None:
    """Only rows that were done count for the rate; older ones than a minute do not."""
    counted = PipelineTally()
    counted.started(10.0)
    counted.processed("done", 1.0)
    clock[0] += 50
    counted.started(2.0)
    counted.processed("done", 1.0)
    counted.processed("failed", 1.0)
    assert (counted.rate, counted.wait) == (2, 6.0)
    clock[0] += 11
    assert (counted.rate, counted.wait) == (1, 2.0)
    clock[0] += 50
    assert (counted.rate, counted.wait) == (0, 0.0)


def test_samples_are_declared_metrics() -> None:
    """Each outcome is a series, and durations are histograms with all rows."""
    counted = PipelineTally()
    counted.fetches += 1
    counted.started(0.5)
    counted.processed("done", 1.0)
    counted.processed("failed", 2.0)
    counted.losses += 1
    found = {(name, *labels): value for name, labels, value in counted.samples("volumes")}
    assert all(name in METRICS for name, *_ in found)
    assert found["nonet_pipeline_processed_total", "volumes", "done"] == 1
    assert found["nonet_pipeline_processed_total", "volumes", "failed"] == 1
    assert found["nonet_pipeline_fetches_total", "volumes"] == 1
    assert found["nonet_pipeline_leases_lost_total", "volumes"] == 1
    assert isinstance(found["nonet_pipeline_run_seconds", "volumes"], Histogram)
    assert isinstance(found["nonet_pipeline_wait_seconds", "volumes"], Histogram)
