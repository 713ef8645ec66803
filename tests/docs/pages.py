"""`Page`: what a page of the documentation says, block by block.

A block whose first line is ``# name`` (``# mytasks.py``, ``# shop/pyproject.toml``) is a file.
What else a page that is done from top to bottom may have is said in `docs.followed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")
_TABLE = re.compile(r"(?m)^(\|.*\|)\n\|[-:|]+\|\n((?:\|.*(?:\n|\Z))+)")


def codes(cell: str) -> list[str]:
    """What a cell has in backquotes."""
    return [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", cell)]


def all_pages() -> list[Path]:
    """Whatever people read: the site, README and CONTRIBUTING."""
    pages = (path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(pages)]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: path below the root.
        line: of its first line of text, counted from 1.
        language: what stands behind the fence; empty if nothing does.
        text: with a line end after each line.
        follows: whether nothing but empty lines is between it and the block before.
    """

    page: str
    line: int
    language: str
    text: str
    follows: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """Name of the file that it is, as its first line says; None if it is none."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Page:
    """A page of Markdown.

    Attributes:
        name: path below the root.
        source: all of it.
    """

    name: str
    source: str

    @classmethod
    def read(cls, path: Path | str) -> Page:
        """Read a page; `path` is absolute, or below ``docs/``."""
        whole = DOCS / path
        return cls(str(whole.relative_to(ROOT)), whole.read_text())

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks, in order."""
        found: list[Block] = []
        end = 0
        for match in _FENCE.finditer(self.source):
            lines = match["text"].splitlines(keepends=True)
            found.append(
                Block(
                    page=self.name,
                    line=self.source.count("\n", 0, match.start()) + 2,
                    language=match["language"].strip(),
                    text="".join(line.removeprefix(match["indent"]) for line in lines),
                    follows=bool(found) and not self.source[end : match.start()].strip(),
                )
            )
            end = match.end()
        return found

    @property
    def prose(self) -> str:
        """What is in no block."""
        return _FENCE.sub("", self.source)

    def rows(self, title: str = "", *, head: str = "") -> list[list[str]]:
        """Cells of all rows of its tables, without their heads.

        Args:
            title: of the heading right below which they are; empty: anywhere.
            head: how the first lines of the tables begin, each of which is found.
        """
        text = self.prose
        if title:
            _, found, text = text.partition(f"# {title}\n")
            assert found, f"{self.name} has no heading {title}"
            text = re.split(r"(?m)^##+ ", text)[0]
        tables = [lines for first, lines in _TABLE.findall(text) if first.startswith(head)]
        assert tables, f"{self.name} has no such table: {title or head}"
        rows = [row for lines in tables for row in re.findall(r"(?m)^\| (.*) \|$", lines)]
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]

    def files(self) -> Iterator[Block]:
        """The blocks that are files."""
        return (block for block in self.blocks if block.file)


def write_file(block: Block, folder: Path) -> Path:
    """Write a block that is a file into a folder; its path."""
    assert block.file
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    return path
