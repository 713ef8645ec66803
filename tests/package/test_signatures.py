"""What a public signature names can be imported from a public place, for annotations."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ForwardRef, ParamSpec, TypeVar, get_origin

import pytest
from docs.pages import DOCS, Page, codes
from public import FRAMEWORK, PUBLIC, documented

import nonet.types

PLACES = (*PUBLIC, "nonet.pipelines", "nonet.types")
NAMES = {name for place in PLACES for name in importlib.import_module(place).__all__}


def signatures() -> Iterator[tuple[str, str, ModuleType]]:
    """Each annotation of what is public: whose it is, its text, and its module."""
    for options in ("SubmitManyOptions", "SubmitOptions"):
        yield from annotations(options, getattr(nonet.types, options))
    for name, thing in documented().items():
        if FRAMEWORK.search(inspect.cleandoc(thing.__doc__ or "")):
            continue
        function = thing.fget if isinstance(thing, property) else thing
        if not inspect.isclass(function):
            yield from annotations(name, function)
        else:
            yield from annotations(name, function)
            for part in ("__init__", "__new__") if name not in without_constructor() else ():
                yield from annotations(name, vars(function).get(part))


def annotations(name: str, thing: Any) -> Iterator[tuple[str, str, ModuleType]]:
    for part, text in getattr(thing, "__annotations__", {}).items():
        text = text.__forward_arg__ if isinstance(text, ForwardRef) else text
        # Not a text: the module evaluates its annotations, so that they are no names any more.
        if not part.startswith("_") and isinstance(text, str):
            yield f"{name}, {part}", text, sys.modules[thing.__module__]


@cache
def without_constructor() -> set[str]:
    """Classes that no caller creates: the reference shows them without arguments."""
    pages = "".join(page.read_text() for page in (DOCS / "reference" / "api").glob("*.md"))
    return set(re.findall(r"autoclass:: ([\w.]+)\(\)", pages))


def names_in(text: str) -> Iterator[str]:
    """The names in an annotation, also in quoted parts of it; of ``module.Name`` both."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


@cache
def origins(module: ModuleType) -> dict[str, str]:
    """Where the names of a module come from; those for type checkers alone included."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    return {
        alias.asname or alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_ours(name: str, module: ModuleType) -> bool:
    """Whether Nonet defines a name that somebody could want to write down."""
    home = origins(module).get(name, module.__name__)
    if not home.startswith("nonet"):
        return False
    defined = getattr(importlib.import_module(home), name, None)
    is_constraint = get_origin(defined) is Annotated or inspect.isfunction(defined)
    is_private_alias = name.startswith("_") and not inspect.isclass(defined)
    is_no_type = isinstance(defined, TypeVar | ParamSpec | ModuleType)
    return not (defined is None or is_no_type or is_constraint or is_private_alias)


def test_types_in_signatures_are_public() -> None:
    """Each type of ours is offered by a public module, so that callers can annotate with it."""
    walked, hidden = 0, dict[str, str]()
    for whose, text, module in signatures():
        for name in names_in(text):
            walked += 1
            if is_ours(name, module) and name not in NAMES:
                hidden[name] = whose
    assert walked > 300
    assert hidden == {}


def test_types_are_those_that_are_declared() -> None:
    """Each is imported on first use, from where it is defined."""
    assert list(nonet.types.__all__) == sorted(nonet.types.__all__)
    for name in nonet.types.__all__:
        home = importlib.import_module(origins(nonet.types)[name])
        assert getattr(nonet.types, name) is getattr(home, name), name
    with pytest.raises(AttributeError, match=r"'nonet\.types' has no attribute 'Worked'"):
        nonet.types.Worked  # type: ignore[attr-defined]  # noqa: B018


def test_the_reference_explains_each_type() -> None:
    """One row of a table for each, and none for another."""
    rows = Page.read("reference/api/application.md").rows(head="| name | what it stands for |")
    assert [codes(row[0])[0].partition("[")[0] for row in rows] == list(nonet.types.__all__)
