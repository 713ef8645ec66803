"""Until when each child process may live, in memory that parent, guardian and children share.

The watchdog of the worker writes, whatever its event loop does; the guardian reads, whatever has
become of the worker.
"""

from __future__ import annotations

import mmap
import os
import threading

CELLS = 4096
_BYTES = 8 * CELLS


class Board:
    """One deadline for each child: monotonic seconds, which all processes of a machine share.

    Args:
        fd: of a board that another process has made; None: a new one.

    Attributes:
        fd: of the shared memory.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("nonet-deadlines")
            os.ftruncate(fd, _BYTES)
        self.fd = fd
        # Eight aligned bytes are written and read as one.
        self._map = mmap.mmap(fd, _BYTES)
        self._cells = memoryview(self._map).cast("d")
        self._lock = threading.Lock()
        self._is_closed = False

    def __getitem__(self, number: int) -> float:
        return self._cells[number]

    def open(self, number: int, deadline: float) -> None:
        """A child has a lease until then."""
        with self._lock:
            self._cells[number] = deadline

    def extend(self, number: int, deadline: float) -> None:
        """Its lease was renewed; one that was cleared stays so. From any thread."""
        with self._lock:
            if not self._is_closed and self._cells[number]:
                self._cells[number] = max(deadline, self._cells[number])

    def clear(self, number: int) -> None:
        """It has no lease any more."""
        with self._lock:
            if not self._is_closed:
                self._cells[number] = 0.0

    def close(self) -> None:
        """Give the memory back; the other processes keep theirs."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._cells.release()
                self._map.close()
                os.close(self.fd)
