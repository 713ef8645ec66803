"""`dying_with_me`: start a program that does not outlive the thread which starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# The parent may have died before the program asked for the signal.
_SCRIPT = """
import ctypes, os, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != int(sys.argv[1]):
        sys.exit("its parent has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_me(command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command` until the calling thread ends, at most.

    The kernel then kills it. Only Linux supports this. Elsewhere the program outlives a parent that
    is killed.

    Args:
        command: the path of a program, and its arguments.
    """
    return [sys.executable, "-I", "-S", "-c", _SCRIPT, str(os.getpid()), *command]
