"""Readings of a daemon in the formats of Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from nonet.telemetry.exposition import Exposition
from nonet.telemetry.metrics import Histogram, Sample


def times(*values: float) -> Histogram:
    made = Histogram((0.1, 1.0))
    for value in values:
        made.observe(value)
    return made


SAMPLES: list[Sample] = [
    ("nonet_ready", (), 1.0),
    ("nonet_tasks_started_total", ("a:B", "small"), 3),
    ("nonet_tasks_started_total", ('odd "name"\n\\', "large"), 4),
    ("nonet_task_run_seconds", ("a:B",), times(0.1, 0.2, 5)),
]


@pytest.mark.parametrize(
    ("accept", "read"), [("", parse), ("application/openmetrics-text; version=1.0.0", parse_open)]
)
def test_both_formats_have_the_same_series(accept: str, read: object) -> None:
    content, content_type = Exposition(lambda: SAMPLES).render(accept)
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    families = {item.name: item for item in read(content.decode())}  # type: ignore[operator]
    assert families["nonet_ready"].type == "gauge"
    started = families["nonet_tasks_started"]
    assert started.type == "counter"
    assert {sample.labels["task"]: sample.value for sample in started.samples} == {
        "a:B": 3,
        'odd "name"\n\\': 4,
    }
    run = families["nonet_task_run_seconds"]
    assert run.type == "histogram"
    values = {(item.name[22:], item.labels.get("le")): item.value for item in run.samples}
    assert values == {
        ("_bucket", "0.1"): 1,
        ("_bucket", "1.0"): 2,
        ("_bucket", "+Inf"): 3,
        ("_count", None): 3,
        ("_sum", None): pytest.approx(5.3),
    }


def test_an_undocumented_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="nonet_surprise"):
        Exposition(lambda: [("nonet_surprise", (), 1)]).render("")
