"""The page about monitoring: the log lines that it explains are logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from docs.pages import Page, codes

import nonet

PAGE = Page.read("how-to/monitor.md")


def _lines() -> list[str]:
    return [line for row in PAGE.rows("Lines to know") for line in codes(row[0])]


@cache
def _logged() -> list[str]:
    """Formats of all that Nonet logs."""

    def formats() -> Iterator[str]:
        for path in Path(nonet.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                if called == "FailureLog" and isinstance(node.args[0], ast.Constant):
                    yield f"{node.args[0].value} failed: "
                if re.match(r"(self\._)?logger\.", called):
                    yield from (
                        item.value
                        for item in ast.walk(node)
                        if isinstance(item, ast.Constant) and isinstance(item.value, str)
                    )

    return list(formats())


@pytest.mark.parametrize("line", _lines())
def test_the_lines_are_logged(line: str) -> None:
    """Each is a format of the code, with `…` for what differs."""
    pattern = "(?s)" + ".*".join(re.escape(part) for part in line.split("…"))
    assert any(re.fullmatch(pattern, text) for text in _logged())


def test_there_are_lines() -> None:
    """They are found on the page, or the test above says nothing."""
    assert len(_lines()) > 15
