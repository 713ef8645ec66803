"""Find out which Python files have changed: those beside the files that a system has loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

# The time of the last change in nanoseconds, and the size.
State = Mapping[str, tuple[int, int]]


def state_of(files: Iterable[str]) -> State:
    """Return the state of all Python files in the directories of some files.

    So it shows a file that is imported later, or is new.
    """
    found: dict[str, tuple[int, int]] = {}
    for directory in {os.path.dirname(file) for file in files}:
        with suppress(OSError):  # it was removed
            for entry in os.scandir(directory):
                if entry.name.endswith(".py"):
                    with suppress(OSError):
                        status = entry.stat()
                        found[entry.path] = status.st_mtime_ns, status.st_size
    return found


def changes(before: State, now: State) -> list[str]:
    """Return the files that were changed, added or removed.

    >>> changes({"a.py": (1, 9), "b.py": (1, 9)}, {"a.py": (2, 9), "c.py": (2, 9)})
    ['a.py', 'b.py', 'c.py']
    """
    return sorted(file for file in {*before, *now} if before.get(file) != now.get(file))
