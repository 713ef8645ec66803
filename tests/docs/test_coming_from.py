"""The pages about moving from another system: our programs run as they stand, Celery's are read."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from docs.followed import followed
from docs.pages import Block, Page, codes

import nonet
from nonet import pipelines
from nonet.config.settings import Settings

CELERY = Page.read("how-to/from-celery.md")
OTHERS = Page.read("how-to/from-another-system.md")
DIRACX = Page.read("reference/diracx.md")
PAGES = [CELERY, OTHERS]
_NAMES = {"Declined", "ID", "TASK", "REALTIME"}  # in codes, and no class of ours
_THEIRS = re.compile(r"# celery: ([\w./]+\.py)\b")


def theirs() -> dict[str, Block]:
    """Celery's programs by file name: their first line says ``# celery: name``."""
    found = {block: _THEIRS.match(block.text) for block in CELERY.blocks}
    return {match[1]: block for block, match in found.items() if match}


@pytest.mark.server
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_our_programs_run_as_they_stand(page: Page) -> None:
    """Files are written, commands typed, and they print what the page shows; nothing stays."""
    with followed(page, installed=True) as terminal:
        assert terminal.left() == []


def test_each_program_is_ours_or_theirs() -> None:
    """No code is only looked at: it is a file that runs, or one of Celery's."""
    marked = theirs().values()
    for block in (block for page in PAGES for block in page.blocks):
        assert block.file or block in marked or block.language not in ("python", "bash", "console")


def test_their_programs_are_whole() -> None:
    """They parse, and import only Celery, Python's modules and names of each other that exist."""
    blocks = {file: ast.parse(block.text) for file, block in theirs().items()}
    assert len(blocks) >= 3
    for file, tree in blocks.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = blocks.get(f"{node.module}.py")
                assert module or _is_allowed(node.module), f"{file} imports {node.module}"
                missing = (
                    {alias.name for alias in node.names} - _defined(module) if module else set()
                )
                assert not missing, f"{file} imports {missing} of {node.module}"
            elif isinstance(node, ast.Import):
                assert all(_is_allowed(alias.name) for alias in node.names), file


def _is_allowed(module: str) -> bool:
    return module.partition(".")[0] in {"celery"} | sys.stdlib_module_names


def _defined(tree: ast.Module) -> set[str]:
    """The names of the functions that a module defines at its top."""
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_our_words_exist() -> None:
    """Classes and functions of Nonet in the tables of words, and its settings."""
    for code in (code for row in OTHERS.rows("Words") for code in codes(row[0])):
        for setting in re.findall(r"NONET_(\w+)", code):
            assert setting.lower() in Settings.__struct_fields__, code
        for used in re.findall(r"(?<![\w.])([A-Z]\w+)\b", re.sub(r'"[^"]*"|NONET_\w+', "", code)):
            homes = (nonet, pipelines, builtins)
            assert used in _NAMES or any(hasattr(home, used) for home in homes), code


_GROUPS = ("tasks.CATEGORY", "lock_object_types", "startup", "dependencies", "vos", "overflow")


def _ours(heading: str) -> Iterator[str]:
    """What the second column of the table below a heading names in code; `none` names nothing."""
    for _, second, *_ in DIRACX.rows(heading):
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


def test_the_names_for_those_of_diracx_can_be_imported() -> None:
    """Each is below `nonet`."""
    for name in _ours("Names"):
        assert name.startswith("nonet.")
        assert _found(name) is not None, name


def test_the_entry_points_for_those_of_diracx_exist() -> None:
    """The table has all groups that Nonet has, and no other."""
    ours = {name for name in _ours("Entry points") if name.startswith("nonet.")}
    assert ours == {f"nonet.{group}" for group in _GROUPS}
