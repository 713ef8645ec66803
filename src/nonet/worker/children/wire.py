"""What worker, fork server and child processes tell each other, and how it travels.

Between worker and fork server: one message is one packet, and may carry a file descriptor. Between
worker and child: a stream of frames, four bytes of length and the message. All of it is msgpack of
the structures below, nothing is imported or executed by name.
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
# Longer frames are none of ours: an envelope has 4 MiB at most, a result too.
_MOST_BYTES = 64 * 1024 * 1024
# How long the rest of a frame may take that has begun.
_REST_SECONDS = 5.0
PACKET_BYTES = 128 * 1024


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages."""


# ---- worker → fork server ------------------------------------------------------------------------


class SetUp(Message, frozen=True):
    """The first message.

    Attributes:
        settings: of the worker, by name.
        path: where modules are looked for.
        log_level: of the root logger.
        about: what each of its JSON log lines says of the worker.
        board: file descriptor of the `nonet.worker.children.board.Board`.
    """

    settings: dict[str, Any]
    path: list[str]
    log_level: int
    about: dict[str, str]
    board: int


class Spawn(Message, frozen=True):
    """Fork child `number`; its end of the connection comes with the packet.

    Attributes:
        is_fresh: it is for one attempt, with a directory of its own for temporary files.
    """

    number: int
    is_fresh: bool = False


class Guard(Message, frozen=True):
    """Child `number` begins an attempt. Its deadline is on the board already.

    Attributes:
        fence: of its delivery.
        kill_at: when it has used up its time, whatever it does (monotonic); 0: never.
        memory: bytes that it may have; 0: any number.
        cpu: seconds of CPU time that it may use from now on; 0: any number.
    """

    number: int
    fence: str
    kill_at: float = 0.0
    memory: int = 0
    cpu: float = 0.0


class Unguard(Message, frozen=True):
    """The attempt of child `number` is over."""

    number: int


class Kill(Message, frozen=True):
    """Kill the process group of child `number`."""

    number: int


class Ping(Message, frozen=True):
    """Answer: a fork server that does not guards nobody."""


ToForkServer = SetUp | Spawn | Guard | Unguard | Kill | Ping

# ---- fork server → worker ------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """It can fork, or says why not.

    Attributes:
        problem: why not; empty: it can.
        workdirs: under which the directories of attempts are.
    """

    problem: str
    workdirs: str


class Forked(Message, frozen=True):
    """Child `number` has a process."""

    number: int
    pid: int


class Exited(Message, frozen=True):
    """Child `number` has ended, and its process group with it.

    Attributes:
        status: as `os.waitstatus_to_exitcode` gives it: negative: the signal.
        why: of one that was killed here: ``lease``, ``time``, ``memory``, ``cpu`` or ``asked``.
        fence: of the attempt that it was killed for; empty: of none.
        cpu, rss: seconds of CPU time, and most bytes of memory, of its whole life.
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
    """Make an attempt.

    Attributes:
        since: monotonic time before its locks were asked for.
        config_version: of the configuration that holds, see `nonet.client.live`.
        workdir: where the directory of this attempt may be made.
        trace: the span of the attempt, for those that its code makes; empty: there is none.
        is_shared: other attempts run beside it in the same child.
    """

    delivery: Delivery
    since: float
    config_version: str
    workdir: str
    trace: str = ""
    is_shared: bool = False


class Judge(Message, frozen=True):
    """Ask the policy what follows from an attempt whose process is gone.

    Attributes:
        is_counted: the crash is among those of the delivery already.
    """

    delivery: Delivery
    config_version: str
    crash: Crash
    is_counted: bool = False


class Cut(Message, frozen=True):
    """Cancel an attempt.

    Attributes:
        fence: of its delivery.
        is_cancelled: the task is not wanted any more; else the worker stops.
    """

    fence: str
    reason: str
    is_cancelled: bool = False


class Admitted(Message, frozen=True):
    """The answer to `Admit`: the locks and marks that it has now, or what refused them."""

    fence: str
    locks: str
    held: str
    refused: str | None = None


ToChild = Run | Judge | Cut | Admitted

# ---- child → worker ------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The child is ready to make an attempt."""


class Begun(Message, frozen=True):
    """The child has the attempt: what ends it from now on may be the task."""

    fence: str


class Admit(Message, frozen=True):
    """The locks of the task, which are others than those of the delivery."""

    fence: str
    lines: str


class Concluded(Message, frozen=True):
    """The attempt, or the judgement, is over.

    Attributes:
        fence: of the delivery that it is of.
    """

    fence: str
    conclusion: Conclusion


FromChild = Hello | Begun | Admit | Concluded

_ENCODER = msgspec.msgpack.Encoder()
_FOR_FORK_SERVER = msgspec.msgpack.Decoder(ToForkServer)
_OF_FORK_SERVER = msgspec.msgpack.Decoder(FromForkServer)
_FOR_CHILD = msgspec.msgpack.Decoder(ToChild)
_OF_CHILD = msgspec.msgpack.Decoder(FromChild)


def send_packet(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message between worker and fork server; raises OSError if nobody takes it."""
    socket.send_fds(connection, [_ENCODER.encode(message)], fds)


def packet_for_fork_server(connection: socket.socket) -> tuple[ToForkServer | None, list[int]]:
    """The next message and what came with it; None: the worker is gone."""
    data, fds, _, _ = socket.recv_fds(connection, PACKET_BYTES, 1)
    return (_FOR_FORK_SERVER.decode(data) if data else None), list(fds)


def packet_of_fork_server(connection: socket.socket) -> FromForkServer | None:
    """The next message; None: the fork server is gone."""
    data = connection.recv(PACKET_BYTES)
    return _OF_FORK_SERVER.decode(data) if data else None


class Channel:
    """One end of the connection of a worker with a child."""

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
        """The end of the worker."""
        return cls(*await asyncio.open_unix_connection(sock=connection), _OF_CHILD)

    @classmethod
    async def of_child(cls, connection: socket.socket) -> Channel:
        """The end of the child."""
        return cls(*await asyncio.open_unix_connection(sock=connection), _FOR_CHILD)

    async def receive(self) -> Any:
        """The next message; None: the other side is gone, or no process of ours."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MOST_BYTES:
                return None
            async with asyncio.timeout(_REST_SECONDS):
                return self._decoder.decode(await self._reader.readexactly(length))
        except (EOFError, OSError, msgspec.DecodeError, RecursionError, TimeoutError):
            return None

    def send(self, message: Message) -> None:
        """Send a message; if the other side is gone, nobody gets it."""
        data = _ENCODER.encode(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def flush(self) -> None:
        """Wait until what was sent has been taken."""
        try:
            await self._writer.drain()
        except OSError:
            return  # whoever receives next hears of it

    def close(self) -> None:
        """Close this end, also if a copy of this process, which a task has forked, has it, too."""
        with suppress(OSError, RuntimeError):  # the other end is gone
            self._writer.write_eof()
        self._writer.close()
