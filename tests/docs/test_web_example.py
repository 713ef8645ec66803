"""The page about the web service in examples/shelf shows its code as it is, and runs it."""

from __future__ import annotations

import re
import socket

import pytest
from docs.followed import followed
from docs.pages import ROOT, Page
from docs.test_recipes import ENVIRONMENT

PAGE = Page.read("how-to/web-example.md")
SHELF = ROOT / "examples" / "shelf"
_PART = re.compile(r"# in ([\w/.]+)\n")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_its_code_is_that_of_the_example() -> None:
    """Each block that says in which file it is, is there to the letter; all others run."""
    parts = 0
    for block in PAGE.blocks:
        if found := _PART.match(block.text):
            place = SHELF / found[1]
            place = place if place.exists() else SHELF / "src" / "shelf" / found[1]
            assert block.text[found.end() :] in place.read_text(), str(block)
            parts += 1
        else:
            assert block.file or block.language != "python", str(block)
    assert parts >= 7


@pytest.mark.server
def test_it_runs_as_the_page_says() -> None:
    """From an empty folder to the thumbnails; nothing runs any more at its end."""
    instead = {"PATH/TO/CLONE": str(ROOT), "8000": str(_free_port()), "8001": str(_free_port())}
    page = Page(PAGE.name, PAGE.source)
    for old, new in list(instead.items())[1:]:
        page = Page(page.name, page.source.replace(old, new))
    with followed(page, instead=instead, environment=ENVIRONMENT) as terminal:
        assert terminal.left() == []
