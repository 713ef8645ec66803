"""Memory and CPU time of processes, and their children. A process that has ended counts as 0."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

# Whether the kernel lists the children of each process.
HAS_LISTS = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, including shared pages."""
    with suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that have been reaped."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system
    return 0.0


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop())
        found += children
        waiting += children
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including zombies.

    The kernel's own lists take 0.1 ms. `psutil.Process.children` reads all processes of the
    machine instead (7 ms for 120): too slow for the fork server, which calls this for each child
    that it measures. It is used only where the kernel has no such lists (macOS).
    """
    found: list[int] = []
    if not HAS_LISTS:
        with suppress(psutil.Error):
            found += [child.pid for child in psutil.Process(pid).children()]
        return found
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{thread}/children").read_bytes()
                found += map(int, text.split())
    return found


def has_children() -> bool:
    """Whether this process has children, including zombies; one system call."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def all_resident(pids: Iterable[int]) -> int:
    """Return the sum of `resident` of several processes."""
    return sum(map(resident, pids))


def begin_peak() -> None:
    """Reset the peak that `peak` reports, if the kernel permits it."""
    with suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")


def peak() -> int:
    """Return the most resident memory of this process since `begin_peak`, in bytes.

    If the kernel refused or has no reset, this is the peak since the process started.
    """
    return most_resident(resource.getrusage(resource.RUSAGE_SELF))


def most_resident(usage: resource.struct_rusage) -> int:
    """Return the most resident memory of a process over its life, in bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
