"""What the chart has from elsewhere is up to date: settings, the version, the example."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import yaml
from rendering import CHART, values_of

_ROOT = CHART.parents[1]


def test_readme_and_schema_are_fresh() -> None:
    """README.md tells of each value, and the schema knows each setting that Nonet has."""
    script = _ROOT / "scripts" / "chart"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_chart_is_for_this_version() -> None:
    """The image that is taken by default has the version of the package beside the chart."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == project["project"]["version"]


def test_the_example_has_the_configuration_of_its_package() -> None:
    """The values in ci/example.yaml have what examples/nonet.yaml has."""
    values = values_of(CHART / "ci" / "example.yaml")
    assert values["config"]["files"]["nonet.yaml"] == values_of(_ROOT / "examples" / "nonet.yaml")
