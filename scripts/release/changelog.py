"""Check that CHANGELOG.md has the form of Keep a Changelog.

``python scripts/release/changelog.py [FILE]`` prints one line per problem and exits with 1 if there
are any. A release runs this check, too.
"""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
UNRELEASED = "## [Unreleased]"
_VERSION = re.compile(
    r"## \[(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)\] - (\d{4}-\d\d-\d\d)(?: \[YANKED\])?"
)


def problems(text: str) -> list[str]:
    """Return the problems of the form, one line each."""
    head, *sections = re.split(r"(?m)^(?=## )", text)
    found = []
    if not head.startswith("# Changelog\n") or "https://keepachangelog.com/" not in head:
        found.append("it must begin with '# Changelog' and name https://keepachangelog.com/")
    if not sections or sections[0].splitlines()[0] != UNRELEASED:
        found.append(f"its first section must be '{UNRELEASED}'")
    dates = []
    for number, section in enumerate(sections):
        title = section.splitlines()[0]
        released = _VERSION.fullmatch(title)
        if released:
            found += _date_problems(title, released[2])
            dates.append(released[2])
        elif number or title != UNRELEASED:
            found.append(f"{title!r} is not of the form '## [1.2.3] - 2026-01-31'")
        found += _section_problems(title, section, may_be_empty=not released)
    if dates != sorted(dates, reverse=True):
        found.append("the newest release must come first")
    return found


def _date_problems(title: str, text: str) -> list[str]:
    try:
        date.fromisoformat(text)
    except ValueError:
        return [f"{title!r} has no valid date"]
    return []


def _section_problems(title: str, section: str, *, may_be_empty: bool) -> list[str]:
    _, *parts = re.split(r"(?m)^(?=### )", section)
    kinds = [part.splitlines()[0].removeprefix("### ") for part in parts]
    found = [
        f"{title}: {kind!r} is not one of {', '.join(KINDS)}" for kind in kinds if kind not in KINDS
    ]
    known = [kind for kind in kinds if kind in KINDS]
    if known != sorted(set(known), key=KINDS.index):
        found.append(f"{title}: write each kind at most once, in this order: {', '.join(KINDS)}")
    for kind, part in zip(kinds, parts, strict=True):
        lines = [line for line in part.splitlines()[1:] if line.strip()]
        if not lines:
            found.append(f"{title}: {kind} is empty")
        found += [
            f"{title}: {kind}: not a list entry: {line[:60]!r}"
            for line in lines
            if not line.startswith(("- ", "  "))
        ]
    if not parts and not may_be_empty:
        found.append(f"{title} has no entries")
    return found


def has_news(text: str) -> bool:
    """Return whether Unreleased has entries."""
    return bool(re.search(rf"(?ms)^{re.escape(UNRELEASED)}\n(?:(?!^## ).)*?^- ", text))


def release(text: str, version: str, day: date) -> str:
    """Return the file with the section Unreleased renamed to a version."""
    return text.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {day.isoformat()}", 1)


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "CHANGELOG.md"
    told = problems(file.read_text(encoding="utf-8"))
    print("\n".join(f"{file.name}: {problem}" for problem in told), end="\n" if told else "")
    sys.exit(bool(told))
