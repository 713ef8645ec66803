"""Shared memory in which tasks record that they ran, so that measuring adds no load to Redis.

One file holds four arrays, indexed by the number of a task. Times are `time.time_ns`, so they are
comparable between processes of one machine, and with the due times of delayed tasks.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from time import time_ns

FILE = "BENCH_PROBE"  # environment variable: the file; without it tasks record nothing
WORKER = "BENCH_WORKER"  # environment variable: number of a worker process, from 1
_BYTES_EACH = 8 + 8 + 1 + 1


class Probe:
    """The arrays.

    Attributes:
        begun: when a body began, in ns; 0: never.
        ended: when the body ended.
        count: how many times the body ended; 0: lost, 2 or more: ran more than once.
        worker: the number of the worker process that ran it.
    """

    def __init__(self, path: Path, capacity: int = 0) -> None:
        if capacity:
            path.write_bytes(b"")
            os.truncate(path, capacity * _BYTES_EACH)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.capacity = n = len(self._memory) // _BYTES_EACH
        view = memoryview(self._memory)
        self.begun = view[: 8 * n].cast("q")
        self.ended = view[8 * n : 16 * n].cast("q")
        self.count = view[16 * n : 17 * n]
        self.worker = view[17 * n :]

    def clear(self) -> None:
        """Reset all arrays."""
        self._memory[:] = bytes(len(self._memory))

    def done(self, tasks: range) -> int:
        """Return how many of these tasks have ended."""
        return len(tasks) - bytes(self.count[tasks.start : tasks.stop]).count(0)

    def each_once(self, tasks: range) -> None:
        """Raise `AssertionError` if a task was lost or ran more than once."""
        counts = bytes(self.count[tasks.start : tasks.stop])
        lost, twice = counts.count(0), len(counts) - counts.count(0) - counts.count(1)
        assert not lost, f"{lost} of {len(tasks)} tasks did not run"
        assert not twice, f"{twice} of {len(tasks)} tasks ran more than once"


_worker = int(os.environ.get(WORKER, "0"))
_probe = Probe(Path(os.environ[FILE])) if _worker else None


def begin(number: int) -> None:
    """Record that the body of a task begins."""
    if _probe is not None:
        _probe.begun[number] = time_ns()


def end(number: int) -> None:
    """Record that the body of a task ends."""
    if _probe is not None:
        _probe.ended[number] = time_ns()
        _probe.worker[number] = _worker
        _probe.count[number] += 1


def hit(number: int) -> None:
    """Record a task that does nothing else."""
    if _probe is not None:
        _probe.begun[number] = _probe.ended[number] = time_ns()
        _probe.worker[number] = _worker
        _probe.count[number] += 1
