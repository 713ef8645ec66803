"""The changelog has the form of Keep a Changelog, and what looks at that sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from release.conftest import ROOT, script

HEAD = "# Changelog\n\n[Keep a Changelog](https://keepachangelog.com/)\n\n"
NEW = "## [Unreleased]\n\n### Added\n\n- A thing,\n  of two lines.\n\n"
OLD = "## [0.2.0] - 2026-02-01\n\n### Fixed\n\n- Another.\n\n"
OLDER = "## [0.1.0] - 2026-01-01\n\n### Added\n\n- All.\n"


def test_our_changelog_is_valid() -> None:
    """That of this checkout."""
    done = script("changelog.py", str(ROOT / "CHANGELOG.md"))
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + NEW + OLD + OLDER, ""),
        (HEAD + "## [Unreleased]\n\n" + OLD + OLDER, ""),
        (NEW, "must begin with"),
        (HEAD + OLD, "first section"),
        (HEAD + NEW + OLDER + OLD, "newest"),
        (HEAD + NEW + OLD.replace("2026-02-01", "2026-02-31"), "no valid date"),
        (HEAD + NEW + OLD.replace(" - 2026-02-01", ""), "is not of the form '## [1.2.3]"),
        (HEAD + NEW + "## [0.2.0] - 2026-02-01\n", "has no entries"),
        (HEAD + NEW.replace("Added", "News"), "not one of"),
        (HEAD + NEW + "### Added\n\n- Twice.\n", "each kind at most once"),
        (HEAD + NEW + "### Fixed\n\n- X.\n\n### Changed\n\n- Y.\n", "in this order"),
        (HEAD + NEW + "### Fixed\n\n", "is empty"),
        (HEAD + NEW + "Prose.\n", "not a list entry"),
    ],
)
def test_a_wrong_changelog_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """With the section in which it is."""
    file = tmp_path / "CHANGELOG.md"
    file.write_text(text)
    done = script("changelog.py", str(file))
    assert (done.returncode, problem in done.stdout) == (bool(problem), True), done.stdout
