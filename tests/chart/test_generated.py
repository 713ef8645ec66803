"""What in the chart is made of something else is up to date."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import yaml
from rendering import CHART


def test_readme_and_schema_are_fresh() -> None:
    """README.md tells of each value, and the schema knows each setting that Nonet has."""
    script = CHART.parents[1] / "scripts" / "chart"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_chart_is_for_this_version() -> None:
    """The image that is taken by default has the version of the package beside the chart."""
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == project["project"]["version"]
