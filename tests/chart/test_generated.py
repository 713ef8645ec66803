"""What in the chart is made of something else is up to date."""

from __future__ import annotations

import subprocess
import sys

from rendering import CHART


def test_readme_and_schema_are_fresh() -> None:
    """README.md tells of each value, and the schema knows each setting that Nonet has."""
    script = CHART.parents[1] / "scripts" / "chart"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
