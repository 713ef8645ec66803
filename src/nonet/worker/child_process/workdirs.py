"""The directory in which the children of one fork server make their working directories."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "nonet-children-"


def make_workdirs() -> Path:
    """Make a directory, and remove directories of fork servers that were killed with the worker.

    A fork server, and the processes that it forks, lock its directory as long as they live.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Before this lock, a fork server that starts at the same time may remove the directory.
        if _lock(made) is not None and made.exists():
            return made


def _lock(directory: Path) -> int | None:
    """Lock a directory until the returned descriptor is closed; None: another process has it."""
    with suppress(OSError):  # it is another user's, or gone
        lock = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return lock
    return None
