"""The temporary directory of one demo run."""

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
    """Create a directory for one run, and remove it afterwards.

    The run holds a lock on its directory. The kernel releases the lock of a killed run, and the
    next run removes the directory.

    Args:
        home: parent directory; created if missing.

    Raises:
        ConfigurationError: the directory cannot be used.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, lock = _make(home)
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot write to {home}: {error.strerror}. Set NONET_STATE_DIR or "
            "--state-dir to a writable directory"
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make(home: Path) -> tuple[Path, int]:
    guard = os.open(home, os.O_RDONLY)
    try:
        # Another run may take an unlocked directory for abandoned. Keep it out until the new
        # directory is locked.
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
        pass  # a running demo holds the lock
    finally:
        os.close(lock)
