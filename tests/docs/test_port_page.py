"""The names of DiracX in the reference: what they are called in Nonet is there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from docs.pages import Page, codes

PAGE = Page.read("reference/diracx.md")
_GROUPS = ("tasks.CATEGORY", "lock_object_types", "startup", "dependencies", "vos", "overflow")


def _told(heading: str) -> Iterator[str]:
    """What the second column of the table below a heading names in code; `none` names nothing."""
    for _, second, *_ in PAGE.rows(heading):
        named = codes(second)
        assert named or second.startswith("none"), second
        yield from named


def _found(name: str) -> Any:
    """The object of a dotted name: of the longest module in it."""
    module, *rest = name.split(".")
    found: Any = importlib.import_module(module)
    for part in rest:
        module += f".{part}"
        if not hasattr(found, part):
            importlib.import_module(module)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(set(_told("Names"))))
def test_the_names_can_be_imported(name: str) -> None:
    """Those that take the place of a name of DiracX."""
    assert name.startswith("nonet.")
    assert _found(name) is not None


def test_the_entry_points_are_looked_for() -> None:
    """The table has all groups that Nonet has, and no other."""
    told = {name for name in _told("Entry points") if name.startswith("nonet.")}
    assert told == {f"nonet.{group}" for group in _GROUPS}
