"""A worker process of a fleet, as its supervisor sees it, and the line between the two.

Over a pair of sockets the worker says ``hello ID``, then ``idle`` each second while it wants to
end, and ``stay`` if it does not end after all; the supervisor lets it end with ``go``. If the
supervisor dies, however that happens, the worker sees the end of the line and drains. The worker's
fork server and child processes hold its end of the line open, too: when the supervisor sees the
end, nothing is left that could execute a task.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from nonet.daemon.service import DRAIN_SIGNAL

_START = "from nonet.cli.daemons.worker import main; main()"
_MOST_BYTES = 65_536


class WorkerProcess:
    """A worker process that this process has started.

    Args:
        options: of ``task-worker``, for one worker.

    Attributes:
        id: its incarnation, once it has said so.
        started_at: by the steady clock.
        is_registered: whether Redis knew of it at the last look.
        was_registered: whether it ever did.
        silent_since: when Redis was found not to know of it any more.
        is_leaving: whether it was asked to end, or may.
        wants_to_leave: whether it has nothing to do.
        is_gone: whether its child processes have ended, too.
    """

    def __init__(self, options: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: nothing of the working directory is imported that a console script would not. A
            # group of its own: Ctrl-C is for the supervisor.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _START,
                    *options,
                    "--fleet-line",
                    str(theirs.fileno()),
                ],
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
        self.is_leaving = self.wants_to_leave = self.is_gone = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def name(self) -> str:
        """For people."""
        return f"worker {self.id or '(starting)'} (pid {self.pid})"

    def ended(self) -> int | None:
        """How it ended, negative for a signal; None: it runs, or is frozen."""
        return self._process.poll()

    def listen(self) -> None:
        """Take note of what it has said."""
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
            elif word == "stay":
                self.wants_to_leave = self.is_leaving = False

    def let_go(self) -> None:
        """Allow it to end, if it still has nothing to do."""
        self.wants_to_leave, self.is_leaving = False, True
        with suppress(BlockingIOError, ConnectionError):  # it ends anyhow
            self._line.send(b"go\n")

    def drain(self) -> None:
        """Ask it to end, as often as one likes."""
        self.is_leaving = True
        self._process.send_signal(DRAIN_SIGNAL)

    def hurry(self) -> None:
        """After `drain`: let it end at once."""
        self.is_leaving = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()

    def close(self) -> None:
        """Forget one that has ended."""
        self._line.close()


class Line:
    """The worker's end of the line.

    Args:
        fd: the socket that it has inherited.
        id: of the worker.

    Attributes:
        may_leave: set by the supervisor's leave.
    """

    def __init__(self, fd: int, id: str) -> None:
        # Programs that tasks start must not hold the line open; the fork server gets it by name.
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self.may_leave = threading.Event()
        self._say(f"hello {id}")
        threading.Thread(target=self._listen, name="nonet-fleet", daemon=True).start()

    def ask_to_leave(self) -> None:
        """Say that there is nothing to do."""
        self._say("idle")

    def stay(self) -> None:
        """Say that there is something to do after all."""
        self.may_leave.clear()
        self._say("stay")

    def _say(self, words: str) -> None:
        with suppress(OSError):  # the supervisor is gone: this worker is about to drain
            self._socket.sendall(f"{words}\n".encode())

    def _listen(self) -> None:
        while self._hears():
            self.may_leave.set()
        # By a signal, as that is heeded although a task blocks the event loop.
        os.kill(os.getpid(), DRAIN_SIGNAL)

    def _hears(self) -> bool:
        try:
            return bool(self._socket.recv(_MOST_BYTES))
        except OSError:
            return False
