"""Free memory and load of this machine, and the limits of the container around this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the available bytes of the machine or of the tightest cgroup, whichever is less.

    Args:
        proc, cgroups: where ``/proc`` and the unified cgroup hierarchy (version 2) are mounted.
    """
    limits = (_left(group) for group in _groups(proc, cgroups))
    return min([psutil.virtual_memory().available, *(left for left in limits if left is not None)])


def load_per_core() -> float:
    """Return the load average of the last minute, divided by the cores of the machine."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _left(group: Path) -> int | None:
    """Return what a cgroup can still allocate, including reclaimable caches; None: no limit."""
    most, used = _number(group / "memory.max"), _number(group / "memory.current")
    if most is None or used is None:
        return None
    return max(0, most - used + _reclaimable(group / "memory.stat"))


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the cgroup of this process and its visible ancestors."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::/"):
            path = line.removeprefix("0::/")
            # The path is outside of this cgroup namespace (/../…), so only the root is visible.
            group = cgroups if ".." in path else cgroups / path
            yield group
            yield from (parent for parent in group.parents if parent.is_relative_to(cgroups))


def _reclaimable(file: Path) -> int:
    rows = (line.partition(" ") for line in _text(file).splitlines())
    return sum(int(number) for name, _, number in rows if name == "inactive_file")


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
