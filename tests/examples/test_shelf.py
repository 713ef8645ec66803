"""The web service in examples/shelf: its own tests, and the whole of it with real daemons."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import preloaded
import pytest
from daemons import Daemon
from examples.conftest import ROOT
from waits import WAIT_SECONDS, wait_until

HOME = ROOT / "examples" / "shelf"
PICTURES = 12


def test_its_own_tests_pass(shelf_package: Path) -> None:
    """With the package installed, as after copying it."""
    ended = preloaded.run(
        "python",
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        variables={"PYTHONPATH": str(shelf_package)},
        cwd=HOME,
    )
    assert ended.returncode == 0, ended.stdout


def test_its_configuration_is_good(shelf_package: Path, tmp_path: Path) -> None:
    """For the tasks that its entry points name."""
    check = ("task-run", "config", "check", str(HOME / "nonet.yaml"))
    variables = {"PYTHONPATH": str(shelf_package), "NONET_STATE_DIR": str(tmp_path)}
    ended = preloaded.run(*check, variables=variables, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 periodic entry, 1 limit" in ended.stdout


def _module(path: Path) -> Any:
    """A module of the package or its tests, which is not in this environment."""
    spec = importlib.util.spec_from_file_location(f"shelf_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(shelf_package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The web site of its own tests."""
    monkeypatch.syspath_prepend(str(shelf_package))
    made = _module(HOME / "tests" / "conftest.py").Site()
    yield made
    made.close()
    for name in [name for name in sys.modules if name.split("_")[0].split(".")[0] == "shelf"]:
        del sys.modules[name]


@pytest.fixture
def environment(shelf_package: Path, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """That of the daemons and commands."""
    return {
        "PYTHONPATH": str(shelf_package),
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path / "state"),
        "NONET_CONFIG": str(HOME / "nonet.yaml"),
        "SHELF_DIR": str(tmp_path / "shelf"),
    }


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of the service, whose daemons and web server run."""
    commands = {
        "scheduler": ("task-scheduler",),
        "small": ("task-worker", "--size", "small"),
        "medium": ("task-worker", "--size", "medium"),
        "web": ("uvicorn", "--factory", "shelf.api:create_app", "--port", "0"),
    }
    daemons = {
        name: Daemon(*command, environment=environment, log=tmp_path / f"{name}.log")
        for name, command in commands.items()
    }
    try:
        for name in ("scheduler", "small", "medium"):
            daemons[name].wait_ready()
        running = r"running on (http://\S+)"
        found = wait_until(lambda: re.search(running, daemons["web"].log), "the server runs")
        with httpx.Client(base_url=found[1], timeout=WAIT_SECONDS) as client:
            yield client
    finally:
        for daemon in daemons.values():
            daemon.kill()


def _collect(service: httpx.Client, address: str) -> str:
    """Ask for the pictures of a page, and wait until all has ended: the state."""
    answer = service.post("/shelves/ann/pages", json={"address": address})
    assert answer.status_code == 202
    run = f"/runs/{answer.json()['run']}"
    ends = ("done", "failed")
    wait_until(lambda: service.get(run).json()["state"] in ends, "the page is collected")
    return str(service.get(run).json()["state"])


def test_a_page_becomes_thumbnails(service: httpx.Client, site: Any) -> None:
    """Each picture is on the shelf, although all are put there at the same time; it is small."""
    assert _collect(service, site.add_page(PICTURES)) == "done"
    shelf = service.get("/shelves/ann").json()
    assert set(shelf) == {f"{site.url}/{number}.png" for number in range(PICTURES)}
    thumbnail = service.get(shelf[f"{site.url}/3.png"]).content
    assert thumbnail.startswith(b"\x89PNG")
    assert int.from_bytes(thumbnail[16:20]) == 100  # 200 pixels, halved
