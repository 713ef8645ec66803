"""Each of the 26 promises is in the documentation, and names tests that are there and are run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from docs.pages import ROOT

PAGE = ROOT / "docs" / "reliability.md"
NUMBERS = range(1, 27)
_TEST = re.compile(r"`(tests/[\w/]+\.py(?:::Test\w+)?::test_\w+)`")
_NOT_RUN = re.compile(r"skip|xfail|soak|static")


@cache
def promises() -> dict[int, str]:
    """What the page says of each, by its number, in its order."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("\n## What is promised\n")[2].partition("\n## ")[0]
    parts = re.split(r"(?m)^(\d+)\. (?=\*\*)", section)
    return {int(number): body for number, body in zip(parts[1::2], parts[2::2], strict=True)}


def marks(name: str) -> Iterator[str]:
    """Source of the marks of a test, of its class and of its module; of cases: of one that runs."""
    path, *inner = name.split("::")
    node: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.Assign) and ast.unparse(item).startswith("pytestmark"):
            yield ast.unparse(item)
    for wanted in inner:
        found = [item for item in ast.iter_child_nodes(node) if getattr(item, "name", "") == wanted]
        assert len(found) == 1, f"{name}: there is no {wanted}"
        (node,) = found
        for mark in node.decorator_list:  # type: ignore[attr-defined]  # a class or a function
            cases = [ast.unparse(mark)]
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
                cases = [ast.unparse(case) for case in getattr(mark.args[1], "elts", mark.args[1:])]
            yield min(cases, key=lambda case: bool(_NOT_RUN.search(case)))


def test_all_promises_are_there_in_their_order() -> None:
    """From the first to the last, each once, each with a sentence of its own."""
    assert list(promises()) == list(NUMBERS)
    assert len({body.partition("**")[2].partition("**")[0] for body in promises().values()}) == 26


def test_each_promise_names_tests_that_run() -> None:
    """At least one test, each of which is there, and is not left to `make soak`."""
    for number, body in promises().items():
        names = _TEST.findall(body)
        assert names and len(set(names)) == len(names), number
        for name in names:
            for mark in marks(name):
                assert not _NOT_RUN.search(mark), f"{name} is not run by `make test`"
