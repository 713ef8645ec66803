"""The page about monitoring: the log lines that it explains are logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.pages import Page, codes

import nonet

PAGE = Page.read("how-to/monitor.md")


def _logged() -> Iterator[str]:
    """Formats of all that Nonet logs."""
    for path in Path(nonet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "FailureLog" and isinstance(node.args[0], ast.Constant):
                yield f"{node.args[0].value} failed: "
            if re.match(r"(self\._)?logger\.", called):
                for item in ast.walk(node):
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        yield item.value


def test_the_lines_to_know_are_logged() -> None:
    """Each is a format of the code, with `…` for what differs."""
    lines = [line for row in PAGE.rows("Lines to know") for line in codes(row[0])]
    logged = list(_logged())
    assert len(lines) > 15
    for line in lines:
        pattern = "(?s)" + ".*".join(re.escape(part) for part in line.split("…"))
        assert any(re.fullmatch(pattern, text) for text in logged), line
