"""The directory of one demo run: made, held while it is used, removed afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nonet.base.errors import ConfigurationError

_PREFIX = "run-"


@contextmanager
def workspace(home: Path) -> Iterator[Path]:
    """A directory of its own for one run, so that two at once do not mix.

    What a killed run has left is removed by the next one: the kernel gives its lock back.

    Args:
        home: where it is made; made itself when missing.

    Raises:
        ConfigurationError: the directory cannot be used.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, lock = _make(home)
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot keep its data in {home}: {error.strerror}. "
            "Name a directory that you may write in NONET_STATE_DIR."
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make(home: Path) -> tuple[Path, int]:
    guard = os.open(home, os.O_RDONLY)
    try:
        # Until the new directory is locked, nobody else may look for abandoned ones.
        fcntl.flock(guard, fcntl.LOCK_EX)
        for old in home.glob(f"{_PREFIX}*"):
            _remove_if_abandoned(old)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        lock = os.open(path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path, lock
    finally:
        os.close(guard)


def _remove_if_abandoned(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # its run has just removed it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # it is in use
    finally:
        os.close(lock)
