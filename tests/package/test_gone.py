"""What was withdrawn is gone everywhere: no code, page, chart or test refers to it."""

from __future__ import annotations

import re
from pathlib import Path

from docs.pages import ROOT

# Regular expressions of names that nothing else has.
GONE = (
    # Compatibility with releases that never were.
    *(r"dlq adopt", r"\benvelope_of\(", r"^ *admission:"),
    # Moving a tenant live; several namespaces in one worker or scheduler.
    *(r"tenants move", r"task-(worker|scheduler)[^\n`]* --namespaces"),
    # Tokens for classes, and the permission to see details.
    *(r"\.DETAILS\b", r"permission `details`", r"web token[^\n]* --task"),
    # Server-sent events.
    *(r"live\.js", r"text/event-stream", r"EventSource", r"[Ss]erver-sent"),
    # CPU and memory seconds of tenants.
    *(r"tenant_cpu", r"tenant_memory"),
    # Repair of keys that somebody damaged by hand.
    *(r"condemn", r"lib/damage", r"test_damage\.py"),
    # Files of running workers, and workers stopped through them.
    *(r"\brun ?files?\b", r"--drain\b"),
    # What a library does, or a simpler way.
    *(r"graph_layout", r"cat-file", r"nonet[./]demo[./](shop|live)"),
    # Pages that are built, and pages that were merged.
    *(r"make reference", r"scripts/reference\b", r"from-(rq|arq|taskiq|dramatiq|apscheduler)\b"),
    *(r"see-what-ended", r"watch-workers", r"check-a-namespace\.md"),
)
# CHANGELOG.md says what is gone.
_PLACES = (
    *("src", "docs", "charts", "examples", "tests", "scripts", "benchmarks", ".ci"),
    *("Makefile", "README.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile", "pyproject.toml"),
    "config.example.yaml",
)
_LEFT_OUT = {"__pycache__", "_build", "vendor", Path(__file__).name}
_NO_TEXTS = {".ico", ".png", ".gz", ".zip", ".db", ".rdb"}


def texts() -> list[Path]:
    found = [path for name in _PLACES for path in ((ROOT / name), *(ROOT / name).rglob("*"))]
    return [
        path
        for path in found
        if path.is_file() and path.suffix not in _NO_TEXTS and not _LEFT_OUT & {*path.parts}
    ]


def test_nothing_refers_to_what_is_gone() -> None:
    """Each reference is named with its file and line."""
    pattern = re.compile("|".join(GONE), re.MULTILINE)
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    assert found == []
