"""The servers of tests leave nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import wait_until

pytestmark = pytest.mark.server

_RUN = """
from servers import RedisServer
with RedisServer() as server:
    print(server.port, server.data.parent, flush=True)
    input()
"""


def _refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_killed_run_leaves_no_server_and_no_files() -> None:
    """Whoever kills a test run finds its memory free again."""
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", _RUN],
        cwd=tests,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout
        port, _, home = run.stdout.readline().strip().partition(" ")
        assert Path(home).exists()
        run.kill()
    wait_until(lambda: not Path(home).exists(), "its directory is removed")
    assert _refuses(int(port))
