"""The process that stops an embedded server after its last user has ended.

`nonet.stores.connection.embedded` starts this file as a script, in isolated mode and without site
packages, so it imports only the standard library. Its working directory is the data directory of
the server.

The protocol consists of two file locks, because the kernel releases them however a process ends:

- ``users.lock``: every user holds it shared. The guardian waits for the exclusive lock. Once it has
  it, the server has no user and gets none until the guardian has stopped the server and ended.
- ``server.lock``: the starter locks it, and the guardian and the server inherit it. A process that
  can lock it knows that neither is alive, and may start them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType

USERS_LOCK = "users.lock"
SERVER_LOCK = "server.lock"
READY = b"ready"

_PING_INTERVAL = 0.05
_STOP_TIMEOUT = 10
_PR_SET_PDEATHSIG = 1


def main(binary: str, address: str, lock_fd: int, report_fd: int, timeout_seconds: float) -> None:
    """Start the server, report when it answers, and stop it when its last user has ended.

    Args:
        binary: path of the server program.
        address: path of its Unix socket.
        lock_fd: ``server.lock``, locked; the server inherits it.
        report_fd: pipe to the starter, for `READY` or the reason of a failure.
        timeout_seconds: how long the server may take to answer.
    """
    directory = os.getcwd()
    if os.fork():
        os._exit(0)  # the starter reaps this process, and init adopts the guardian
    os.umask(0o077)
    server = _spawn(binary, address, lock_fd)
    problem = _wait_until_ready(server, address, timeout_seconds)
    if problem:
        _stop(server)
        os.write(report_fd, problem.encode())
        return

    def leave_if_ended(_signal: int = 0, _frame: FrameType | None = None) -> None:
        if server.poll() is not None:
            sys.exit(f"the server ended with exit code {server.returncode} while it had users")

    signal.signal(signal.SIGCHLD, leave_if_ended)
    leave_if_ended()
    os.write(report_fd, READY)
    os.close(report_fd)
    users = os.open(USERS_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_EX)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _stop(server)
    if os.path.dirname(address) != directory:
        os.rmdir(os.path.dirname(address))  # the short directory, see embedded.py


def answers(address: str) -> bool:
    """Whether a server that has loaded its data answers PING on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(address)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _spawn(binary: str, address: str, lock_fd: int) -> subprocess.Popen[bytes]:
    options = {
        "port": "0",
        "unixsocket": address,
        "unixsocketperm": "700",
        "dir": ".",
        "appendonly": "yes",
        # Plain commands, which other servers and older ones can read, too.
        "aof-use-rdb-preamble": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return subprocess.Popen([binary, *arguments], pass_fds=[lock_fd], preexec_fn=die_with_me())


def _wait_until_ready(server: subprocess.Popen[bytes], address: str, timeout_seconds: float) -> str:
    deadline = time.monotonic() + timeout_seconds
    while not answers(address):
        if server.poll() is not None:
            return f"it ended with exit code {server.returncode}"
        if time.monotonic() > deadline:
            return f"it did not answer within {timeout_seconds:g} s"
        time.sleep(_PING_INTERVAL)
    return ""


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def die_with_me() -> Callable[[], None] | None:
    """Make a ``preexec_fn`` that lets the kernel kill the child when this process ends.

    More precisely, when the thread that starts the child ends. Only Linux supports this. Elsewhere
    a killed guardian leaves its server running.
    """
    prctl, parent = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()
    if prctl is None:
        return None

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # killed between fork and prctl
            os._exit(1)

    return arm


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
