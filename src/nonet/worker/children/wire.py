"""The messages between worker, fork server and child processes, and their encoding.

A message is a frame of a stream: four bytes of length, then MessagePack of one of the structures
below; decoding imports and executes nothing. A `Spawn` carries a file descriptor.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

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
        url_file: the file that the URL of Redis was read from; empty: none.
        path: ``sys.path`` of the worker.
        log_level: level of the root logger.
        about: fields of the worker for each JSON log line.
        board: file descriptor of the `nonet.worker.children.board.Board`.
        middleware: what `nonet.Nonet.use` has added to the application of the worker.
    """

    settings: dict[str, Any]
    url_file: str
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
    """Enforce limits on child `number`, which begins an attempt. Its deadlines are on the board.

    Attributes:
        attempt: number of the attempt, as on the board.
        memory: bytes that it may use; 0: no limit.
        cpu: seconds of CPU time that it may use from now on; 0: no limit.
    """

    number: int
    attempt: int
    memory: int = 0
    cpu: float = 0.0


class Unguard(Message, frozen=True):
    """Lift the limits that the last `Guard` set for child `number`."""

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
        attempt: the attempt that it was killed for; 0: it was not killed.
        cpu, rss: CPU time in seconds and peak memory in bytes, over its whole life.
    """

    number: int
    status: int
    why: str
    attempt: int
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


class Admit(Message, frozen=True):
    """Request the locks that the task declares, as they differ from the delivery's."""

    fence: str
    lines: str


class Progressed(Message, frozen=True):
    """How far the attempt is, as its code reports."""

    fence: str
    fraction: float | None
    said: str | dict[str, Any]


class Logged(Message, frozen=True):
    """The last lines that the code of the attempt has logged; sent now and then, and at its end."""

    fence: str
    lines: str


class Concluded(Message, frozen=True):
    """The attempt has ended, or the retry policy has answered `Judge`.

    Attributes:
        fence: fence of the delivery.
        has_processes: the child has child processes of its own.
    """

    fence: str
    conclusion: Conclusion
    has_processes: bool = False


FromChild = Hello | Admit | Progressed | Logged | Concluded

_ENCODER = msgspec.msgpack.Encoder()
FOR_FORK_SERVER = msgspec.msgpack.Decoder(ToForkServer)
OF_FORK_SERVER = msgspec.msgpack.Decoder(FromForkServer)
FOR_START = msgspec.msgpack.Decoder(Start)
FOR_CHILD = msgspec.msgpack.Decoder(ToChild)
OF_CHILD = msgspec.msgpack.Decoder(FromChild)


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

    @property
    def is_within(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[_Decoded]:
        """Add received bytes, and return the messages that they complete.

        Raises:
            msgspec.DecodeError: the data is invalid.
        """
        self._rest += data
        found = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > _MOST_BYTES:
                raise msgspec.DecodeError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            found.append(self._decoder.decode(self._rest[_LENGTH.size : end]))
            del self._rest[:end]
        return found


class Channel(asyncio.Protocol):
    """One end of the connection between a worker and a child.

    Args:
        decoder: decodes what the other side sends.
        receive: called with each message; with None when the other side has closed, has sent
            invalid data, or does not complete a message. None is the last.
    """

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[Any], receive: Callable[[Any], None]
    ) -> None:
        self._frames = Frames(decoder)
        self._receive = receive
        self._transport: asyncio.Transport | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._is_over = False

    async def open(self, connection: socket.socket) -> None:
        """Use a connected socket."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    def send(self, message: Message) -> None:
        """Send a message, or queue it; it is dropped if the other side has closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def close(self) -> None:
        """Close this end, even if a process that a task forked has a copy of it."""
        if self._transport is None or self._transport.is_closing():
            return
        with suppress(OSError, RuntimeError):  # the other side has closed
            self._transport.write_eof()
        self._transport.close()

    # ---- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        try:
            for message in self._frames.feed(data):
                self._receive(message)
        except (msgspec.DecodeError, RecursionError):
            return self._end()
        if self._frames.is_within:
            self._rest = asyncio.get_running_loop().call_later(_REST_SECONDS, self._end)

    def eof_received(self) -> None:
        """Let the transport close itself."""
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end."""
        self._end()

    def _end(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if not self._is_over:
            self._is_over = True
            self._receive(None)
        self.close()
