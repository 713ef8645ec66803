"""The shop in examples/shop.py: work for the dashboard, as `make demo ARGS=--web` runs it."""

from __future__ import annotations

import re
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import preloaded
from daemons import Daemon
from examples.conftest import ROOT
from ports import free_port
from waits import WAIT_SECONDS, wait_until

_LINK = re.compile(r"http://\S+/login\?code=\S+")
_NEXT = re.compile(r"for another login: (.*)")


def _is_shipped(state: Path) -> bool:
    """Whether the pipeline has processed a row."""
    with closing(sqlite3.connect(state / "warehouse.db")) as warehouse:
        return bool(warehouse.execute("SELECT 1 FROM parcels WHERE status = 'shipped'").fetchall())


def test_the_dashboard_shows_a_shop_that_works(tmp_path: Path) -> None:
    """It gives a link to the dashboard and the command for the next one; a finding comes at once.

    Workflows wait for an event, two tenants have tasks, and a pipeline processes rows.
    """
    environment = {"NONET_STATE_DIR": str(tmp_path / "state"), "NONET_WEB_PORT": str(free_port())}
    shop = ("dev", "--namespace", "shop", str(ROOT / "examples" / "shop.py"))
    elsewhere = {
        "NONET_NAMESPACE": "shop",
        "NONET_REDIS_URL": "embedded://",
        "NONET_STATE_DIR": str(tmp_path / "state"),
        "NONET_TASKS": "shop",
        "NONET_WEB_PORT": environment["NONET_WEB_PORT"],
        "PYTHONPATH": str(ROOT / "examples"),
    }
    preloaded.PLACES.add(elsewhere["PYTHONPATH"])

    def run(*command: str) -> str:
        done = preloaded.run("task-run", *command, variables=elsewhere, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Daemon("task-run", *shop, environment=environment, log=tmp_path / "log") as daemon:
        link = wait_until(lambda: _LINK.search(daemon.log), "it shows a link")
        with urllib.request.urlopen(link[0], timeout=WAIT_SECONDS) as answer:
            assert answer.status == 200
        wait_until(lambda: "(shop:SendMail) failed" in daemon.log, "a task runs and fails")
        assert "shop:SendMail" in run("overview", "--json")
        said = wait_until(lambda: _NEXT.search(daemon.log), "it says how to log in again")
        another = run(*said[1].split()[1:]).strip()
        assert another.partition("=")[0] == link[0].partition("=")[0] and another != link[0]
        wait_until(lambda: "1 of 4" in run("workflows"), "a workflow waits for its event")
        wait_until(lambda: _is_shipped(tmp_path / "state"), "a row was processed")
        wait_until(
            lambda: {"books", "toys"} <= set(run("tenants").split()), "both tenants have tasks"
        )
        daemon.terminate()
        assert daemon.wait() == 0, daemon.log
