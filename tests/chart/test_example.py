"""ci/example.yaml deploys the package in examples/ with its own configuration."""

from __future__ import annotations

from pathlib import Path

import preloaded
import yaml
from rendering import CHART, Charts, values_of

_EXAMPLES = CHART.parents[1] / "examples"


def test_its_configuration_is_that_of_the_package() -> None:
    """What stands in the values is what stands in examples/nonet.yaml."""
    values = values_of(CHART / "ci" / "example.yaml")
    assert values["config"]["files"]["nonet.yaml"] == values_of(_EXAMPLES / "nonet.yaml")


def test_the_rendered_configuration_is_valid(
    charts: Charts, example_package: Path, tmp_path: Path
) -> None:
    """The scheduler would take the ConfigMap, with the package in its image."""
    files = charts.ci("example").named("ConfigMap", "-config")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert yaml.safe_load(text)
    variables = {"PYTHONPATH": str(example_package)}
    command = ("task-run", "config", "check", str(tmp_path))
    ended = preloaded.run(*command, variables=variables, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
