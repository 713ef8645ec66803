"""What one process does for all processes of one run of the tests (``pytest -n``)."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Wait until no other process is in here with this file; it stays, empty."""
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def first_alone(name: str, config: pytest.Config) -> Iterator[None]:
    """Let the first process of a run do this alone, then all others at once."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    done = Path(config.option.basetemp).parent / f"{name}.done"
    with alone(done.with_suffix(".lock")):
        if is_first := not done.exists():
            yield
            done.touch()
    if not is_first:
        yield


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A directory that the first caller makes: others wait for it, and must not change it.

    Args:
        factory: that of pytest, of any of the processes.
        name: the same for all; one directory of a run has it.
        make: makes a directory, which is moved to its place when it is done.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # it has a directory of its own in that of the run
        base = base.parent
    place, unfinished = base / f"shared-{name}", base / f"unfinished-{name}"
    with alone(base / f"{name}.lock"):
        if not place.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(place)
    return place
