"""Which files are watched, and what counts as a change."""

from __future__ import annotations

import os
from pathlib import Path

from nonet.cli.dev.changed_files import changes, state_of


def test_files_beside_loaded_ones_are_watched_too(tmp_path: Path) -> None:
    """New, removed and not yet imported files count, even in a directory that disappears."""
    tasks, later, text = (tmp_path / name for name in ("tasks.py", "later.py", "notes.txt"))
    for file in (tasks, later, text):
        file.write_text("old")
    before = state_of([str(tasks)])
    assert set(before) == {str(tasks), str(later)}
    assert changes(before, state_of([str(tasks)])) == []
    later.unlink()
    (tmp_path / "new.py").touch()
    text.write_text("another length")
    assert changes(before, state_of([str(tasks)])) == [str(later), str(tmp_path / "new.py")]
    assert state_of([str(tmp_path / "gone" / "tasks.py")]) == {}


def test_a_save_within_the_same_second_is_a_change(tmp_path: Path) -> None:
    """Its length may be the same."""
    file = tmp_path / "tasks.py"
    file.write_text("1")
    before = state_of([str(file)])
    status = file.stat()
    file.write_text("2")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert changes(before, state_of([str(file)])) == [str(file)]
