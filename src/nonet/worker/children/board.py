"""What the children run and until when, in memory shared by worker, fork server and children.

The worker's watchdog writes deadlines even while the event loop is blocked. The fork server reads
them even after the worker has died. So none of them has to send the others a message.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading

CELLS = 4096
# What the board has of each child: when its lease ends, when to kill it in any case (both by the
# monotonic clock, which all processes share; 0: never), the number of the attempt that it was sent,
# and of the attempt that it has received.
_LEASE, _KILL_AT, _SENT, _RECEIVED = range(4)
_WIDTH = 4
_BYTES = 8 * _WIDTH * CELLS


class Board:
    """Deadlines and attempts of children, by the number of the child.

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

    def lease(self, number: int) -> float:
        """Return when the lease of a child's attempt ends; 0: it has none."""
        return self._cells[_WIDTH * number + _LEASE]

    def kill_at(self, number: int) -> float:
        """Return when to kill a child in any case; 0: never."""
        return self._cells[_WIDTH * number + _KILL_AT]

    def attempt(self, number: int) -> int:
        """Return the number of the attempt that a child was sent."""
        return int(self._cells[_WIDTH * number + _SENT])

    def reset(self, number: int) -> None:
        """Prepare for a new child."""
        start = _WIDTH * number
        with self._lock:
            for cell in range(start, start + _WIDTH):
                self._cells[cell] = 0.0

    def open(self, number: int, deadline: float, attempt: int, kill_at: float = 0.0) -> None:
        """Write what a child is about to run."""
        start = _WIDTH * number
        with self._lock:
            # The number first: a deadline never belongs to an earlier attempt than the number.
            self._cells[start + _SENT] = attempt
            self._cells[start + _KILL_AT] = kill_at
            self._cells[start + _LEASE] = deadline

    def receive(self, number: int) -> None:
        """Record, in the child, that it has received the attempt."""
        start = _WIDTH * number
        self._cells[start + _RECEIVED] = self._cells[start + _SENT]

    def has_received(self, number: int) -> bool:
        """Whether the child has received the attempt that it was sent."""
        start = _WIDTH * number
        with self._lock:
            return not self._is_closed and (
                0 < self._cells[start + _SENT] == self._cells[start + _RECEIVED]
            )

    def end(self, number: int) -> None:
        """Record that the attempt of a child has ended; its lease stays until `clear`."""
        with self._lock:
            if not self._is_closed:
                self._cells[_WIDTH * number + _KILL_AT] = 0.0

    def extend(self, number: int, deadline: float) -> None:
        """Extend a deadline unless it was cleared; from any thread."""
        with self._lock:
            cell = _WIDTH * number + _LEASE
            if not self._is_closed and self._cells[cell]:
                self._cells[cell] = max(deadline, self._cells[cell])

    def clear(self, number: int) -> None:
        """Remove a deadline: the child runs no attempt."""
        with self._lock:
            if not self._is_closed:
                self._cells[_WIDTH * number + _LEASE] = 0.0

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
