"""What the package offers, what it documents, and what an import costs."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import nonet

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(nonet.__path__, "nonet.")
    if ".migrations" not in name  # alembic runs these with a context of its own
)


def test_public_names_are_those_declared() -> None:
    """Type checkers see the same names as programs, at the same places."""
    tree = ast.parse(Path(nonet.__file__).read_text())
    declared = next(node for node in tree.body if isinstance(node, ast.If))
    places = {
        alias.name: str(node.module)
        for node in declared.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*nonet.__all__, "__version__"} == set(places)
    assert set(nonet.__all__) <= set(dir(nonet))
    for name, module in places.items():
        assert getattr(nonet, name) is getattr(importlib.import_module(module), name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A misspelt name fails as that of any module."""
    with pytest.raises(AttributeError, match="'nonet' has no attribute 'Lock'"):
        nonet.Lock  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Lock'"):
        exec("from nonet import Lock")


def test_each_module_has_a_docstring() -> None:
    """The first line of each module gives the reason to open it."""
    modules = map(importlib.import_module, MODULES)
    silent = [
        module.__name__
        for module in modules
        if not module.__doc__ and Path(str(module.__file__)).read_text().strip()
    ]
    assert MODULES and silent == []


def test_examples_in_docstrings_are_true() -> None:
    """Every ``>>>`` gives what it says, and there are some."""
    tried = 0
    for module in map(importlib.import_module, MODULES):
        if ">>>" in Path(str(module.__file__)).read_text():
            result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
            assert result.failed == 0, module.__name__
            tried += result.attempted
    assert tried >= 10
