"""The directory of the children of a fork server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nonet.worker.child_process.workdirs import make_workdirs

MAKES = """
from nonet.worker.child_process.workdirs import make_workdirs
print(make_workdirs(), flush=True)
input()
"""


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fork server removes its directory, and none that is in use."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipe, made = subprocess.PIPE, []
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", MAKES], stdin=pipe, stdout=pipe, text=True, env=environment
        )
        assert process.stdout is not None
        made.append((process, Path(process.stdout.readline().strip())))
    (dead, left), (alive, used) = made
    (left / "1").mkdir()
    dead.kill()
    dead.communicate()
    ours = make_workdirs()
    assert sorted(tmp_path.iterdir()) == sorted([used, ours])
    alive.communicate("\n")
