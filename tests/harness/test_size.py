"""The budget of size, `scripts/size.py`."""

from __future__ import annotations

import runpy

import pytest
from docs.pages import ROOT

SIZE = runpy.run_path(str(ROOT / "scripts" / "size.py"))


@pytest.mark.parametrize(
    ("allowed", "now", "problem"),
    [
        (1000, 1050, None),
        (1000, 1051, "src/a has grown: 1,051, and scripts/size.toml says 1,000"),
        (1150, 1000, None),
        (1151, 1000, "src/a has shrunk: 1,000, and scripts/size.toml says 1,151"),
        (10, 30, None),
        (10, 31, "src/a has grown: 31, and scripts/size.toml says 10"),
        (30, 10, None),
        (None, 21, "src/a has grown: 21, and scripts/size.toml says 0"),
        (21, None, "src/a has shrunk: 0, and scripts/size.toml says 21"),
    ],
)
def test_a_part_that_differs_from_its_entry_is_named(
    allowed: int | None, now: int | None, problem: str | None
) -> None:
    """Beyond 5 % of growth or 15 % of excess, and beyond 20 lines."""
    table, sizes = ({} if size is None else {"src/a": size} for size in (allowed, now))
    assert list(SIZE["problems"](table, sizes)) == ([problem] if problem else [])


def test_blanks_comments_and_docstrings_do_not_count() -> None:
    """A string that is no docstring does."""
    source = ['"""Module', "", '# text."""', "# comment", "", "def f():", '    """Text."""']
    assert SIZE["code_lines"]("\n".join([*source, '    return """', 'x"""'])) == 3
