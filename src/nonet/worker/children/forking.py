"""The worker's side of the fork server: start it, request children, learn how they ended.

The fork server (`worker/child_process`) has loaded the task modules and runs no threads, so that
forks are fast and safe. It is a separate process, so that it enforces the limits of its children
even if the worker hangs or dies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nonet.config.environment import Secret
from nonet.config.settings import Settings
from nonet.tasks.middleware import Middlewares
from nonet.telemetry.logs import process_description
from nonet.worker.children.board import CELLS, Board
from nonet.worker.children.wire import (
    OF_CHILD,
    OF_FORK_SERVER,
    READ_BYTES,
    Channel,
    Exited,
    Forked,
    Frames,
    FromForkServer,
    Hello,
    Kill,
    Message,
    Ping,
    Pong,
    Ready,
    SetUp,
    Spawn,
    frame,
)

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
# A child is ready within milliseconds; on an overloaded machine it may take minutes.
_FORK_SECONDS = 20.0
_LONGEST_FORK_SECONDS = 300.0
_FORKS_AT_ONCE = 16
_PING_SECONDS = 30.0
_END_SECONDS = 3.0
# For the first message, which the fork server reads only when it has started, and hundreds more.
_UNREAD_BYTES = 256 * 1024
# File descriptors that each fork server and its children inherit: the connection to a supervisor.
# It closes once all of these processes are dead, which tells the supervisor.
HELD_OPEN: set[int] = set()


class ForkServerError(Exception):
    """No child process could be started; the text says why."""


@dataclass(eq=False)
class Child:
    """A child process.

    Attributes:
        number: the index of its deadline on the board.
        server: the fork server that started it.
        exited: how it ended; None if its fork server died, too.
        inbox: its messages; None after it has disconnected.
        channel: the connection to it.
        attempts: how many attempts it has received.
        is_busy: whether it runs an attempt, or code of the last one still runs.
        cpu: CPU time of its earlier attempts, in seconds.
        pid: its process id; 0 until it is known.
        had_received: whether it had received its last attempt when it ended.
        has_processes: whether it had child processes after its last attempt.
        peak: the most memory in bytes of its last attempt, unless that is unknown.
    """

    number: int
    server: ForkServer
    exited: asyncio.Future[Exited | None]
    inbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    attempts: int = 0
    is_busy: bool = False
    cpu: float = 0.0
    pid: int = 0
    had_received: bool = False
    has_processes: bool = True
    peak: float = math.inf
    channel: Channel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.channel = Channel(OF_CHILD, self.inbox.put_nowait)

    @property
    def has_received(self) -> bool:
        """Whether it has received its last attempt: then the task may be to blame for its death."""
        return self.had_received or self.server.board.has_received(self.number)


class ForkServer:
    """One fork server process; a second start needs a new object.

    Args:
        settings: settings of the worker.
        redis_url: URL of its broker.
        middlewares: those of its application, of which children make their own.

    Attributes:
        board: the deadlines of its children.
        in_flight: how many attempts its children run, or ran when it died.
    """

    def __init__(self, settings: Settings, redis_url: str, middlewares: Middlewares) -> None:
        self._settings = settings
        self._middlewares = middlewares
        self._redis_url = redis_url
        self.board = Board()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._frames = Frames(OF_FORK_SERVER)
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._children: dict[int, Child] = {}
        # Reuse a number as late as possible: it names a directory.
        self._free = deque(range(CELLS))
        self._workdirs = ""
        self._pong = asyncio.Event()
        self._forks = asyncio.Semaphore(_FORKS_AT_ONCE)
        self.in_flight = 0

    @property
    def is_alive(self) -> bool:
        """Whether it is running and connected."""
        return self._control is not None

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children; from any thread."""
        return [child.pid for child in list(self._children.values()) if child.pid]

    async def start(self) -> None:
        """Start the process and wait until it has loaded the task modules.

        Raises:
            ForkServerError: it did not start, or could not load the modules.
        """
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        try:
            # -P: import nothing from the current directory of the worker.
            module = "nonet.worker.child_process"
            command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                command,
                pass_fds=(theirs.fileno(), self.board.fd, *HELD_OPEN),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # signals of a terminal go to the worker only
            )
        except OSError as error:
            ours.close()
            raise ForkServerError(f"no fork server could be started: {error}") from None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._receive)
        level = logger.getEffectiveLevel()
        settings = _as_data(self._settings) | {"redis_url": self._redis_url}
        about = dict(process_description())
        recipes, url_file = self._middlewares.recipes, self._settings.redis_url.file
        self._send(SetUp(settings, url_file, sys.path, level, about, self.board.fd, recipes))
        if left_out := self._middlewares.left_out:
            logger.warning(
                "child processes run without middleware %s of Nonet.use: define it in a module "
                "that they can import, and give it plain data",
                ", ".join(left_out),
            )
        try:
            ready = await asyncio.wait_for(asyncio.shield(self._ready), _START_SECONDS)
        except TimeoutError:
            await self.close()
            raise ForkServerError(
                f"the fork server was not ready after {_START_SECONDS:g} s"
            ) from None
        if ready.problem:
            await self.close()
            raise ForkServerError(f"the fork server cannot run tasks: {ready.problem}")
        self._workdirs = ready.workdirs

    async def spawn(self, *, is_fresh: bool) -> Child:
        """Start a child process.

        Args:
            is_fresh: it runs one attempt only.

        Raises:
            ForkServerError: no child could be started.
        """
        async with self._forks:
            return await self._spawn(is_fresh=is_fresh)

    async def _spawn(self, *, is_fresh: bool) -> Child:
        if not self._free:
            raise ForkServerError(f"the limit of {CELLS} child processes is reached")
        ours, theirs = socket.socketpair()
        number = self._free.popleft()
        self.board.reset(number)
        loop = asyncio.get_running_loop()
        # Registered before the request: reports about the child may arrive before this continues.
        child = self._children[number] = Child(number, self, loop.create_future())
        try:
            self._send(Spawn(number, is_fresh), theirs.fileno())
        except ForkServerError:
            del self._children[number]
            self._free.append(number)
            ours.close()
            raise
        finally:
            theirs.close()
        await child.channel.open(ours)
        await self._wait_until_ready(child)
        return child

    async def _wait_until_ready(self, child: Child) -> None:
        """Wait for the child's `Hello`; a death after it is blamed on the attempt.

        Raises:
            ForkServerError: the child died or is not ready, or the fork server hangs.
        """
        message: object = None
        began = time.monotonic()
        while message is None and time.monotonic() - began < _LONGEST_FORK_SECONDS:
            try:
                async with asyncio.timeout(_FORK_SECONDS):
                    message = await child.inbox.get() or "its end"
            except TimeoutError:
                await self._ping()
        if not isinstance(message, Hello):
            self.ask(Kill(child.number))
            child.channel.close()
            reason = "a child process died before it received a task"
            late = f"no child process was ready in {_LONGEST_FORK_SECONDS:g} s"
            raise ForkServerError(reason if message else late)

    async def _ping(self) -> None:
        """Check that the fork server answers; kill it otherwise, as it enforces no limits."""
        self._pong.clear()
        self.ask(Ping())
        try:
            await asyncio.wait_for(self._pong.wait(), _PING_SECONDS)
        except TimeoutError:
            logger.error("the fork server has not answered for %g s: it is killed", _PING_SECONDS)
            self.kill()
            raise ForkServerError("the fork server does not answer") from None
        logger.warning("no child process was ready in %g s: this machine is slow", _FORK_SECONDS)

    @staticmethod
    def kill_group(child: Child) -> None:
        """Kill the process group of a child, unless its end was reported."""
        if not child.exited.done():
            _kill_group(child.pid)

    def kill(self) -> None:
        """Kill a fork server that hangs; the kernel kills its children with it."""
        if self._process is not None:
            self._process.kill()

    def ask(self, message: Message) -> None:
        """Send a request; if the fork server has died, its children are dead, too."""
        try:
            self._send(message)
        except ForkServerError as error:
            logger.debug("request not sent: %s", error)

    def workdir(self, child: Child) -> str:
        """Return the directory in which a child may create working directories."""
        return os.path.join(self._workdirs, str(child.number))

    async def close(self) -> None:
        """End the fork server and all its children."""
        channels = [child.channel for child in self._children.values()]
        self._disconnect()
        process, self._process = self._process, None
        if process is None:
            self.board.close()
            return
        try:
            await asyncio.to_thread(process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        for channel in channels:
            channel.close()
        self.board.close()
        await self._remove_workdirs()

    def _send(self, message: Message, *fds: int) -> None:
        if self._control is None:
            raise ForkServerError("the fork server has died")
        data = frame(message)
        try:
            if socket.send_fds(self._control, [data], fds) < len(data):
                self._control.shutdown(socket.SHUT_RDWR)  # it could not read the next message
                raise BlockingIOError("its buffer is full")
        except OSError as error:  # it has died, or hangs and its buffer is full
            raise ForkServerError(f"the fork server accepts no requests: {error}") from None

    def _receive(self) -> None:
        """Process the messages that have arrived."""
        if self._control is None:
            return
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
        for message in self._frames.feed(data):
            self._process_message(message)

    def _process_message(self, message: FromForkServer) -> None:
        if isinstance(message, Ready):
            self._ready.set_result(message)
        elif isinstance(message, Pong):
            self._pong.set()
        elif isinstance(message, Forked):
            if (child := self._children.get(message.number)) is not None:
                child.pid = message.pid
        else:
            child = self._children.pop(message.number, None)
            if child is not None:
                child.had_received = self.board.has_received(child.number)
                self._free.append(child.number)
                _set(child.exited, message)

    def _disconnect(self) -> None:
        """Disconnect, and kill its children and the processes that they started."""
        control, self._control = self._control, None
        if control is None:
            return
        asyncio.get_running_loop().remove_reader(control)
        with suppress(OSError):
            # shutdown() ends the connection even if a process that a task forked has a copy of it.
            control.shutdown(socket.SHUT_RDWR)
        control.close()
        if not self._ready.done():
            self._ready.set_result(Ready("it died while it loaded the task modules", ""))
        for child in self._children.values():
            _kill_group(child.pid)
            child.had_received = self.board.has_received(child.number)
            _set(child.exited, None)
        self._children.clear()

    async def _remove_workdirs(self) -> None:
        """Remove the directories in case the fork server was killed before it could."""
        if self._workdirs:
            await asyncio.to_thread(shutil.rmtree, self._workdirs, ignore_errors=True)


def _as_data(settings: Settings) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, Secret):
            value = value.get_secret_value()
        data[name] = str(value) if isinstance(value, Path) else value
    return data


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _kill_group(pid: int) -> None:
    try:
        if pid:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it is dead
