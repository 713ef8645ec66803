"""The shop in examples/shop.py: work for the dashboard, as `make demo ARGS=--web` runs it."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import preloaded
from daemons import Daemon
from examples.conftest import ROOT
from ports import free_port
from waits import WAIT_SECONDS, wait_until

_LINK = re.compile(r"http://\S+/login\?code=\S+")


def test_the_dashboard_shows_a_shop_that_works(tmp_path: Path) -> None:
    """It gives a link to the dashboard, and works until a signal."""
    environment = {"NONET_STATE_DIR": str(tmp_path / "state"), "NONET_WEB_PORT": str(free_port())}
    shop = ("dev", "--namespace", "shop", str(ROOT / "examples" / "shop.py"))
    elsewhere = {
        "NONET_NAMESPACE": "shop",
        "NONET_REDIS_URL": "embedded://",
        "NONET_STATE_DIR": str(tmp_path / "state"),
        "NONET_TASKS": "shop",
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
        run("submit", "ImportFeed", "--args", '["acme"]')  # else one is submitted at times
        wait_until(lambda: "(shop:ImportFeed) failed" in daemon.log, "a task runs and fails")
        mails = ("history", "--task", "SendMail")
        wait_until(lambda: "shop:SendMail" in run(*mails), "it has submitted tasks by itself")
        daemon.terminate()
        assert daemon.wait() == 0, daemon.log
