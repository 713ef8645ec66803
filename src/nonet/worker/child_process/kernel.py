"""What the fork server uses of the kernel. Linux has all of it, macOS only some."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _find_prctl() -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
        return found
    except AttributeError:
        return None


_prctl = _find_prctl()
# Only Linux. On macOS, imported libraries may start threads; a child forked while one holds a lock
# hangs or aborts. There each child is a new interpreter.
CAN_FORK = _prctl is not None


def adopt_orphans() -> None:
    """Become the reaper of orphaned descendants."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl()
            os._exit(1)


def ended_child(known: Iterable[int]) -> int | None:
    """Return a child that has ended; until it is reaped, no other process gets its id.

    Args:
        known: ids of the children; used only where ``os.waitid`` is missing.

    Raises:
        ChildProcessError: this process has no children (only where ``os.waitid`` exists).
    """
    if hasattr(os, "waitid"):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found.si_pid if found is not None else None
    return next((pid for pid in known if _is_zombie(pid)), None)


def _is_zombie(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return False
