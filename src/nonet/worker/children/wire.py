"""The messages between worker, fork server and child processes, and their encoding.

Between worker and fork server, a message is one packet and may carry a file descriptor. Between
worker and child, it is a frame of a stream: four bytes of length, then the message. All messages
are MessagePack of the structures below; decoding imports and executes nothing.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from nonet.stores.queue.deliveries import Delivery
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.crashes import Crash

_LENGTH = struct.Struct("<I")
# A longer frame is invalid: envelopes and results have at most 4 MiB.
_MOST_BYTES = 64 * 1024 * 1024
# How long the rest of a frame may take.
_REST_SECONDS = 5.0
PACKET_BYTES = 128 * 1024


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages."""


# ---- worker → fork server ------------------------------------------------------------------------


class SetUp(Message, frozen=True):
    """The first message.

    Attributes:
        settings: settings of the worker, by name.
        path: ``sys.path`` of the worker.
        log_level: level of the root logger.
        about: fields of the worker for each JSON log line.
        board: file descriptor of the `nonet.worker.children.board.Board`.
    """

    settings: dict[str, Any]
    path: list[str]
    log_level: int
    about: dict[str, str]
    board: int


class Spawn(Message, frozen=True):
    """Fork child `number`. The packet carries the child's end of its connection.

    Attributes:
        is_fresh: the child runs one attempt, with its own directory for temporary files.
    """

    number: int
    is_fresh: bool = False


class Guard(Message, frozen=True):
    """Enforce limits on child `number`, which begins an attempt. Its deadline is on the board.

    Attributes:
        fence: fence of the delivery.
        kill_at: when to kill it in any case (monotonic); 0: never.
        memory: bytes that it may use; 0: no limit.
        cpu: seconds of CPU time that it may use from now on; 0: no limit.
    """

    number: int
    fence: str
    kill_at: float = 0.0
    memory: int = 0
    cpu: float = 0.0


class Unguard(Message, frozen=True):
    """The attempt of child `number` has ended."""

    number: int


class Kill(Message, frozen=True):
    """Kill the process group of child `number`."""

    number: int


class Ping(Message, frozen=True):
    """Ask the fork server for a `Pong`, to check that it works."""


ToForkServer = SetUp | Spawn | Guard | Unguard | Kill | Ping

# ---- fork server → worker ------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """The fork server has loaded the task modules, or failed to.

    Attributes:
        problem: why it cannot fork, or empty.
        workdirs: parent of the working directories of attempts.
    """

    problem: str
    workdirs: str


class Forked(Message, frozen=True):
    """Child `number` has a process."""

    number: int
    pid: int


class Exited(Message, frozen=True):
    """Child `number` and its process group have ended.

    Attributes:
        status: exit code; negative: the signal, see `os.waitstatus_to_exitcode`.
        why: why the fork server killed it: ``lease``, ``time``, ``memory``, ``cpu``, ``asked``, or
            empty if it did not.
        fence: fence of its last attempt; empty: it had none.
        cpu, rss: CPU time in seconds and peak memory in bytes, over its whole life.
    """

    number: int
    status: int
    why: str
    fence: str
    cpu: float
    rss: int


class Pong(Message, frozen=True):
    """The answer to `Ping`."""


FromForkServer = Ready | Forked | Exited | Pong

# ---- worker → child ------------------------------------------------------------------------------


class Run(Message, frozen=True):
    """Run an attempt.

    Attributes:
        since: monotonic time before its locks were requested.
        config_version: version of the configuration in force, see `nonet.client.live`.
        workdir: directory in which to create the attempt's working directory.
        trace: trace context of the attempt's span, or empty.
        is_shared: other attempts run in the same child.
    """

    delivery: Delivery
    since: float
    config_version: str
    workdir: str
    trace: str = ""
    is_shared: bool = False


class Judge(Message, frozen=True):
    """Ask the retry policy to decide on an attempt whose process died.

    Attributes:
        is_counted: whether `Delivery.crashes` includes this crash already.
    """

    delivery: Delivery
    config_version: str
    crash: Crash
    is_counted: bool = False


class Cut(Message, frozen=True):
    """Cancel an attempt.

    Attributes:
        fence: fence of its delivery.
        is_cancelled: the task was cancelled; False: the worker is stopping.
    """

    fence: str
    reason: str
    is_cancelled: bool = False


class Admitted(Message, frozen=True):
    """The answer to `Admit`: the locks that the task holds now, or the lock that refused."""

    fence: str
    locks: str
    held: str
    refused: str | None = None


ToChild = Run | Judge | Cut | Admitted

# ---- child → worker ------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The child is ready for an attempt."""


