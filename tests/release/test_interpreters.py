"""The wheel in fresh environments, of each interpreter that it supports and that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# The oldest is Debian 12's.
PYTHONS = ("3.11.2", "3.12", "3.13", "3.14")
UV = Path(sys.executable).with_name("uv")


@pytest.mark.soak
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_runs_the_demo(wheel: Path, tmp_path: Path, version: str) -> None:
    """Its dependencies are there for this interpreter, and its daemons find two equal files."""
    find = [UV, "python", "find", "--system", "--no-python-downloads", version]
    found = subprocess.run(find, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"Python {version} is not installed")
    env = tmp_path / "env"
    subprocess.run([found.stdout.strip(), "-m", "venv", "--without-pip", env], check=True)
    pip = [sys.executable, "-m", "pip", "--python", env, "install", "-q"]
    subprocess.run([*pip, f"{wheel}[embedded]"], check=True)
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("one", "another"):
        (tree / name).write_text("the same")
    ended = subprocess.run(
        [env / "bin" / "task-run", "demo", tree, "--state-dir", tmp_path / "state", "--json"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["wasted_bytes"] == len("the same")
