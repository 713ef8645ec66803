"""The section ``pipelines`` of the configuration."""

from __future__ import annotations

import pytest
from config.mistakes import mistakes, refusal

from nonet.config.models import PipelineConfig
from nonet.config.reading import parse_config


def test_each_value_is_read() -> None:
    """A missing value stays as the pipeline has it."""
    found = parse_config(
        """
        pipelines:
          volumes: {workers: 40, interval: 0.5, queue: 100, pause: true}
          disks: {}
        """,
        "c.yaml",
    )
    assert found.pipelines == {
        "volumes": PipelineConfig(workers=40, interval=0.5, queue=100, pause=True),
        "disks": PipelineConfig(),
    }


MISTAKES = """
workers: 0        => workers:
workers: 10001    => workers:
workers: many     => workers:
workers: null     => workers:
interval: 0       => interval:
interval: 5s      => interval:
queue: 0          => queue:
queue: 2.5        => queue:
pause: sometimes  => pause:
wrokers: 4        => wrokers: unknown key 'wrokers', known are workers, interval, queue, pause.
"""


@pytest.mark.parametrize(("text", "problem"), mistakes("pipelines: {a: {%s}}", "", MISTAKES))
def test_a_mistake_names_the_pipeline_and_the_value(text: str, problem: str) -> None:
    """The line has the file, the path and the reason."""
    (line,) = refusal(text)
    assert line.startswith(f"c.yaml:1: pipelines.a.{problem}")
