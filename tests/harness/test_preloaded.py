"""What the tests themselves start: a fork with the libraries is like a real start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from preloaded import Preloaded, may_be_preloaded

TASK_RUN = str(Path(sys.executable).parent / "task-run")
VARIABLES = {"HOME": "/nowhere", "LC_ALL": "C.UTF-8"}


def forked(file: IO[bytes], home: Path, *options: str, **environment: str) -> Preloaded:
    return Preloaded(
        [TASK_RUN, *options],
        environment=VARIABLES | environment,
        cwd=home,
        stdout=file,
        stderr=file,
    )


@pytest.mark.parametrize(
    "options", [["--version"], ["status"], ["config", "check", "missing.yaml"]]
)
def test_a_fork_says_and_ends_as_a_real_start(tmp_path: Path, options: list[str]) -> None:
    """Exit codes and words are the same, good or bad."""
    environment = {"NONET_REDIS_URL": "redis://127.0.0.1:1/0"}
    real = subprocess.run(
        [TASK_RUN, *options],
        env=VARIABLES | environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with (tmp_path / "log").open("w+b") as file:
        assert forked(file, tmp_path, *options, **environment).wait(120) == real.returncode
        file.seek(0)
        assert file.read() == real.stdout


def test_a_killed_fork_reports_its_signal(tmp_path: Path, redis_url: str) -> None:
    """A signal reaches the command itself; later ones have no effect."""
    with (tmp_path / "log").open("w+b") as file:
        process = forked(file, tmp_path, "events", "--follow", NONET_REDIS_URL=redis_url)
        process.send_signal(signal.SIGSTOP)
        assert process.poll() is None
        process.kill()
        assert process.wait(120) == -signal.SIGKILL
        process.kill()


@pytest.mark.parametrize(
    ("name", "forks"),
    [
        *(("NONET_LEASE", True), ("PROBE_GATE", True), ("OTEL_BSP_SCHEDULE_DELAY", True)),
        ("UPGRADE_GO", True),
        *(("LD_PRELOAD", False), ("OTEL_PYTHON_CONTEXT", False), ("PYTHONPATH", False)),
    ],
)
def test_variables_that_are_read_at_the_start_need_a_real_start(name: str, forks: bool) -> None:
    """What the loader, the interpreter or a library reads at its start is not read again."""
    assert may_be_preloaded("task-worker", {name: "1"}) is forks
    assert not may_be_preloaded("sleep", {})
