"""Fixtures of the release tests: what is published, built once of the files as they are now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sharing import shared

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "release"
A_TESTER = ("-c", "user.name=A tester", "-c", "user.email=tester@example.org")


def script(name: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts of releases; a name that is empty is the release itself."""
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def within_scripts(code: str, *arguments: str | Path) -> None:
    """Run Python beside the scripts, which are no package."""
    subprocess.run([sys.executable, "-B", "-c", code, *arguments], cwd=SCRIPTS, check=True)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files as they are now: somebody may change them while tests run."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a clone")
    code = "import dist, pathlib, sys; dist.export_working_tree(pathlib.Path(sys.argv[1]))"

    def make(place: Path) -> None:
        place.mkdir()
        within_scripts(code, place)

    return shared(tmp_path_factory, "tree", make)


def build(tree: Path, out: Path) -> None:
    """What is published of these files, as of the first second of 2026."""
    code = "import dist, pathlib, sys; dist.build(*map(pathlib.Path, sys.argv[1:]), 1767225600)"
    within_scripts(code, tree, out)


@pytest.fixture(scope="session")
def dist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a wheel, a sdist, the SBOM and SHA256SUMS."""
    return shared(tmp_path_factory, "dist", lambda place: build(tree, place))


@pytest.fixture
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def repository(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of a single commit with these files."""

    def make(place: Path) -> None:
        shutil.copytree(tree, place)
        git(place, "init", "-q", "-b", "main")
        git(place, "add", "-A")
        git(place, *A_TESTER, "commit", "-q", "-m", "All")

    return shared(tmp_path_factory, "repository", make)


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A clone of that, to work in."""
    place = tmp_path / "checkout"
    git(tmp_path, *A_TESTER, "clone", "-q", *A_TESTER, str(repository), str(place))
    return place


def git(place: Path, *words: str) -> str:
    """What git says."""
    command = ["git", "-C", str(place), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
