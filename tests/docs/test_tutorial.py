"""The tutorial, followed literally with nothing but Python and a package of this clone."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
from docs.followed import followed
from docs.pages import ROOT, Page
from sharing import alone

pytestmark = pytest.mark.server

_LOCK = ROOT / "uv.lock"
_DONE = "complete"
# With nothing else on PATH: the server is the one that `embedded` brings.
_DEMO = """
mkdir files; echo same | tee files/a > files/b; echo other > files/c
alone="env -i HOME=$HOME PATH=$PWD/env/bin"
for name in task-run task-worker task-scheduler; do $alone $PWD/env/bin/$name --version; done
$alone $PWD/env/bin/task-run demo --json files
"""


def _pinned() -> str:
    """The versions of `uv.lock`, as pip reads them; without those that depend on the platform."""
    packages = tomllib.loads(_LOCK.read_text())["package"]
    versions = Counter(package["name"] for package in packages)
    return "".join(
        f"{package['name']}=={package['version']}\n"
        for package in packages
        if versions[package["name"]] == 1 and "registry" in package["source"]
    )


def _download(folder: Path, pinned: Path, wheel: Path) -> None:
    """Fetch what the tutorial installs, in the versions that are written to `pinned`."""
    pinned.write_text(_pinned())
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", folder, "-c", pinned]
    ended = subprocess.run(
        [*pip, f"{wheel}[embedded]", "hatchling"], capture_output=True, text=True
    )
    assert ended.returncode == 0, f"no packages to install from:\n{ended.stderr}"
    (folder / wheel.name).unlink()  # of these files, which change
    (folder / _DONE).touch()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of this clone: pip would need a minute to build one in each environment."""
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", str(tmp_path), str(ROOT)], check=True)
    (made,) = tmp_path.glob("*.whl")
    return made


@pytest.fixture
def index(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Path:
    """A folder with all packages that the tutorial installs, in place of a package index.

    It is kept from run to run, where pytest keeps anything, so that a test run needs no network.
    """
    key = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = cache.mkdir(f"nonet-wheels-{key}") if cache else tmp_path / "wheels"
    with alone(folder.with_suffix(".lock")):  # two runs of one clone
        if not (folder / _DONE).exists():
            _download(folder, tmp_path / "constraints.txt", wheel)
    return folder


@pytest.mark.long
def test_the_tutorial_works(index: Path, wheel: Path) -> None:
    """Each command does what the page shows, and nothing runs any more at its end; nor does the
    demo need anything but what was installed."""
    offline = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_COMPILE": "0",  # only what is imported
    }
    parts = [Page.read(name) for name in ("tutorial.md", "tutorial-deploy.md")]
    page = Page("docs/tutorial*.md", "\n".join(part.source for part in parts))
    with followed(page, instead={"PATH/TO/CLONE": str(wheel)}, environment=offline) as terminal:
        assert terminal.left() == []
        demo = terminal.type(_DEMO)
        assert not demo.failed and demo.output.count(f"nonet {version('nonet')}\n") == 3
        assert '"files": 3' in demo.output, demo.output
