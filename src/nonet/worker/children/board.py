"""The deadlines of child processes, in memory shared by worker, fork server and children.

The worker's watchdog writes them even while the event loop is blocked. The fork server reads them
even after the worker has died.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading

CELLS = 4096
_BYTES = 8 * CELLS


class Board:
    """One deadline for each child, by the monotonic clock, which all processes share.

    Args:
        fd: file descriptor of a board that another process has created; None creates a board.

    Attributes:
        fd: file descriptor of the shared memory.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = _memory()
            os.ftruncate(fd, _BYTES)
        self.fd = fd
        # The CPU reads and writes eight aligned bytes atomically.
        self._map = mmap.mmap(fd, _BYTES)
        self._cells = memoryview(self._map).cast("d")
        self._lock = threading.Lock()
        self._is_closed = False

    def __getitem__(self, number: int) -> float:
        return self._cells[number]

    def open(self, number: int, deadline: float) -> None:
        """Set the first deadline of a child for an attempt."""
        with self._lock:
            self._cells[number] = deadline

    def extend(self, number: int, deadline: float) -> None:
        """Extend a deadline unless it was cleared; from any thread."""
        with self._lock:
            if not self._is_closed and self._cells[number]:
                self._cells[number] = max(deadline, self._cells[number])

    def clear(self, number: int) -> None:
        """Remove a deadline: the child runs no attempt."""
        with self._lock:
            if not self._is_closed:
                self._cells[number] = 0.0

    def close(self) -> None:
        """Release the memory in this process."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._cells.release()
                self._map.close()
                os.close(self.fd)


def _memory() -> int:
    """Return a file descriptor of memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nonet-deadlines")
    fd, path = tempfile.mkstemp(prefix="nonet-deadlines-")  # not on Linux
    os.unlink(path)
    return fd
