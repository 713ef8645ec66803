"""The example package as such: it is built, its configuration is good, its own tests pass."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import preloaded
import pytest
from examples.conftest import CONFIG, ROOT, Example


@pytest.mark.long
def test_its_own_tests_pass(example_package: Path) -> None:
    """With the package installed, as after copying it."""
    ended = preloaded.run(
        "python",
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        variables={"PYTHONPATH": str(example_package)},
        cwd=ROOT / "examples",
    )
    assert ended.returncode == 0, ended.stdout


def test_its_configuration_is_good(example: Example) -> None:
    """`task-run config check` finds no mistake, and no class that does not run."""
    ended = example.run("task-run", "config", "check", CONFIG)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "6 periodic entries" in ended.stdout
    assert "VOs dune, lhcb, gridpp" in ended.stdout


def test_each_task_has_an_entry_point(example: Example) -> None:
    """What the modules define is what is registered."""
    names = {row["name"].rpartition(":")[2] for row in example.json("task-run", "classes")["items"]}
    defined = example.said(
        "python",
        "-c",
        "from nonet import BaseTask\n"
        "from nonet_example import copies, files, groups, pilots, requests, sweeps\n"
        "for module in (copies, files, groups, pilots, requests, sweeps):\n"
        "    for item in vars(module).values():\n"
        "        if getattr(item, '__module__', '') == module.__name__:\n"
        "            if hasattr(item, 'execute') and issubclass(item, BaseTask):\n"
        "                print(item.__name__)\n",
    )
    assert names == set(defined.split())


def test_it_is_built(tmp_path: Path) -> None:
    """A wheel with its entry points and no tests; a source archive with them."""
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "build", "-q", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", str(tmp_path), str(ROOT / "examples")], check=True)
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (listed,) = [name for name in names if name.endswith("entry_points.txt")]
        assert b"[nonet.tasks.files]" in opened.read(listed)
    assert {name.split("/")[0] for name in names} == {
        "nonet_example",
        "nonet_example-0.1.0.dist-info",
    }
    with tarfile.open(archive) as opened_archive:
        archived = opened_archive.getnames()
    assert any(name.endswith("tests/test_files.py") for name in archived)
    assert not any("/shelf/" in name for name in archived), "the other example is not in it"


def test_no_other_test_sees_it() -> None:
    """Its start-up hook and its schedules would be in all of them."""
    with pytest.raises(PackageNotFoundError):
        version("nonet-example")
