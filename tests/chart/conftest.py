"""The chart, rendered by Helm."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendering import MATRIX, Charts, Rendered, library_problem, values_of


@pytest.fixture(scope="session")
def charts() -> Iterator[Charts]:
    """Renders the chart; skips where there is no build of Helm's library."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("there is a Helm library for Linux x86_64 only")
    assert not (problem := library_problem()), problem
    with Charts() as found:
        yield found


@pytest.fixture(params=MATRIX, ids=[path.stem for path in MATRIX])
def values_file(request: pytest.FixtureRequest) -> Path:
    """Each set of values in charts/nonet/ci."""
    return request.param


@pytest.fixture
def rendered(charts: Charts, values_file: Path) -> Rendered:
    """The chart with each set of values."""
    return charts.render(values_of(values_file))
