"""An application that is open when a process forks works in both."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import _clean_environment
from ports import free_port
from servers import RedisServer
from sync import forking
from waits import WAIT_SECONDS, wait_until

from nonet.stores.sql import database as sql

pytestmark = pytest.mark.server

WSGI = """
import os
from sync.sync_tasks import Add
import nonet

app = nonet.SyncNonet.from_settings().open()  # in the master, before it forks
Add(0).schedule_sync(id="master")


def application(environ, start_response):
    number = int(environ["PATH_INFO"].strip("/"))
    handle = Add(number).schedule_sync(id=f"request-{number}")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {handle.created} {app.status('master').state}".encode()]
"""


def run(environment: dict[str, str], *command: str) -> dict[str, Any]:
    """Run a program of this folder; what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**_clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[None]:
    """Lets the programs keep durable tasks in a file and in a server."""
    if request.param != "sqlite":
        environment["NONET_DB_URL"] = request.getfixturevalue(f"{request.param}_url")
    yield


@pytest.mark.usefixtures("database")
async def test_parent_and_children_submit(
    environment: dict[str, str], redis_server: RedisServer
) -> None:
    """Forked amid calls of threads: every task exists once, and no connection is shared."""
    if not environment["NONET_DB_URL"].startswith("sqlite"):
        await sql.upgrade(environment["NONET_DB_URL"])
    found = run(environment, "-m", "sync.forking")
    each = forking.THREADS * forking.TASKS
    names = [name for child in found["children"] for name in child["ids"]]
    assert (len(set(names)), len(set(found["parent"]))) == (forking.CHILDREN * each, each)
    with redis_server.client() as client:
        known = {key.removeprefix("{test}:t:") for key in client.scan_iter("{test}:t:*")}
    kept = {"kept-before", *(f"kept{number}" for number in range(forking.CHILDREN))}
    assert known == {*names, *found["parent"], *found["background"], "before", *kept}
    assert all(child["kept"] and child["state"] == "queued" for child in found["children"])
    used = [set(child["uses"]) for child in found["children"]] + [set(found["uses"])]
    assert all(used) and sum(map(len, used)) == len(set.union(*used))


def test_gunicorn_forks_its_workers(environment: dict[str, str], tmp_path: Path) -> None:
    """An application that the master opens serves all of its workers and their threads."""
    (tmp_path / "web.py").write_text(WSGI)
    port, log = free_port(), tmp_path / "gunicorn.log"
    options = ("--preload", "--workers", "2", "--threads", "4", "--bind", f"127.0.0.1:{port}")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "web:application"],
            env={**_clean_environment(), **environment},
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: log.read_text().count("Booting worker") == 2, "gunicorn serves")
        numbers, pids = itertools.count(), set[str]()

        def both_have_answered() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{next(numbers)}") as response:
                pid, *answer = response.read().decode().split()
            assert answer == ["True", "queued"]
            pids.add(pid)
            return len(pids) == 2

        wait_until(both_have_answered, "both workers have answered")
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)
