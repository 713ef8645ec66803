"""The messages between worker, fork server and child processes, and their encoding.

A message is a frame of a stream: four bytes of length, then MessagePack of one of the structures
below; decoding imports and executes nothing. A `Spawn` carries a file descriptor.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.middleware import Recipe
from nonet.worker.attempt.conclusion import Conclusion
from nonet.worker.attempt.crashes import Crash

_Decoded = TypeVar("_Decoded")

_LENGTH = struct.Struct("<I")
# A longer frame is invalid: envelopes and results have at most 4 MiB.
_MOST_BYTES = 64 * 1024 * 1024
# How long the rest of a frame may take.
_REST_SECONDS = 5.0
READ_BYTES = 128 * 1024


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
        middleware: what `nonet.Nonet.use` has added to the application of the worker.
    """

    settings: dict[str, Any]
    path: list[str]
    log_level: int
    about: dict[str, str]
    board: int
    middleware: list[Recipe] = []


class Spawn(Message, frozen=True):
    """Start child `number`. With the message comes the child's end of its connection.

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


class Start(Message, frozen=True):
    """What a child needs that was not forked; the fork server writes it to the child's stdin.

    Attributes:
        connection: file descriptor of the child's end of its connection.
        workdirs: parent of its working directory.
    """

    set_up: SetUp
    spawn: Spawn
    connection: int
    workdirs: str


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
FOR_FORK_SERVER = msgspec.msgpack.Decoder(ToForkServer)
OF_FORK_SERVER = msgspec.msgpack.Decoder(FromForkServer)
FOR_START = msgspec.msgpack.Decoder(Start)
_FOR_CHILD = msgspec.msgpack.Decoder(ToChild)
_OF_CHILD = msgspec.msgpack.Decoder(FromChild)


def frame(message: Message) -> bytes:
    """Encode a message."""
    data = _ENCODER.encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames(Generic[_Decoded]):
    """Decodes messages that arrive in pieces.

    Args:
        decoder: decodes one message.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Decoded]) -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[_Decoded]:
        """Add what has arrived; return the messages that are complete now."""
        self._rest += data
        found = []
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                break
            found.append(self._decoder.decode(self._rest[_LENGTH.size : end]))
            del self._rest[:end]
        return found


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
        self._writer.write(frame(message))

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
