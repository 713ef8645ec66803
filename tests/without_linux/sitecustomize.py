"""Takes from a Python process what only Linux has, as macOS would: put this on ``PYTHONPATH``.

`psutil` still reads ``/proc``: on macOS it asks the kernel in another way.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

for module, *names in (
    (os, "memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "waitid"),
    (signal, "pidfd_send_signal"),
    (socket, "SOCK_SEQPACKET"),
    (time, "CLOCK_BOOTTIME"),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

_find = ctypes.CDLL.__getattr__


def _without_prctl(library: ctypes.CDLL, name: str) -> Any:
    if name == "prctl":
        raise AttributeError(name)
    return _find(library, name)


ctypes.CDLL.__getattr__ = _without_prctl  # type: ignore[method-assign]


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, for which Nonet and paths find no ``/proc``."""

    def call(path: Any, *args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if str(path).startswith("/proc") and caller.startswith(("nonet", "pathlib")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **options)

    return call


for module, *names in ((os, "listdir", "scandir", "stat", "readlink", "open"), (builtins, "open")):
    for name in names:
        setattr(module, name, _without_proc(getattr(module, name)))
# `Path.open` has a name of its own for it.
sys.modules["io"].open = builtins.open  # type: ignore[attr-defined]
