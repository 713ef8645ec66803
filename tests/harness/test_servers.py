"""The servers of tests leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from daemons import lives
from waits import wait_until

pytestmark = pytest.mark.server

_RUN = """
from servers import RedisServer
with RedisServer() as server:
    print(server.pid, server.data.parent, flush=True)
    input()
"""


def test_a_killed_run_leaves_no_server_and_no_files() -> None:
    """The helper ends the server and removes its files."""
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", _RUN],
        cwd=tests,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout
        pid, _, home = run.stdout.readline().strip().partition(" ")
        assert Path(home).exists()
        run.kill()
    wait_until(lambda: not Path(home).exists(), "its directory is removed")
    # Not whether its port refuses: that may belong to the server of another test by then.
    wait_until(lambda: not lives(int(pid)), "its server has ended")
