"""The first steps of a daemon or command, before slow imports: SIGTERM and garbage collection."""

from __future__ import annotations

import atexit
import gc
import os
import signal

# New objects per garbage collection while a process starts.
STARTING_THRESHOLD = 100_000


def end_on_sigterm() -> None:
    """Exit with code 143 at SIGTERM, until the daemon installs its own handler.

    The handler exits at once, because a module that is being imported could swallow an exception.
    """
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def collect_later() -> None:
    """Postpone garbage collection while this process imports, and skip it at exit.

    Imports make almost no garbage, but each collection scans all objects: that takes 20 ms of a
    command and 50 ms of a daemon. `nonet.daemon.service.spare_collector` resets the threshold in a
    daemon; a command seldom reaches it.

    The collection at exit takes a third of the CPU time of a short command. It skips frozen
    objects.
    """
    gc.set_threshold(STARTING_THRESHOLD, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
