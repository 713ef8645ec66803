"""The fork server of a preloaded worker, forked too: only `preloaded.py` uses it, in its forks.

A worker for tasks in child processes starts ``python -P -m nonet.child_process``. `keep_spare`
forks that process before the worker has run a line. It waits until the worker starts it, and then
has the files, the session and the variables of a real start, and the same parent. A second fork
server, and one that is started with another command, starts for real.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from nonet.worker.children import forking

_COMMAND = [sys.executable, "-P", "-m", "nonet.child_process"]
_MESSAGE_BYTES = 1 << 20
_MOST_FILES = 64


def keep_spare() -> None:
    """Fork the spare process, and let the worker in this one find it; returns only here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _wait_and_run(theirs)
    theirs.close()
    spares = [_Spare(pid, ours)]

    def start(command: Sequence[str], **options: Any) -> _Spare | subprocess.Popen[bytes]:
        if spares and command[:-1] == _COMMAND:
            return spares.pop().start(command, **options)
        return subprocess.Popen(command, **options)

    forking.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]


class _Spare:
    """A process that waits to become a fork server; the methods are those of `subprocess.Popen`."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line

    def start(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int],
        stdin: int,
        start_new_session: bool,
    ) -> _Spare:
        """Let it run the command."""
        order = (command[-1], list(pass_fds), dict(os.environ), start_new_session)
        with open(os.devnull, "rb") as nothing, self._line:
            given = nothing.fileno() if stdin == subprocess.DEVNULL else stdin
            socket.send_fds(self._line, [marshal.dumps(order)], [given, *pass_fds])
        return self

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, so many seconds at most."""
        if self.returncode is None:
            with open(os.pidfd_open(self.pid), "rb") as process:
                ended, _, _ = select.select([process], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        """Kill it, unless its end has been seen."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _wait_and_run(line: socket.socket) -> None:
    """Run the module when the worker asks for it; end with the worker."""
    message, files, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, _MOST_FILES)
    line.close()
    if not message:
        os._exit(0)
    argument, numbers, environment, start_new_session = marshal.loads(message)
    # Above all numbers that are to be taken: no file may be closed before it has its own.
    lifted = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip([0, *numbers], lifted, strict=True):
        os.dup2(file, number)
        os.close(file)
    if start_new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    del sys.path[0]  # -P
    sys.argv = ["-m", argument]
    runpy.run_module("nonet.child_process", run_name="__main__", alter_sys=True)
    sys.exit()
