"""The recipes for authors: each is done from top to bottom, in an empty folder, as it stands."""

from __future__ import annotations

import re

import pytest
from docs.followed import followed
from docs.pages import ROOT, Page
from ports import free_port

RECIPES = (
    "add-a-task",
    "functions-as-tasks",
    "submit-and-cancel",
    "submit-once",
    "long-tasks",
    "locks-and-limits",
    "inject-dependencies",
    "pipelines",
    "workflows",
    "periodic-tasks",
    "tenants",
    "middleware",
    "fastapi",
    "sync",
    "django",
    "develop",
    "sign-and-encrypt",
)  # tests/testing/test_plugin.py runs test-your-tasks


@pytest.mark.server
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_works_as_it_is_written(name: str) -> None:
    """Its files are written, its commands typed, and they print what the page shows.

    Nonet is installed, and whatever its extras bring; each recipe says what else it needs.
    """
    page = Page.read(f"how-to/{name}.md")
    with followed(page, installed=True) as terminal:
        typed = "".join(block.text for block in page.blocks if block.language == "sh")
        names = [(block.file or "").replace("/", ".").rpartition(".") for block in page.files()]
        # No command of the page has imported it, as those of manage.py do with their project.
        modules = {
            module
            for module, _, kind in names
            if kind == "py" and module not in typed and "manage.py" not in typed
        }
        if modules:
            ended = terminal.type(f"python -c 'import {', '.join(sorted(modules))}'")
            assert not ended.failed, ended.output
        assert terminal.left() == []


@pytest.mark.server
def test_the_readme_works_as_it_is_written() -> None:
    """Its task runs, and nothing runs any more at its end."""
    with followed(Page.read(ROOT / "README.md"), installed=True) as terminal:
        assert terminal.left() == []


def test_all_code_of_the_recipes_is_tried() -> None:
    """Python and shell on these pages is a file or typed: nothing is only looked at."""
    pages = [Page.read(f"how-to/{name}.md") for name in (*RECIPES, "test-your-tasks")]
    for block in (block for page in pages for block in page.blocks):
        assert block.file or block.language not in ("python", "bash", "console"), str(block)


_WEB_EXAMPLE = Page.read("tutorial-web.md")


def test_the_code_of_the_web_example_is_in_the_repository() -> None:
    """A block that names its file is there to the letter; all others run."""
    shelf = ROOT / "examples" / "shelf"
    parts = 0
    for block in _WEB_EXAMPLE.blocks:
        if found := re.match(r"# in ([\w/.]+)\n", block.text):
            place = shelf / found[1]
            place = place if place.exists() else shelf / "src" / "shelf" / found[1]
            assert block.text[found.end() :] in place.read_text(), str(block)
            parts += 1
        else:
            assert block.file or block.language != "python", str(block)
    assert parts >= 7


@pytest.mark.server
def test_the_web_example_works_as_it_is_written() -> None:
    """From an empty folder to the thumbnails; nothing runs any more at its end."""
    ports = {"8000": str(free_port()), "8001": str(free_port())}
    source = re.sub("800[01]", lambda found: ports[found[0]], _WEB_EXAMPLE.source)
    page = Page(_WEB_EXAMPLE.name, source)
    instead = {"PATH/TO/CLONE": str(ROOT)}
    with followed(page, instead=instead, installed=True) as terminal:
        assert terminal.left() == []
