"""`run_under_init`: a daemon that is process 1 of a container has an init above it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import namespaces
import pytest

pytestmark = pytest.mark.skipif(
    not namespaces.allowed(), reason="this machine lets us make no PID namespace"
)

_INIT = "from nonet.daemon.init import run_under_init; run_under_init()\n"
_LEAVES_ORPHANS = """
import subprocess, time
from pathlib import Path
for _ in range(5):
    subprocess.run(["sh", "-c", "sleep 0.05 &"])
until = time.monotonic() + 20
while len(list(Path("/proc").glob("[0-9]*"))) > 2 and time.monotonic() < until:
    time.sleep(0.02)
print(len(list(Path("/proc").glob("[0-9]*"))), "processes", flush=True)
"""
_COUNTS_SIGNALS = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"heard\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""
_HAS_NO_HANDLER = 'import signal; print("ready", flush=True); signal.pause()'
# As `task-worker --drain`: it sends a signal, waits for the end, and only then tells of it.
_WAITS_FOR_THE_END = """
import os, pathlib, signal, sys, time
(daemon,) = pathlib.Path("/proc/1/task/1/children").read_text().split()
os.kill(int(daemon), signal.SIGTERM)
while pathlib.Path(f"/proc/{daemon}").exists():
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(5)
"""


@contextmanager
def _first(code: str) -> Iterator[subprocess.Popen[str]]:
    """Python code as process 1."""
    command = namespaces.as_first(sys.executable, "-c", code)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def _line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def test_orphans_are_reaped() -> None:
    """What a task's programs leave behind does not stay as zombies."""
    with _first(_INIT + _LEAVES_ORPHANS) as started:
        assert _line(started) == "2 processes"


def test_signals_and_exit_codes_go_through() -> None:
    """A signal reaches the daemon, and its exit code is that of the container."""
    with _first(_INIT + _COUNTS_SIGNALS) as started:
        assert _line(started) == "ready"
        os.kill(namespaces.first(started.pid), signal.SIGUSR1)
        assert _line(started) == "heard"
        os.kill(namespaces.first(started.pid), signal.SIGTERM)
        assert started.wait(20) == 7


def test_the_end_by_a_signal_shows() -> None:
    """A daemon that has no handler ends by SIGTERM, as nothing does that is process 1 itself."""
    with _first(_INIT + _HAS_NO_HANDLER) as started:
        assert _line(started) == "ready"
        os.kill(namespaces.first(started.pid), signal.SIGTERM)
        assert started.wait(20) == 128 + signal.SIGTERM


def test_who_waits_for_the_end_may_tell_of_it() -> None:
    """A hook that waits for the end of the daemon is not killed with its container."""
    with _first(_INIT + _COUNTS_SIGNALS) as started:
        assert _line(started) == "ready"
        hook = namespaces.beside(started.pid, sys.executable, "-c", _WAITS_FOR_THE_END)
        assert subprocess.run(hook, timeout=20).returncode == 5
        assert started.wait(20) == 7
