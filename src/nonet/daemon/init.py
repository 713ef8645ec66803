"""The first steps of a daemon, or of a command, before it imports what takes long.

SIGTERM gives an exit code from the beginning, and process 1 of a container gets an init. The
kernel gives process 1 duties that a worker cannot fulfil. Whatever a task's programs leave
behind becomes its child and stays a zombie until somebody waits for it, and a signal that is not
handled yet is dropped. So a daemon forks: the parent has these duties, and the daemon is an
ordinary process.
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

# New objects before the garbage collector looks at them, while a process starts.
STARTING_THRESHOLD = 100_000
_HEARD = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# With process 1 all others are killed. Whoever was let in from outside to wait for the end of the
# daemon (`task-worker --drain`) gets this long to tell how it ended.
_FAREWELL_SECONDS = 2.0
_POLL_SECONDS = 0.02


def end_on_sigterm() -> None:
    """Let SIGTERM end this process with 143, until it hands tasks back at a signal.

    At once, without an exception: a module that is being imported could swallow one.
    """
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def collect_later() -> None:
    """Let the garbage collector rest while this process imports, and when it ends.

    Next to nothing of what an import makes is garbage, and each collection goes through all of it:
    20 ms of a command, 50 ms of a daemon. `nonet.daemon.service.spare_collector` ends this rest in
    a daemon; a command seldom makes more objects than the threshold.

    The interpreter collects again before it exits, when the kernel takes all memory back anyway.
    That takes a third of the CPU of a short command, and finds nothing among frozen objects.
    """
    gc.set_threshold(STARTING_THRESHOLD, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)


def run_under_init() -> None:
    """Called first of all by a daemon; as process 1 it goes on in a child, else nothing happens.

    The init forwards signals, waits for orphans and ends with the daemon's exit code (128 + number
    after a signal).

    Example::

        run_under_init()
        work()
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    if (daemon := os.fork()) != 0:
        _serve(daemon)
    # A terminal's Ctrl-C would reach the daemon twice: from the terminal, and forwarded.
    os.setpgid(0, 0)
    if os.isatty(0):
        os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(daemon: int) -> NoReturn:
    """Be the init of a daemon until it ends."""
    while True:
        number = signal.sigwait(_HEARD)
        if number != signal.SIGCHLD:
            os.kill(daemon, number)  # a zombie at worst: nobody else waits for it
        elif (status := _reap().get(daemon)) is not None:
            _bid_farewell()
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _reap() -> dict[int, int]:
    """The children that have ended, each with its status."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = found[1]
    return ended


def _bid_farewell() -> None:
    """Let guests end by themselves, if they do so soon."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    while time.monotonic() < deadline and any(map(_is_guest, Path("/proc").glob("[0-9]*/stat"))):
        time.sleep(_POLL_SECONDS)
        _reap()


def _is_guest(stat: Path) -> bool:
    """Whether a process came from outside (``kubectl exec``, a hook): its parent is not in here."""
    try:
        state, parent = (
            stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        )
    except OSError:  # it has just ended
        return False
    return parent == "0" and state != "Z" and stat.parent.name != "1"
