"""The table of README.md, and what `make compare` puts into it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_every_cell_has_a_figure(compare: ModuleType) -> None:
    """Each system has a column, and each measured row a figure in each."""
    titles = [system.title for system in compare.SYSTEMS.values()]
    assert f"| | {' | '.join(titles)} |" in README
    for row in (compare.SUBMIT, compare.DRAIN, compare.LATENCY, compare.KILLED):
        (line,) = [line for line in README.splitlines() if line.startswith(f"| {row} |")]
        figures = line.split("|")[2:-1]
        assert len(figures) == len(titles)
        assert all(re.fullmatch(r" [\d,.]+ ", figure) for figure in figures), line


def test_new_rows_take_the_place_of_the_old(compare: ModuleType) -> None:
    """The figures and the date are new, all else stays; a row that is not there is an error."""
    line = f"| {compare.DRAIN} | 1 | 2 |"
    page = compare.with_rows(README, [line], rounds=7)
    assert line in page
    assert "rounds: 7" in page
    assert len(page.splitlines()) == len(README.splitlines())
    with pytest.raises(ValueError, match="no row 'another'"):
        compare.with_rows(README, ["| another | 1 |"], rounds=7)
