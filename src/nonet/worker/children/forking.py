"""The worker's side of its fork server: starting it, asking it, hearing of the end of children.

The fork server (`nonet.child_process`) has the task modules loaded and no threads, so that forking
it is fast and safe. It guards what it forks, and is a process of its own so that it can do that
whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from nonet.config.settings import Settings
from nonet.telemetry.logs import process_description
from nonet.worker.children.board import CELLS, Board
from nonet.worker.children.wire import (
    Channel,
    Exited,
    Forked,
    Hello,
    Kill,
    Message,
    Ping,
    Pong,
    Ready,
    SetUp,
    Spawn,
    packet_of_fork_server,
    send_packet,
)

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
# A child greets within milliseconds; on a machine that does not keep up it takes minutes.
_FORK_SECONDS = 20.0
_LONGEST_FORK_SECONDS = 300.0
_FORKS_AT_ONCE = 16
_PING_SECONDS = 30.0
_END_SECONDS = 3.0
# File descriptors that each fork server of this process and its children hold open while they
# live: the line to a supervisor, which learns by its end that all of them are dead.
HELD_OPEN: set[int] = set()


class ForkServerError(Exception):
    """There is no child process to be had; the text says why."""


@dataclass(eq=False)
class Child:
    """A child process.

    Attributes:
        number: its cell of the board.
        server: which has forked it.
        inbox: its messages; None: it has closed the connection.
        exited: how it ended; None: nobody knows, its fork server is gone.
        attempts: how many it has made.
        is_busy: it makes one, or something of the last one goes on.
        cpu: seconds of CPU time that these took.
        pid: of its process; 0: not known yet.
    """

    number: int
    server: ForkServer
    exited: asyncio.Future[Exited | None]
    inbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    attempts: int = 0
    is_busy: bool = False
    cpu: float = 0.0
    pid: int = 0
    channel: Channel = field(init=False)
    pump: asyncio.Task[None] | None = field(default=None, repr=False)


class ForkServer:
    """One fork server, from its start to its end; it is not started twice.

    Args:
        settings: of the worker.
        redis_url: where its broker is.

    Attributes:
        board: what its children are guarded by.
        in_flight: attempts that its children make; of one that is gone: that they made then.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self.board = Board()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._children: dict[int, Child] = {}
        self._free = list(range(CELLS - 1, -1, -1))
        self._workdirs = ""
        self._pong = asyncio.Event()
        self._patience = _FORK_SECONDS
        self._at_once = _FORKS_AT_ONCE
        self._forks = asyncio.Semaphore(_FORKS_AT_ONCE)
        self.in_flight = 0

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._control is not None

    @property
    def pids(self) -> list[int]:
        """Of the children that live; from any thread."""
        return [child.pid for child in list(self._children.values()) if child.pid]

    async def start(self) -> None:
        """Start it and wait until it has loaded the task modules.

        Raises:
            ForkServerError: it cannot be started, or says why it cannot fork.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # -P: nothing is imported from the directory in which the worker happens to be.
            command = [sys.executable, "-P", "-m", "nonet.child_process", str(theirs.fileno())]
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                command,
                pass_fds=(theirs.fileno(), self.board.fd, *HELD_OPEN),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends to all is meant for the worker
            )
        except OSError as error:
            ours.close()
            raise ForkServerError(f"no fork server could be started: {error}") from None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        level = logging.getLogger().getEffectiveLevel()
        settings = _as_data(self._settings) | {"redis_url": self._redis_url}
        about = dict(process_description())
        self._send(SetUp(settings, sys.path, level, about, self.board.fd))
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
        """A new child process.

        Args:
            is_fresh: for one attempt.

        Raises:
            ForkServerError: there is none to be had.
        """
        async with self._forks:
            return await self._spawn(is_fresh=is_fresh)

    async def _spawn(self, *, is_fresh: bool) -> Child:
        if not self._free:
            raise ForkServerError(f"{CELLS} child processes are enough")
        ours, theirs = socket.socketpair()
        number = self._free.pop()
        self.board.clear(number)
        loop = asyncio.get_running_loop()
        # Before it is asked for: what is told of it may be here sooner than this goes on.
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
        child.channel = await Channel.of_worker(ours)
        child.pump = loop.create_task(_pump(child), name=f"messages of child {number}")
        await self._greeted(child)
        return child

    async def _greeted(self, child: Child) -> None:
        """Wait until a child can take an attempt: what kills it from then on is the attempt."""
        message: object = None
        waited = 0.0
        while message is None and waited < _LONGEST_FORK_SECONDS:
            patience = self._patience
            try:
                async with asyncio.timeout(patience):
                    message = await child.inbox.get() or "its end"
            except TimeoutError:
                waited += patience
                await self._slow_down(patience)
        if not isinstance(message, Hello):
            self.ask(Kill(child.number))
            child.channel.close()
            reason = "a child ended before it was given a task"
            raise ForkServerError(reason if message else f"no child was ready in {waited:g} s")
        self._patience = max(_FORK_SECONDS, self._patience / 2)
        self._fork_at_once(2 * self._at_once)

    async def _slow_down(self, patience: float) -> None:
        """A child is late: wait longer and fork fewer at a time, if the fork server answers.

        Raises:
            ForkServerError: it does not, so it guards no child either: it is killed.
        """
        self._pong.clear()
        self.ask(Ping())
        try:
            await asyncio.wait_for(self._pong.wait(), _PING_SECONDS)
        except TimeoutError:
            logger.error("the fork server has not answered for %g s: it is killed", _PING_SECONDS)
            self.kill()
            raise ForkServerError("the fork server does not answer") from None
        if patience == self._patience:  # not yet by another one that was late at the same time
            self._patience = min(2 * patience, _LONGEST_FORK_SECONDS)
            self._fork_at_once(self._at_once // 2)
            logger.warning("no child process was ready in %g s: this machine is slow", patience)

    def _fork_at_once(self, number: int) -> None:
        number = min(max(1, number), _FORKS_AT_ONCE)
        if number != self._at_once:
            self._at_once, self._forks = number, asyncio.Semaphore(number)

    @staticmethod
    def kill_group(child: Child) -> None:
        """Kill the process group of a child, if the fork server has not done so."""
        if not child.exited.done():
            _kill_group(child.pid)

    def kill(self) -> None:
        """End a fork server that does nothing any more; the kernel ends its children."""
        if self._process is not None:
            self._process.kill()

    def ask(self, message: Message) -> None:
        """Send `Guard`, `Unguard` or `Kill`; if nobody hears it, its children are dead anyway."""
        try:
            self._send(message)
        except ForkServerError as error:
            logger.debug("not asked: %s", error)

    def workdir(self, child: Child) -> str:
        """Where the directory of an attempt of a child may be made."""
        return os.path.join(self._workdirs, str(child.number))

    async def close(self) -> None:
        """End it, and all its children with it."""
        pumps = [child.pump for child in self._children.values() if child.pump is not None]
        self._lose()
        process, self._process = self._process, None
        if process is None:
            self.board.close()
            return
        try:
            await asyncio.to_thread(process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        if pumps:
            await asyncio.wait(pumps, timeout=_END_SECONDS)
        self.board.close()
        await self._remove_workdirs()

    def _send(self, message: Message, *fds: int) -> None:
        if self._control is None:
            raise ForkServerError("the fork server is gone")
        try:
            send_packet(self._control, message, fds)
        except OSError as error:  # gone, or frozen: its buffer is full
            raise ForkServerError(f"the fork server does not listen: {error}") from None

    def _hear(self) -> None:
        """Take one message; the loop calls again while there are more."""
        if self._control is None:
            return
        try:
            message = packet_of_fork_server(self._control)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._lose()
        elif isinstance(message, Ready):
            self._ready.set_result(message)
        elif isinstance(message, Pong):
            self._pong.set()
        elif isinstance(message, Forked):
            if (child := self._children.get(message.number)) is not None:
                child.pid = message.pid
        else:
            self._bury(message)

    def _bury(self, exited: Exited) -> None:
        child = self._children.pop(exited.number, None)
        if child is not None:
            self._free.append(child.number)
            _set(child.exited, exited)

    def _lose(self) -> None:
        """It is gone, or is to go: so are its children; what they started, too."""
        control, self._control = self._control, None
        if control is None:
            return
        asyncio.get_running_loop().remove_reader(control)
        with suppress(OSError):
            # The fork server ends, although a copy of this process, which a task has forked, has
            # the connection, too.
            control.shutdown(socket.SHUT_RDWR)
        control.close()
        if not self._ready.done():
            self._ready.set_result(Ready("it ended while it loaded the task modules", ""))
        for child in self._children.values():
            _kill_group(child.pid)
            _set(child.exited, None)
        self._children.clear()

    async def _remove_workdirs(self) -> None:
        """It does that itself unless it was killed."""
        if self._workdirs:
            await asyncio.to_thread(shutil.rmtree, self._workdirs, ignore_errors=True)


def _as_data(settings: Settings) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        data[name] = str(value) if isinstance(value, Path) else value
    return data


async def _pump(child: Child) -> None:
    while (message := await child.channel.receive()) is not None:
        child.inbox.put_nowait(message)
    child.inbox.put_nowait(None)
    child.channel.close()


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _kill_group(pid: int) -> None:
    try:
        if pid:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it has ended
