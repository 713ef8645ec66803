"""How much memory and CPU time processes have, by ``/proc``; 0 of what is gone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Resident memory of a process, in bytes; pages that it shares with others count."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return sum(int(field) for field in fields[11:15]) / _TICKS
    except (OSError, IndexError):
        return 0.0


def descendants(pid: int) -> list[int]:
    """The living children of a process, their children, and so on."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop())
        found += children
        waiting += children
    return found


def children_of(pid: int) -> list[int]:
    """The children of a process, also those that have ended and are not reaped yet."""
    found: list[int] = []
    for thread in _threads(pid):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_bytes()
            found += [int(part) for part in text.split()]
    return found


def all_resident(pids: Iterable[int]) -> int:
    """`resident` of several together."""
    return sum(resident(pid) for pid in pids)


def begin_peak() -> None:
    """Measure `peak` of this process from now on, where the kernel lets us."""
    try:
        with open("/proc/self/clear_refs", "wb") as file:
            file.write(b"5")
    except OSError:
        return  # then it is that of the whole life of the process


def peak() -> int:
    """Most resident memory of this process since `begin_peak`, in bytes."""
    try:
        found = re.search(rb"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_bytes(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
