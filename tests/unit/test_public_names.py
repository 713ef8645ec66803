"""What the package offers, what it documents, and what an import costs."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import nonet

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(nonet.__path__, "nonet.")
    if ".migrations" not in name  # alembic runs these with a context of its own
)


def test_public_names_are_what_is_imported() -> None:
    """`__all__` is sorted and lists exactly what ``nonet/__init__.py`` imports."""
    tree = ast.parse(Path(nonet.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(nonet.__all__) == imported
    assert len(nonet.__all__) == len(imported)
    for name in nonet.__all__:
        assert hasattr(nonet, name)


def test_public_names_are_documented() -> None:
    """Everything that programs may rely on has a docstring of its own."""
    missing = [name for name in nonet.__all__ if not getattr(nonet, name).__doc__]
    assert missing == []


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_are_for(name: str) -> None:
    """The first line of each module gives the reason to open it."""
    module = importlib.import_module(name)
    source = Path(str(module.__file__)).read_text()
    assert module.__doc__ or not source.strip(), name


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    """Every ``>>>`` gives what it says."""
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_some_examples_were_run() -> None:
    """The test above finds the examples."""
    finder = doctest.DocTestFinder()
    found = [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(found) >= 10


@pytest.mark.parametrize("name", ["keys", "errors", "locks", "message", "task", "client", "app"])
def test_an_import_does_not_bring_sql(name: str) -> None:
    """SQL, the command line and web frameworks are imported by who needs them."""
    heavy = ("sqlalchemy", "alembic", "fastapi", "starlette", "typer", "rich")
    code = f"import sys, nonet.{name}; print(*[m for m in {heavy!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
