"""`Daemon`: a real ``task-worker`` or ``task-scheduler`` process for tests, and how to wait for it.

    with Daemon("task-worker", "--size", "small", environment=..., log=path) as worker:
        worker.wait_ready()
        worker.kill()

A daemon is gone when its test process is, also when that one was killed.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from preloaded import Preloaded, may_be_preloaded

# The same helper that ends the servers: one pipe, one process.
from servers import _reaper
from waits import WAIT_SECONDS, wait_until

from nonet.base.actor import process_name

_TESTS = Path(__file__).parent


class Daemon:
    """One daemon process; its log is a file.

    Args:
        command: console script of the package and its options.
        environment: ``NONET_…`` and other variables; nothing of that kind is inherited.
        log: file for stdout and stderr.
    """

    def __init__(self, *command: str, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        script = str(Path(sys.executable).parent / command[0])
        variables = {**_clean_environment(), **environment}
        self._process: Preloaded | subprocess.Popen[bytes]
        with log.open("wb") as output:
            if may_be_preloaded(command[0], environment):
                self._process = Preloaded(
                    [script, *command[1:]],
                    environment=variables,
                    cwd=log.parent,  # no stray .env
                    stdout=output,
                    stderr=output,
                )
            else:
                self._process = subprocess.Popen(
                    [script, *command[1:]],
                    env=variables,
                    cwd=log.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        _reaper.watch(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether the process runs (or is frozen)."""
        return self._process.poll() is None

    def wait_ready(self) -> Self:
        """Wait for its ``ready`` line; may be called at any time after the start."""
        wait_until(lambda: " ready: " in self.log or not self.alive, "the daemon is ready")
        # One that was ready may have ended since: tasks of tests kill their workers.
        assert " ready: " in self.log, f"it ended with {self._process.returncode}:\n{self.log}"
        return self

    @property
    def incarnation(self) -> str:
        """Id under which a worker is registered."""
        found = re.search(r"worker \S+ \((\S+)\) ready", self.log)
        assert found, "not ready, or no worker"
        return found[1]

    @property
    def name(self) -> str:
        """``pid@host`` of a worker."""
        return process_name(self.pid)

    def terminate(self) -> None:
        """Ask it to stop, as a supervisor would."""
        self._process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it is, as a paused virtual machine would."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen daemon go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would; does nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        _reaper.forget(self.pid)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait for its end: the exit code, negative for a signal."""
        return self._process.wait(seconds)


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@contextmanager
def frozen(daemon: Daemon) -> Iterator[None]:
    """A daemon that is stopped where it is; what happens meanwhile is there when it goes on."""
    daemon.freeze()
    try:
        yield
    finally:
        daemon.thaw()


def wrong_clock(shift: str) -> dict[str, str]:
    """Variables that give a process a wall clock which is wrong by `shift`, e.g. ``+1h``."""
    (library,) = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    return {"LD_PRELOAD": library, "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    kept.pop("KUBERNETES_SERVICE_HOST", None)  # logs are text for the tests, also in a pod
    return {**kept, "PYTHONPATH": str(_TESTS), "PYTHONUNBUFFERED": "1"}