class Begun(Message, frozen=True):
    """The child has received the attempt: from now on the task may be to blame for its death."""

    fence: str


class Admit(Message, frozen=True):
    """Request the locks that the task declares, as they differ from the delivery's."""

    fence: str
    lines: str


class Progressed(Message, frozen=True):
    """How far the attempt is, as its code reports."""

    fence: str
    fraction: float | None
    text: str


class Concluded(Message, frozen=True):
    """The attempt has ended, or the retry policy has answered `Judge`.

    Attributes:
        fence: fence of the delivery.
    """

    fence: str
    conclusion: Conclusion


FromChild = Hello | Begun | Admit | Progressed | Concluded

_ENCODER = msgspec.msgpack.Encoder()
_FOR_FORK_SERVER = msgspec.msgpack.Decoder(ToForkServer)
_OF_FORK_SERVER = msgspec.msgpack.Decoder(FromForkServer)
_FOR_CHILD = msgspec.msgpack.Decoder(ToChild)
_OF_CHILD = msgspec.msgpack.Decoder(FromChild)


def send_packet(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message between worker and fork server; raise OSError if the other side is gone."""
    socket.send_fds(connection, [_ENCODER.encode(message)], fds)


def packet_for_fork_server(connection: socket.socket) -> tuple[ToForkServer | None, list[int]]:
    """Return the next message and its file descriptors; None: the worker has died."""
    data, fds, _, _ = socket.recv_fds(connection, PACKET_BYTES, 1)
    return (_FOR_FORK_SERVER.decode(data) if data else None), list(fds)


def packet_of_fork_server(connection: socket.socket) -> FromForkServer | None:
    """Return the next message; None: the fork server has died."""
    data = connection.recv(PACKET_BYTES)
    return _OF_FORK_SERVER.decode(data) if data else None


class Channel:
    """One end of the connection between a worker and a child."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[Any],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    @classmethod
    async def of_worker(cls, connection: socket.socket) -> Channel:
        """Open the worker's end."""
        return cls(*await asyncio.open_unix_connection(sock=connection), _OF_CHILD)

    @classmethod
    async def of_child(cls, connection: socket.socket) -> Channel:
        """Open the child's end."""
        return cls(*await asyncio.open_unix_connection(sock=connection), _FOR_CHILD)

    async def receive(self) -> Any:
        """Return the next message; None: the other side has closed, or sent invalid data."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MOST_BYTES:
                return None
            async with asyncio.timeout(_REST_SECONDS):
                return self._decoder.decode(await self._reader.readexactly(length))
        except (EOFError, OSError, msgspec.DecodeError, RecursionError, TimeoutError):
            return None

    def send(self, message: Message) -> None:
        """Queue a message; it is dropped if the other side has closed."""
        data = _ENCODER.encode(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def flush(self) -> None:
        """Wait until the queued messages were sent."""
        try:
            await self._writer.drain()
        except OSError:
            return  # the next `receive` reports it

    def close(self) -> None:
        """Close this end, even if a process that a task forked has a copy of it."""
        with suppress(OSError, RuntimeError):  # the other side has closed
            self._writer.write_eof()
        self._writer.close()
