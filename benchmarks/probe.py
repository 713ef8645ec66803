"""Shared memory in which tasks write down that they ran: measuring adds nothing to Redis.

One file, four arrays indexed by the number of a task. Times are `time.time_ns`, comparable
between the processes of one machine and with the instants for which tasks are delayed.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from time import time_ns

FILE = "BENCH_PROBE"  # environment variable: the file; without it nothing is written down
WORKER = "BENCH_WORKER"  # environment variable: number of a worker process, from 1
_BYTES_EACH = 8 + 8 + 1 + 1


class Probe:
    """The arrays.

    Attributes:
        begun: when a body began, in ns; 0: never.
        ended: when it ended.
        count: how often it ended; 0: lost, 2 and more: ran twice.
        worker: in which worker.
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
        """Forget all."""
        self._memory[:] = bytes(len(self._memory))

    def done(self, tasks: range) -> int:
        """How many of these tasks have ended."""
        return len(tasks) - bytes(self.count[tasks.start : tasks.stop]).count(0)

    def each_once(self, tasks: range) -> None:
        """Raises `AssertionError` if a task was lost or ran twice."""
        counts = bytes(self.count[tasks.start : tasks.stop])
        lost, twice = counts.count(0), len(counts) - counts.count(0) - counts.count(1)
        assert not lost, f"{lost} of {len(tasks)} tasks did not run"
        assert not twice, f"{twice} of {len(tasks)} tasks ran more than once"


_worker = int(os.environ.get(WORKER, "0"))
_probe = Probe(Path(os.environ[FILE])) if _worker else None


def begin(number: int) -> None:
    """The body of a task begins."""
    if _probe is not None:
        _probe.begun[number] = time_ns()


def end(number: int) -> None:
    """The body of a task ends."""
    if _probe is not None:
        _probe.ended[number] = time_ns()
        _probe.worker[number] = _worker
        _probe.count[number] += 1


def hit(number: int) -> None:
    """All there is to a task that does nothing."""
    if _probe is not None:
        _probe.begun[number] = _probe.ended[number] = time_ns()
        _probe.worker[number] = _worker
        _probe.count[number] += 1
