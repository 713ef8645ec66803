"""A command as process 1 of a PID namespace, as in a container, and others beside it.

    started = subprocess.Popen(as_first("task-worker", "--size", "small"))
    subprocess.run(beside(started.pid, "task-worker", "--drain"))

Root may make namespaces, and others where the kernel lets them; `allowed` says whether we may.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from daemons import wait_until

_MAKE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_AS_USER = ("--user", "--map-root-user")


def allowed() -> bool:
    """Whether this user may make PID namespaces on this machine."""
    return _options() is not None


def as_first(*command: str) -> list[str]:
    """The command line that starts a command as process 1 of a new namespace."""
    options = _options()
    assert options is not None, "ask `allowed` first"
    program = shutil.which(_MAKE[0])
    assert program is not None
    return [program, *_MAKE[1:], *options, *command]


def first(pid: int) -> int:
    """The id, as seen from here, of what `as_first` has started: `pid` is that of its line."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(wait_until(lambda: children.read_text().split(), "it has started")[0])


def beside(pid: int, *command: str) -> list[str]:
    """The command line that runs a command in that namespace, as ``kubectl exec`` does."""
    user = ["--user", "--preserve-credentials"] if _options() else []
    return ["nsenter", f"--target={first(pid)}", "--pid", "--mount", *user, *command]


@functools.cache
def _options() -> tuple[str, ...] | None:
    """What lets us make a namespace; None: nothing does."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return None
    for options in ((), _AS_USER):
        if not subprocess.run([*_MAKE, *options, "true"], capture_output=True).returncode:
            return options
    return None
