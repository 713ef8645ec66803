"""Compare the size of the repository with scripts/size.toml: ``make size``.

Fails if a part has grown by more than 5 %, or if its entry is more than 15 % too large. A
difference of up to 20 never fails. ``--write`` writes the table.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
GROWTH, EXCESS, SLACK = 0.05, 0.15, 20
_HEAD = """\
# Written by `make size ARGS=--write`. Python and Lua: lines without blanks, comments and
# docstrings; templates and tests: lines; docs: words.
"""


def measured(root: Path) -> dict[str, int]:
    """Return the size of each part by its name."""
    found = Counter[str]()
    for path in sorted((root / "src").rglob("*.py")):
        found["/".join(path.relative_to(root).parts[:3])] += code_lines(path.read_text())
    for path in (root / "src").rglob("*.lua"):
        found["lua"] += sum(bool(line) and line[:2] != "--" for line in lines(path))
    found["templates"] = sum(len(lines(path)) for path in (root / "src").rglob("*.html"))
    found["tests"] = sum(len(lines(path)) for path in (root / "tests").rglob("*.py"))
    pages = (path for path in (root / "docs").rglob("*.md") if "_build" not in path.parts)
    found["docs"] = sum(len(path.read_text().split()) for path in pages)
    return dict(found)


def lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines()]


def code_lines(source: str) -> int:
    """Count the lines of a module without blanks, comments and docstrings."""
    left_out = {line for first, last in docstrings(source) for line in range(first, last + 1)}
    return sum(
        bool(line.strip()) and line.strip()[0] != "#" and number not in left_out
        for number, line in enumerate(source.splitlines(), 1)
    )


def docstrings(source: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each docstring."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Module(body=[first, *_])
                | ast.ClassDef(body=[first, *_])
                | ast.FunctionDef(body=[first, *_])
                | ast.AsyncFunctionDef(body=[first, *_])
            ) if ast.get_docstring(node, clean=False) is not None:
                yield first.lineno, first.end_lineno or first.lineno


def problems(table: dict[str, int], now: dict[str, int]) -> Iterator[str]:
    """Yield a line for each part that has outgrown its entry, or shrunk far below it."""
    for part in sorted({*table, *now}):
        allowed, size = table.get(part, 0), now.get(part, 0)
        if size - allowed > max(GROWTH * allowed, SLACK):
            problem = "has grown"
        elif allowed - size > max(EXCESS * size, SLACK):
            problem = "has shrunk"
        else:
            continue
        yield f"{part} {problem}: {size:,}, and scripts/size.toml says {allowed:,}"


def main() -> int:
    now = measured(ROOT)
    if "--write" in sys.argv[1:]:
        entries = (f'"{part}" = {size}\n' for part, size in sorted(now.items()))
        TABLE.write_text(_HEAD + "".join(entries))
        return 0
    found = list(problems(tomllib.loads(TABLE.read_text()), now))
    if found:
        print(*found, "If that is meant, run make size ARGS=--write", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
