"""A child process before its first attempt. The fork server forks it, or starts an interpreter."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from nonet.base.forks import STOP_SIGNALS
from nonet.client.async_application import AsyncApplication
from nonet.worker.child_process.kernel import adopt_orphans, die_with
from nonet.worker.child_process.serving import serve
from nonet.worker.child_process.set_up import load
from nonet.worker.children.board import Board
from nonet.worker.children.process_usage import descendants
from nonet.worker.children.wire import FOR_START, READ_BYTES, Frames, SetUp, Spawn, Start, frame

logger = logging.getLogger(__name__)

# `-P`: import nothing from the current directory.
_COMMAND = (sys.executable, "-P", "-m", "nonet.worker.child_process")


def run_forked(
    app: AsyncApplication, spawn: Spawn, connection: int, board: Board, workdirs: Path, server: int
) -> NoReturn:
    """Serve as a child that was just forked from the fork server, whose id is `server`."""

    def work() -> None:
        with suppress(OSError):
            os.setpgid(0, 0)
        die_with(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _serve(app, spawn, connection, board, workdirs)

    _run(work)


def start_child(
    set_up: SetUp, spawn: Spawn, connection: int, workdirs: Path
) -> subprocess.Popen[bytes]:
    """Start a child as a new interpreter, which loads the task modules by itself.

    Its stdin stays open as long as the fork server lives: at its end the child kills itself.
    """
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        # It inherits its connection, the board, and descriptors that must stay open until the
        # worker's last process ends.
        close_fds=False,
        process_group=0,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, and is reported like any other child
        process.stdin.write(frame(Start(set_up, spawn, connection, str(workdirs))))
        process.stdin.flush()
    return process


def run_started() -> NoReturn:
    """Serve as a child that `start_child` has started."""

    def work() -> None:
        start = _receive_start()
        for number in STOP_SIGNALS:  # the worker heeds them
            signal.signal(number, lambda *_: None)
        os.set_inheritable(start.connection, False)
        app, board = load(start.set_up), Board(start.set_up.board)
        try:
            _serve(app, start.spawn, start.connection, board, Path(start.workdirs))
        finally:
            # No process adopts processes that the tasks left. The fork server finds them only while
            # this process, their parent, lives.
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    _run(work)


def _receive_start() -> Start:
    frames, found = Frames(FOR_START), list[Start]()
    while not found:
        data = os.read(0, READ_BYTES)
        if not data:  # the fork server has died
            os._exit(1)
        found = frames.feed(data)
    line = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A thread, as tasks may block the event loop.
    threading.Thread(target=_end_with, args=[line], name="nonet-line", daemon=True).start()
    return found[0]


def _end_with(line: int) -> None:
    """Kill this process and its group at the end of the fork server."""
    os.read(line, 1)
    os.killpg(0, signal.SIGKILL)


def _serve(
    app: AsyncApplication, spawn: Spawn, connection: int, board: Board, workdirs: Path
) -> None:
    # The child adopts orphans of its tasks; when it ends, the fork server adopts them.
    adopt_orphans()
    workdir = workdirs / str(spawn.number)
    workdir.mkdir(parents=True, exist_ok=True)
    if spawn.is_fresh:
        tempfile.tempdir = os.environ["TMPDIR"] = str(workdir)
    serve(app, socket.socket(fileno=connection), board, spawn.number)


def _run(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        logger.exception("a child process failed")
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """Exit even if flushing fails, whatever a task has done to logging or stdout."""
    try:
        logging.shutdown()
        sys.stdout.flush()
    finally:
        os._exit(code)
