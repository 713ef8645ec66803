"""What Linux says of this machine, and of the container around this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Bytes that can still be had: of the machine, or of the tightest limit around this process.

    Args:
        proc, cgroups: where ``/proc`` and the unified hierarchy (version 2) are mounted.

    Returns:
        None if nobody says it: another system than Linux.
    """
    found = [_available(proc), *(_left(group) for group in _groups(proc, cgroups))]
    known = [free for free in found if free is not None]
    return min(known) if known else None


def load_per_core() -> float:
    """Processes that want to run, on average of the last minute, for each core of the machine."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _available(proc: Path) -> int | None:
    fields = _fields(proc / "meminfo")
    kib = fields.get("MemAvailable:")
    return None if kib is None else kib * 1024


def _left(group: Path) -> int | None:
    """What a control group may still take, caches that give way included; None: no limit."""
    most, used = _number(group / "memory.max"), _number(group / "memory.current")
    if most is None or used is None:
        return None
    return max(0, most - used + _fields(group / "memory.stat").get("inactive_file", 0))


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The control group of this process and those around it, as far as they are seen from here."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::/"):
            path = line.removeprefix("0::/")
            # Of a path outside of this namespace (/../…) only the root can be seen.
            group = cgroups if ".." in path else cgroups / path
            yield group
            yield from (parent for parent in group.parents if parent.is_relative_to(cgroups))


def _fields(file: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
