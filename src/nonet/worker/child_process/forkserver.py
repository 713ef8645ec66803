"""The fork server: it forks child processes for one worker and enforces their limits.

It has loaded the task modules and runs no threads, so that a fork takes milliseconds and copies no
lock that a thread holds. If its worker dies, it kills all process groups, removes their
directories and ends. If the fork server is killed, the kernel kills its children
(``PR_SET_PDEATHSIG``), and the worker kills the processes that these have started.

On macOS, where this is not possible (`kernel`), it starts each child as a new interpreter instead.
Such a child kills itself when the fork server dies.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nonet.base.errors import NonetError
from nonet.base.forks import STOP_SIGNALS
from nonet.client.async_application import AsyncApplication
from nonet.worker.child_process.child import run_forked, start_child
from nonet.worker.child_process.guarding import Bounds
from nonet.worker.child_process.kernel import CAN_FORK, adopt_orphans, ended_child
from nonet.worker.child_process.set_up import load, prepare, set_up_process
from nonet.worker.child_process.workdirs import make_workdirs
from nonet.worker.children.board import Board
from nonet.worker.children.process_usage import (
    all_resident,
    children_of,
    cpu_seconds,
    descendants,
    most_resident,
)
from nonet.worker.children.wire import (
    FOR_FORK_SERVER,
    READ_BYTES,
    Exited,
    Forked,
    Frames,
    Guard,
    Kill,
    Message,
    Ping,
    Pong,
    Ready,
    SetUp,
    Spawn,
    ToForkServer,
    Unguard,
    frame,
)

logger = logging.getLogger(__name__)

_END_SECONDS = 2.0
_POLL_SECONDS = 0.005
_FDS_AT_ONCE = 16


@dataclass
class _Child:
    number: int
    pid: int
    bounds: Bounds = field(default_factory=Bounds)
    why: str = ""
    attempt: int = 0  # the attempt that it was killed for
    process: subprocess.Popen[bytes] | None = None  # None: it was forked


class ForkServer:
    """One fork server.

    Args:
        control: connection to the worker.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._cleaners: set[int] = set()  # processes that remove directories
        self._helpers: set[int] = set()  # processes that the task modules have started
        self._frames = Frames(FOR_FORK_SERVER)
        self._fds: deque[int] = deque()  # of children that are to be started
        self._unsent = bytearray()
        self._wake, self._wake_end = os.pipe()
        os.set_inheritable(control.fileno(), False)

    def run(self) -> None:
        """Serve until the worker disconnects."""
        received: list[ToForkServer] | None = []
        while received == []:
            received = self._read()
        if not received or not isinstance(set_up := received[0], SetUp):
            return
        self._handle_signals()
        adopt_orphans()  # adopt processes that tasks leave behind
        self._set_up, self._board = set_up, Board(set_up.board)
        self._workdirs = make_workdirs()
        try:
            app = _load(set_up)
            self._handle_signals()  # task modules may have changed the handlers
            self._helpers = set(children_of(os.getpid()))
        except Exception as error:  # task modules may raise anything
            logger.error("task modules cannot be loaded: %s: %s", type(error).__name__, error)
            problem = str(error) if isinstance(error, NonetError) else type(error).__name__
            self._send(Ready(problem, ""))
        else:
            self._app = app
            self._send(Ready("", str(self._workdirs)))
            self._control.setblocking(False)
            self._serve()
        finally:
            self._kill_all()
            shutil.rmtree(self._workdirs, ignore_errors=True)

    def _serve(self) -> None:
        is_parent_there = True
        while is_parent_there:
            writers = [self._control] if self._unsent else []
            wait = self._next_check() - time.monotonic()
            timeout = None if wait == math.inf else max(0.0, wait)
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wake], writers, [], timeout)
            if self._wake in ready:
                os.read(self._wake, 4096)
            if control in ready:
                is_parent_there = self._receive()
            self._enforce()
            self._reap()
            self._send_unsent()

    def _receive(self) -> bool:
        """Process the messages of the worker; return False if the worker has disconnected."""
        received = self._read()
        for message in received or ():
            self._obey(message)
        return received is not None

    def _read(self) -> list[ToForkServer] | None:
        """Return the messages that have arrived; None: the worker has disconnected."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, READ_BYTES, _FDS_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._fds += fds
        return self._frames.feed(data) if data else None

    def _obey(self, message: ToForkServer) -> None:
        if isinstance(message, Spawn):
            self._start(message, self._fds.popleft())
        elif isinstance(message, Ping):
            self._send(Pong())
        elif isinstance(message, Kill | Guard | Unguard) and (
            (found := self._children.get(message.number)) is not None
        ):
            if isinstance(message, Kill):
                self._kill(found, "asked")
            elif isinstance(message, Guard):
                found.bounds = _bounds(message, found.pid)
            else:
                found.bounds = Bounds()

    @property
    def _pids(self) -> set[int]:
        return {child.pid for child in self._children.values()}

    # ---- children -------------------------------------------------------------------------------

    def _start(self, spawn: Spawn, connection: int) -> None:
        number, process = spawn.number, None
        try:
            if CAN_FORK:
                pid = self._fork(spawn, connection)
            else:
                process = start_child(self._set_up, spawn, connection, self._workdirs)
                pid = process.pid
        except OSError as error:  # too many processes, or no memory
            logger.error("no child process: %s", error)
            self._send(Exited(number, 1, "", 0, 0.0, 0))
            return
        finally:
            os.close(connection)
        self._children[number] = _Child(number, pid, process=process)
        self._send(Forked(number, pid))

    def _fork(self, spawn: Spawn, connection: int) -> int:
        assert self._app is not None
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            self._control.close()
            os.close(self._wake)
            os.close(self._wake_end)
            where = self._board, self._workdirs
            run_forked(self._app, spawn, connection, *where, server)
        # Parent and child both call setpgid(), so that the group exists before either continues.
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _next_check(self) -> float:
        now, board = time.monotonic(), self._board
        return min(
            (
                child.bounds.next_look(board.lease(child.number), board.kill_at(child.number), now)
                for child in self._children.values()
            ),
            default=math.inf,
        )

    def _enforce(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            # Read before the deadlines, see `Board.open`.
            attempt = child.bounds.attempt or self._board.attempt(child.number)
            ends = self._board.lease(child.number), self._board.kill_at(child.number)
            memory, cpu = 0, 0.0
            if child.bounds.is_measured:
                pids = [child.pid, *descendants(child.pid)]
                memory, cpu = all_resident(pids), sum(map(cpu_seconds, pids))
            why = child.bounds.exceeded(*ends, now, memory, cpu)
            if why and not child.why:
                self._kill(child, why, attempt)

    def _kill(self, child: _Child, why: str, attempt: int = 0) -> None:
        """Kill a child and all its descendants, including those in other process groups."""
        if not child.why:
            child.why, child.attempt = why, attempt or self._board.attempt(child.number)
        started = descendants(child.pid)
        _kill_quietly(os.killpg, child.pid)
        for pid in (child.pid, *started):  # processes that have left the group
            _kill_quietly(os.kill, pid)

    def _reap(self) -> None:
        """Report children that have ended, and kill the rest of their groups.

        The group is killed before the child is reaped: until then the kernel does not reuse its id.
        """
        while True:
            try:
                ended = ended_child([*self._pids, *self._cleaners])
            except ChildProcessError:
                return
            if ended is None:
                return
            found = next((c for c in self._children.values() if c.pid == ended), None)
            if found is not None:
                self._kill(found, "")
            _, status, usage = os.wait4(ended, 0)
            self._cleaners.discard(ended)
            if found is not None:
                del self._children[found.number]
                self._kill_orphans()
                code = os.waitstatus_to_exitcode(status)
                if (process := found.process) is not None and process.stdin is not None:
                    process.returncode = code
                    process.stdin.close()
                cpu, rss = usage.ru_utime + usage.ru_stime, most_resident(usage)
                self._send(Exited(found.number, code, found.why, found.attempt, cpu, rss))
                self._remove(self._workdirs / str(found.number))

    def _remove(self, directory: Path) -> None:
        """Remove the directory of a child; another process removes it if it is not empty."""
        moved = directory.with_name(f"{directory.name}-{time.monotonic_ns()}")
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            with suppress(OSError):
                os.rename(directory, moved)  # the next child may get the same number
            try:
                cleaner = os.fork()
            except OSError:
                return  # `run` removes it at the end
            if cleaner == 0:
                shutil.rmtree(moved, ignore_errors=True)
                os._exit(0)
            self._cleaners.add(cleaner)

    def _kill_orphans(self) -> None:
        """Kill the processes that dead children left, which the fork server has adopted."""
        expected = self._pids | self._cleaners | self._helpers
        for pid in set(children_of(os.getpid())) - expected:
            for each in (pid, *descendants(pid)):
                _kill_quietly(os.kill, each)

    def _kill_all(self) -> None:
        """Kill all children and their descendants, and wait until they are dead."""
        for child in self._children.values():
            self._kill(child, "asked")
        self._helpers.clear()
        deadline = time.monotonic() + _END_SECONDS
        while children_of(os.getpid()) and time.monotonic() < deadline:
            self._reap()
            self._kill_orphans()
            time.sleep(_POLL_SECONDS)

    # ---- signals and messages -------------------------------------------------------------------

    def _handle_signals(self) -> None:
        """Let SIGCHLD wake `select`, and leave stop signals to the worker.

        The handlers do nothing. SIG_IGN would not do: programs that a task executes inherit it.
        """
        os.set_blocking(self._wake_end, False)
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)

    def _send(self, message: Message) -> None:
        self._unsent += frame(message)
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send without blocking: limits must be enforced even if the worker reads nothing."""
        while self._unsent:
            try:
                del self._unsent[: self._control.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the worker has died; `_receive` notices it
                return


def _load(set_up: SetUp) -> AsyncApplication | None:
    """Load the task modules for all children; return None if each child loads them by itself."""
    if not CAN_FORK:
        set_up_process(set_up)
        return None
    app = load(set_up)
    prepare(app)
    if threads := psutil.Process().num_threads() - 1:
        logger.warning(
            "task modules started %d threads on import: child processes are forked without them, "
            "and locks that they hold stay locked",
            threads,
        )
    # Keep the collector from writing to objects that children share: that would copy their pages.
    gc.collect()
    gc.freeze()
    return app


def _bounds(message: Guard, pid: int) -> Bounds:
    spent = sum(map(cpu_seconds, [pid, *descendants(pid)])) if message.cpu else 0.0
    return Bounds(message.attempt, message.memory, message.cpu and message.cpu + spent)


def _kill_quietly(kill: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)
