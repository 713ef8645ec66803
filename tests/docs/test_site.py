"""The site of the documentation: it is made without a warning, has all, and no link is dead.

Sphinx follows the links of pages below ``docs/``, and finds pages that no table of contents has.
All links are followed here as a repository's browser does, also those of README, chart and code.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.pages import DOCS, ROOT, Page, codes
from public import FRAMEWORK, PUBLIC, documented, public_names
from sharing import shared

pytestmark = pytest.mark.static

# What is in the repository, not what tools leave beside it.
_NOT_OURS = {".venv", ".git", "_build", "__pycache__", "node_modules", "tests", "site-packages"}
DOCUMENTED = documented()
_TEXTS = {".md", ".py", ".yaml", ".txt", ".toml", ".lua", ".tpl", ".sh", ""}
# Of classes of ours that are tasks: what a worker calls.
_NOT_SHOWN = {"nonet.contrib.canary.Canary.execute"}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` makes it."""
    return shared(tmp_path_factory, "site", _make_site)


def _make_site(made: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-E", "-q", "-j", "auto"]
    done = subprocess.run(
        [*command, "-d", str(made / "doctrees"), str(DOCS), str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_site_has_each_page(site: Path) -> None:
    """It is made without a warning, such as that of a dead link."""
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in documents()]
    assert [page for page in pages if not (site / page).exists()] == []


def test_no_page_is_marked_as_an_orphan() -> None:
    """Sphinx reports a page without links to it, unless the page is marked so."""
    assert [path for path in documents() if re.search(r"(?m)^orphan:", path.read_text())] == []


@pytest.fixture(scope="module")
def shown(site: Path) -> set[str]:
    """Whole names of all that the reference of the API explains."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}


def test_each_public_name_is_on_the_site(shown: set[str]) -> None:
    """What a module offers has a place in the reference of the API."""
    pages = "".join(page.read_text() for page in (DOCS / "reference" / "api").glob("*.md"))
    others = set(re.findall(r"`([\w.]+)` is another name of `\w+`", pages))
    wanted = set(public_names())
    assert {name.rpartition(".")[0] for name in wanted} == set(PUBLIC)
    assert wanted - shown - others == set()


def for_commands() -> set[str]:
    """What an open application has for the commands of Nonet, as the page tells."""
    rows = Page.read("reference/api/application.md").rows(head="| of an open application |")
    return {f"nonet.Nonet.{codes(row[0])[0]}" for row in rows}


def is_told(name: str, thing: object, shown: set[str]) -> bool:
    """Whether a member has its place, or needs none."""
    owner, _, part = name.rpartition(".")
    if part.startswith("_") or FRAMEWORK.search(thing.__doc__ or ""):
        return True
    bases = DOCUMENTED[owner].__mro__[1:]
    return name in shown or any(f"nonet.{base.__name__}.{part}" in shown for base in bases)


def test_each_member_of_a_public_class_is_on_the_site(shown: set[str]) -> None:
    """Those that are not for the framework; of a member that a base has, too, that of the base."""
    members = [name for name in DOCUMENTED if name.rpartition(".")[0] in DOCUMENTED]
    missing = {name for name in members if not is_told(name, DOCUMENTED[name], shown)}
    assert missing == for_commands() | _NOT_SHOWN


def documents() -> list[Path]:
    return [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]


def all_texts() -> Iterator[Path]:
    """Pages of the site, and those that are none: of the chart, the examples …"""
    yield from ROOT.glob("*.md")
    for top in ROOT.iterdir():
        if top.is_dir() and top.name not in _NOT_OURS:
            parts = ((path, set(path.relative_to(ROOT).parts)) for path in top.rglob("*.md"))
            yield from (path for path, inside in parts if not inside & _NOT_OURS)


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as a repository's browser makes them."""
    found: set[str] = set()
    for title in re.findall(r"(?m)^#+ (.+)$", Page.read(page).prose):
        text = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower())
        slug = base = text.replace(" ", "-")
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


def problem_of(target: str, folder: Path) -> str | None:
    """Why a link leads nowhere; None: it leads somewhere."""
    name, _, anchor = target.partition("#")
    path = folder / name
    if not path.exists():
        return f"{target}: there is no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{target}: there is no such heading"
    return None


def test_links_lead_somewhere_in_the_repository() -> None:
    """Each file and heading that a page refers to is there, also for a reader of files."""
    for page in all_texts():
        text = Page.read(page).prose
        targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
        for target in (link or reference for link, reference in targets):
            here = page.name + target if target.startswith("#") else target
            problem = None if re.match(r"[a-z]+:", here) else problem_of(here, page.parent)
            assert problem is None, f"{page.relative_to(ROOT)}: {problem}"


def test_pages_that_the_code_names_are_there() -> None:
    """Messages, docstrings and comments name pages and headings that exist."""
    found = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in sources()
        for name in re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8"))
        if (problem := problem_of(name, ROOT))
    ]
    assert found == []


def sources() -> Iterator[Path]:
    """Texts of the repository but for its pages."""
    for top in ("src", "scripts", "charts", "benchmarks", "examples", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            inside = set(path.relative_to(ROOT / top).parts)
            if path.is_file() and path.suffix in _TEXTS and not inside & _NOT_OURS:
                yield path
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml", "config.example.yaml"))
