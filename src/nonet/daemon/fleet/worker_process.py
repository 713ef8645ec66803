"""A worker process of a fleet, and the line between it and the supervisor.

The line is a pair of sockets. The worker sends ``hello ID``, then ``idle`` each second while it
wants to end, ``stay`` if it must stay after all, and ``drained`` if an operator has ordered it to
drain. The supervisor answers ``go`` to let it end.
If the supervisor dies, the line closes and the worker drains. The worker's fork server and child
processes hold the worker's end open, too: once the supervisor finds the line closed, no process is
left that could execute a task of that worker.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from nonet.base.actor import process_name
from nonet.daemon.processes import daemon_command
from nonet.daemon.service import DRAIN_SIGNAL

_MOST_BYTES = 65_536


class WorkerProcess:
    """A worker process that this process has started.

    Args:
        options: options of ``task-worker`` for one worker.

    Attributes:
        id: its incarnation; empty until the worker has sent it.
        started_at: monotonic time.
        is_registered: whether Redis knew it at the last check.
        was_registered: whether Redis ever knew it.
        silent_since: when a check first found its registration missing (monotonic), or None.
        is_leaving: whether it was asked, or allowed, to end.
        was_ordered: whether it drains because an operator ordered it through Redis.
        wants_to_leave: whether it is idle and asks to end.
        is_gone: whether it and all its child processes have ended.
        port: port of its probes and metrics; 0: none.
        ends_at: monotonic time at which it becomes old.
        is_old: whether another worker must replace it.
        replaces: the old worker that it replaces.
    """

    def __init__(self, options: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Give it a process group of its own, so that Ctrl-C reaches only the supervisor.
            self._process = subprocess.Popen(
                daemon_command("task-worker", *options, "--fleet-line", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        ours.setblocking(False)
        self._line = ours
        self._heard = b""
        self.id = ""
        self.started_at = time.monotonic()
        self.is_registered = self.was_registered = False
        self.silent_since: float | None = None
        self.is_leaving = self.wants_to_leave = self.is_gone = self.was_ordered = False
        self.port, self.ends_at, self.is_old = 0, math.inf, False
        self.replaces: WorkerProcess | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def name(self) -> str:
        """``worker pid@host``, for log lines."""
        return f"worker {process_name(self.pid)}"

    @property
    def state(self) -> str:
        """``starting``, ``ready``, ``draining`` or ``silent``."""
        if self.is_leaving:
            return "draining"
        if not self.was_registered:
            return "starting"
        return "ready" if self.is_registered else "silent"

    def note_registration(self, is_registered: bool, now: float) -> None:
        """Record whether Redis knows the worker at `now`, monotonic."""
        self.is_registered = is_registered
        if is_registered:
            self.was_registered, self.silent_since = True, None
        elif self.was_registered and self.silent_since is None:
            self.silent_since = now

    def ended(self) -> int | None:
        """The exit code, negative for a signal; None while the process exists."""
        return self._process.poll()

    def listen(self) -> None:
        """Read what the worker has sent."""
        heard = b""
        try:
            heard = self._line.recv(_MOST_BYTES)
            self.is_gone = not heard
        except BlockingIOError:
            return
        except ConnectionError:
            self.is_gone = True
        self._heard += heard
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "hello":
                self.id = rest
            elif word == "idle":
                self.wants_to_leave = True
            elif word == "drained":
                self.is_leaving = self.was_ordered = True
            elif word == "stay":
                self.wants_to_leave = self.is_leaving = False

    def let_go(self) -> None:
        """Allow the worker to end, if it is still idle."""
        self.wants_to_leave, self.is_leaving = False, True
        with suppress(BlockingIOError, ConnectionError):  # it is ending anyway
            self._line.send(b"go\n")

    def drain(self) -> None:
        """Ask the worker to drain; repeated requests change nothing."""
        self.is_leaving = True
        self._process.send_signal(DRAIN_SIGNAL)

    def hurry(self) -> None:
        """End the worker at once, after `drain`."""
        self.is_leaving = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Close the line to a worker that has ended."""
        self._line.close()


class Line:
    """The worker's end of the line.

    Args:
        fd: the inherited socket.
        id: id of the worker.

    Attributes:
        may_leave: set when the supervisor allows the worker to end.
    """

    def __init__(self, fd: int, id: str) -> None:
        # Programs that tasks start must not hold the line open. The fork server inherits it
        # explicitly.
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self.may_leave = threading.Event()
        self._say(f"hello {id}")
        threading.Thread(target=self._listen, name="nonet-fleet", daemon=True).start()

    def ask_to_leave(self) -> None:
        """Tell the supervisor that this worker is idle."""
        self._say("idle")

    def stay(self) -> None:
        """Tell the supervisor that this worker has work after all."""
        self.may_leave.clear()
        self._say("stay")

    def leave_place(self) -> None:
        """Tell the supervisor that an operator drains this worker: its place stays empty."""
        self._say("drained")

    def _say(self, words: str) -> None:
        with suppress(OSError):  # the supervisor is dead, and this worker is about to drain
            self._socket.sendall(f"{words}\n".encode())

    def _listen(self) -> None:
        while self._received():
            self.may_leave.set()
        # Send a signal: it is handled even while a task blocks the event loop.
        os.kill(os.getpid(), DRAIN_SIGNAL)

    def _received(self) -> bool:
        try:
            return bool(self._socket.recv(_MOST_BYTES))
        except OSError:
            return False
