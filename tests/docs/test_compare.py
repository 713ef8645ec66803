"""The tables in docs/benchmarks.md and README.md, and what `make compare` puts into them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/compare.py, which is a program."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benchmarks" / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compare", module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["docs/benchmarks.md", "README.md"])
def test_every_cell_has_a_figure(compare: ModuleType, name: str) -> None:
    """Each system has a column, and each measured row of the page a figure in each."""
    page = (ROOT / name).read_text(encoding="utf-8")
    titles = [system.title for system in compare.SYSTEMS.values()]
    assert f"| | {' | '.join(titles)} |" in page
    for row in compare.PAGES[name]:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
        figures = line.split("|")[2:-1]
        assert len(figures) == len(titles)
        assert all(re.fullmatch(r" [\d,.]+ ", figure) for figure in figures), line


@pytest.mark.parametrize("name", ["docs/benchmarks.md", "README.md"])
def test_new_rows_take_the_place_of_the_old(compare: ModuleType, name: str) -> None:
    """The figures and the date are new, all else stays; a row that is not there is an error."""
    before = (ROOT / name).read_text(encoding="utf-8")
    line = f"| {compare.DRAIN} | 1 | 2 |"
    page = compare.with_rows(before, [line], rounds=7)
    assert line in page
    assert "rounds: 7" in page
    assert len(page.splitlines()) == len(before.splitlines())
    with pytest.raises(ValueError, match="no row 'another'"):
        compare.with_rows(before, ["| another | 1 |"], rounds=7)
