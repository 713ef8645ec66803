"""The pages "Coming from …": our programs run as they stand, those of the others are read."""

from __future__ import annotations

import ast
import re
import sys

import pytest
from docs.followed import followed
from docs.pages import Block, Page, codes
from docs.test_recipes import ENVIRONMENT

import nonet
from nonet.config.settings import Settings

# Each page, and the packages that its other library may import.
LIBRARIES = {
    "apscheduler": {"apscheduler"},
    "arq": {"arq"},
    "celery": {"celery"},
    "dramatiq": {"dramatiq", "periodiq"},
    "rq": {"rq", "redis"},
    "taskiq": {"taskiq", "taskiq_redis"},
}
PAGES = {name: Page.read(f"how-to/from-{name}.md") for name in LIBRARIES}
SHARED = Page.read("how-to/from-another-system.md")
_MOST_LINES = 229
_OTHERS = {"None", "True", "False", "ID", "TASK", "REALTIME"}  # in codes, and no class of ours
_THEIRS = re.compile(r"# ([\w ]+): ([\w./]+\.py)\b")


def theirs(page: Page) -> dict[str, Block]:
    """The programs of the other library by file name: their first line says ``# celery: name``."""
    found = {block: _THEIRS.match(block.text) for block in page.blocks}
    return {match[2]: block for block, match in found.items() if match}


@pytest.mark.server
@pytest.mark.parametrize("name", [*PAGES, "another-system"])
def test_our_programs_run_as_they_stand(name: str) -> None:
    """Files are written, commands typed, and they print what the page shows; nothing stays."""
    with followed(Page.read(f"how-to/from-{name}.md"), environment=ENVIRONMENT) as terminal:
        assert terminal.left() == []


@pytest.mark.parametrize("name", [*PAGES, "another-system"])
def test_each_program_is_ours_or_theirs(name: str) -> None:
    """No code is only looked at: it is a file that runs, or one of the other library."""
    page = Page.read(f"how-to/from-{name}.md")
    marked = theirs(page).values()
    for block in page.blocks:
        assert block.file or block in marked or block.language not in ("python", "bash", "console")


@pytest.mark.parametrize("name", PAGES)
def test_their_programs_are_whole(name: str) -> None:
    """They parse, and import only their library, Python's and each other's names that exist."""
    blocks = {file: ast.parse(block.text) for file, block in theirs(PAGES[name]).items()}
    ours = {block.file: ast.parse(block.text) for block in PAGES[name].files() if block.file}
    assert len(blocks) >= 3
    for file, tree in blocks.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                path = f"{node.module}.py"
                module = blocks.get(path) or ours.get(path)
                if module is None:
                    _check_import(name, file, node.module)
                    continue
                missing = {alias.name for alias in node.names} - _defined(module)
                assert not missing, f"{file} imports {missing} of {path}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    _check_import(name, file, alias.name)


def _check_import(name: str, file: str, module: str) -> None:
    top = module.partition(".")[0]
    assert top in LIBRARIES[name] | sys.stdlib_module_names, f"{file} imports {module}"


def _defined(tree: ast.Module) -> set[str]:
    """The names that a module defines at its top."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_parts(name: str) -> None:
    """A table of words, three pairs of programs, what is better, what is not; not too long."""
    page = PAGES[name]
    first = next(line for line in page.source.splitlines() if line.startswith("|"))
    assert re.fullmatch(r"\| [\w ]+ \| Nonet \|", first), first
    titles = re.findall(r"(?m)^## (.+)$", page.source)
    assert titles[-2:] == ["What is better here", "What is not"]
    assert len(titles) == 6  # three programs, and how ours are run
    assert page.source.count("\n") <= _MOST_LINES


@pytest.mark.parametrize("name", PAGES)
def test_our_words_exist(name: str) -> None:
    """Classes and functions of Nonet in the table of words, and its settings."""
    for _, ours in PAGES[name].rows():
        for code in codes(ours):
            for setting in re.findall(r"NONET_(\w+)", code):
                assert setting.lower() in Settings.__struct_fields__, code
            for used in re.findall(
                r"(?<![\w.])([A-Z]\w+)\b", re.sub(r'"[^"]*"|NONET_\w+', "", code)
            ):
                assert used in _OTHERS or hasattr(nonet, used), code


def test_the_shared_page_leads_to_all() -> None:
    """Each page is in its table, and each has a page to go back to."""
    for name, page in PAGES.items():
        assert f"(from-{name}.md)" in SHARED.source
        assert "(from-another-system.md" in page.source
