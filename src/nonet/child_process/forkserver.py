"""The fork server: it forks child processes for one worker and enforces their limits.

It has loaded the task modules and runs no threads, so that a fork takes milliseconds and copies no
lock that a thread holds. If its worker dies, it kills all process groups, removes their
directories and ends. If the fork server is killed, the kernel kills its children
(``PR_SET_PDEATHSIG``), and the worker kills the processes that these have started.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from nonet.app import Nonet
from nonet.base.errors import NonetError
from nonet.child_process.guarding import Bounds
from nonet.child_process.serving import serve
from nonet.config.settings import plain_settings
from nonet.telemetry.logs import describe_process, set_up_logs
from nonet.telemetry.tracing import are_traces_wanted, load_exporters
from nonet.worker.children.board import Board
from nonet.worker.children.processes import all_resident, children_of, cpu_seconds, descendants
from nonet.worker.children.wire import (
    Exited,
    Forked,
    Guard,
    Kill,
    Message,
    Ping,
    Pong,
    Ready,
    SetUp,
    Spawn,
    packet_for_fork_server,
    send_packet,
)

logger = logging.getLogger(__name__)

_END_SECONDS = 2.0
_POLL_SECONDS = 0.005
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class _Child:
    number: int
    pid: int
    bounds: Bounds = field(default_factory=Bounds)
    fence: str = ""
    why: str = ""


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
        self._unsent: deque[Message] = deque()
        self._wake, self._wake_end = os.pipe()

    def run(self) -> None:
        """Serve until the worker disconnects."""
        set_up, _ = packet_for_fork_server(self._control)
        if not isinstance(set_up, SetUp):
            return
        self._handle_signals()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # adopt the processes that tasks leave behind
        self._board = Board(set_up.board)
        self._workdirs = Path(tempfile.mkdtemp(prefix="nonet-children-"))
        try:
            application = _load(set_up)
            self._handle_signals()  # task modules may have changed the handlers
            self._helpers = set(children_of(os.getpid()))
        except Exception as error:  # task modules may raise anything
            logger.error("task modules cannot be loaded: %s: %s", type(error).__name__, error)
            problem = str(error) if isinstance(error, NonetError) else type(error).__name__
            self._send(Ready(problem, ""))
        else:
            self._application = application
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
        """Process one message of the worker; return False if the worker has disconnected."""
        try:
            message, fds = packet_for_fork_server(self._control)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if message is None:
            return False
        if isinstance(message, Spawn):
            self._fork(message.number, message.is_fresh, fds[0])
        elif isinstance(message, Ping):
            self._send(Pong())
        elif (child := self._children.get(message.number)) is not None:  # type: ignore[union-attr]  # SetUp came first
            if isinstance(message, Kill):
                self._kill(child, "asked")
            elif isinstance(message, Guard):
                child.bounds, child.fence = _bounds(message, child.pid), message.fence
            else:
                child.bounds = Bounds()
        return True

    # ---- children -------------------------------------------------------------------------------

    def _fork(self, number: int, is_fresh: bool, connection: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            logger.error("no child process: %s", error)
            os.close(connection)
            self._send(Exited(number, 1, "", "", 0.0, 0))
            return
        if pid == 0:
            self._become_child(number, is_fresh, connection, server)
        os.close(connection)
        # Parent and child both call setpgid(), so that the group exists before either continues.
        with suppress(OSError):
            os.setpgid(pid, pid)
        self._children[number] = _Child(number, pid)
        self._send(Forked(number, pid))

    def _become_child(self, number: int, is_fresh: bool, connection: int, server: int) -> NoReturn:
        code = 1
        try:
            self._serve_as_child(number, is_fresh, connection, server)
            code = 0
        except BaseException:
            logger.exception("a child process failed")
        finally:
            _end_child(code)

    def _serve_as_child(self, number: int, is_fresh: bool, connection: int, server: int) -> None:
        with suppress(OSError):
            os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # the fork server died before prctl()
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Processes that a task forks get the default signal handlers.
        os.register_at_fork(after_in_child=_restore_signals)
        self._control.close()
        os.close(self._wake)
        os.close(self._wake_end)
        # The child adopts orphans of its tasks; when it ends, the fork server adopts them.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        workdir = self._workdirs / str(number)
        workdir.mkdir(parents=True, exist_ok=True)
        if is_fresh:
            tempfile.tempdir = os.environ["TMPDIR"] = str(workdir)
        serve(self._application, socket.socket(fileno=connection), self._board, number)

    def _next_check(self) -> float:
        now = time.monotonic()
        times = (c.bounds.next_look(self._board[c.number], now) for c in self._children.values())
        return min(times, default=math.inf)

    def _enforce(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            memory, cpu = 0, 0.0
            if child.bounds.is_measured:
                pids = [child.pid, *descendants(child.pid)]
                memory, cpu = all_resident(pids), sum(map(cpu_seconds, pids))
            why = child.bounds.exceeded(self._board[child.number], now, memory, cpu)
            if why and not child.why:
                self._kill(child, why)

    def _kill(self, child: _Child, why: str) -> None:
        """Kill a child and all its descendants, including those in other process groups."""
        child.why = child.why or why
        started = descendants(child.pid)
        _kill_quietly(os.killpg, child.pid)
        for pid in (child.pid, *started):  # those that have left the group
            _kill_quietly(os.kill, pid)

    def _reap(self) -> None:
        """Report children that have ended, and kill the rest of their groups.

        The group is killed before the child is reaped: until then the kernel does not reuse its id.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = next((c for c in self._children.values() if c.pid == ended.si_pid), None)
            if child is not None:
                self._kill(child, "")
            _, status, usage = os.wait4(ended.si_pid, 0)
            self._cleaners.discard(ended.si_pid)
            if child is not None:
                del self._children[child.number]
                self._kill_orphans()
                code = os.waitstatus_to_exitcode(status)
                cpu, rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
                self._send(Exited(child.number, code, child.why, child.fence, cpu, rss))
                self._remove(self._workdirs / str(child.number))

    def _remove(self, directory: Path) -> None:
        """Remove the directory of a child; another process removes one that is not empty."""
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
        expected = {child.pid for child in self._children.values()} | self._cleaners | self._helpers
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
        for number in (signal.SIGCHLD, *_STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)

    def _send(self, message: Message) -> None:
        self._unsent.append(message)
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send without blocking: limits must be enforced even if the worker reads nothing."""
        while self._unsent:
            try:
                send_packet(self._control, self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the worker has died; `_receive` notices it
                return
            self._unsent.popleft()


def _load(set_up: SetUp) -> Nonet:
    sys.path[:] = set_up.path
    settings = plain_settings(**set_up.settings)
    set_up_logs(settings.log_format, set_up.log_level)
    describe_process(**set_up.about)
    with suppress(ImportError):  # the worker has logged that the extra is missing
        if are_traces_wanted():
            load_exporters()  # here once, instead of in each child
    application = Nonet(settings)
    application.prepares_sqlite = False
    _import_for_children(application)
    if threads := len(os.listdir("/proc/self/task")) - 1:
        logger.warning(
            "task modules started %d threads on import: child processes are forked without them, "
            "and locks that they hold stay locked",
            threads,
        )
    # Keep the collector from writing to objects that children share: that would copy their pages.
    gc.collect()
    gc.freeze()
    return application


def _import_for_children(application: Nonet) -> None:
    """Import the modules that each child would otherwise import before its first task."""
    modules = ["email.parser", "uvloop.loop"]  # redis-py needs the first one when it connects
    if any(item.cls.durable for item in application.registry):
        modules.append("nonet.stores.sql.outbox")
    for module in modules:
        with suppress(ImportError):  # uvloop is optional
            import_module(module)


def _bounds(message: Guard, pid: int) -> Bounds:
    spent = sum(map(cpu_seconds, [pid, *descendants(pid)])) if message.cpu else 0.0
    return Bounds(message.kill_at, message.memory, message.cpu and message.cpu + spent)


def _end_child(code: int) -> NoReturn:
    """Exit even if flushing fails, whatever a task has done to logging or stdout."""
    try:
        logging.shutdown()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _kill_quietly(kill: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)
