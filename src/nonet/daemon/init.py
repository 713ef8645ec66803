"""The first steps of a daemon or command, before slow imports: signals, and an init as process 1.

As process 1 of a container, a daemon would inherit the orphans of all programs that its tasks
start; these stay zombies until process 1 reaps them. The kernel would also drop signals without a
handler. So the daemon forks: the parent reaps orphans and forwards signals, and the daemon is an
ordinary process.

A packaged init such as tini or dumb-init does the same, but exits with the daemon at once. The
kernel then kills a `task-worker --drain` in the container (a preStop hook) before it can return its
exit code.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

# New objects per garbage collection while a process starts.
STARTING_THRESHOLD = 100_000
_HEARD = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# When process 1 exits, the kernel kills the other processes of the container. So it first waits
# this long for guests, such as `task-worker --drain`, which report how the daemon ended.
_GUEST_SECONDS = 2.0
_POLL_SECONDS = 0.02


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


def run_under_init() -> None:
    """As process 1, continue in a child process and be its init; else do nothing.

    Call it before anything else. The init forwards signals, reaps orphans and exits with the
    daemon's exit code (128 + number after a signal).

    Example::

        run_under_init()
        work()
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    if (daemon := os.fork()) != 0:
        _serve(daemon)
    # In a shared group, the daemon would receive Ctrl-C twice: from the terminal, and forwarded.
    os.setpgid(0, 0)
    if os.isatty(0):
        os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(daemon: int) -> NoReturn:
    """Run as init until the daemon ends, then exit with its code."""
    while True:
        number = signal.sigwait(_HEARD)
        if number != signal.SIGCHLD:
            os.kill(daemon, number)  # its id cannot be reused: only this process reaps it
        elif (status := _reap().get(daemon)) is not None:
            _await_guests()
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _reap() -> dict[int, int]:
    """Reap the children that have ended; return their statuses by id."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = found[1]
    return ended


def _await_guests() -> None:
    """Wait until guests have ended, at most `_GUEST_SECONDS`."""
    deadline = time.monotonic() + _GUEST_SECONDS
    while time.monotonic() < deadline and any(map(_is_guest, Path("/proc").glob("[0-9]*/stat"))):
        time.sleep(_POLL_SECONDS)
        _reap()


def _is_guest(stat: Path) -> bool:
    """Return whether a process was started from outside the container, such as a hook."""
    try:
        state, parent = (
            stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        )
    except OSError:  # it has just ended
        return False
    # The parent of a guest is outside of this PID namespace: the kernel reports 0.
    return parent == "0" and state != "Z" and stat.parent.name != "1"
