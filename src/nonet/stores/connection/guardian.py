"""The process between an embedded server and its users: it stops the server after the last one.

`nonet.stores.connection.embedded` starts this file as a script, in isolated mode and without site
packages, so only the standard library is imported. Its working directory is the server's data
directory.

Two file locks carry the whole protocol, because the kernel releases them however a process ends:

- ``users.lock``: every user holds it shared. The guardian waits to hold it alone: then nobody
  uses the server, and nobody can begin to until the guardian has stopped it and is gone.
- ``server.lock``: locked by the starter, inherited by the guardian and by the server. Who can
  lock it knows that neither is alive, and may start them.
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
    """Start the server, report that it answers, and stop it when its last user is gone.

    Args:
        binary: the server to run.
        address: path of its Unix socket.
        lock_fd: ``server.lock``, locked; the server inherits it.
        report_fd: pipe to the starter; gets `READY`, or the reason of the failure.
        timeout_seconds: how long the server may take to answer.
    """
    directory = os.getcwd()
    if os.fork():
        os._exit(0)  # the starter reaps this process; the guardian belongs to init
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
        os.rmdir(os.path.dirname(address))  # made for a socket whose path would be too long


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
        # Plain commands: the data can be read by another server, or an older one, next time.
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
    """A ``preexec_fn`` by which the kernel kills a child as soon as this process ends.

    More exactly: when the thread ends that starts the child. Only Linux can; elsewhere a killed
    guardian leaves its server to the next `kill`.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # killed between fork and prctl
            os._exit(1)

    return arm


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
