"""`Proxy`: a TCP proxy between programs and a server, with faults that a test switches on and off.

    with Proxy(server.port) as proxy:  # programs connect to proxy.port
        proxy.drop_reply(3)     # the third command from now on is executed, its reply lost
        proxy.black_hole()      # nothing passes any more, in either direction
        proxy.restore()         # what was held up arrives now, as after a cut of the line

It runs in a thread of its own. Commands are counted by parsing the Redis protocol, so that those
of a pipeline count one by one; for other protocols say ``counts=False``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

from waits import WAIT_SECONDS

_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST and forgets what was not sent


class Proxy:
    """Forwards bytes, except for the faults that are switched on.

    Attributes:
        port: where it listens, on loopback.
        commands: client commands seen so far.
        dropped: commands whose reply was swallowed, and commands that were cut off unexecuted.
        refused: commands that were answered with an error of `refuse` or `pin`, and not executed.
        substitute: what is sent instead of a command that `refuse_some` hits.
        unheard: commands that came over a connection which `pin` has frozen.
        reset_probability: how likely a command is hit by a reset of its connection; half of
            those are executed, their replies are lost.
    """

    def __init__(self, target_port: int, *, counts: bool = True, seed: int = 1) -> None:
        self.port = 0
        self.commands = 0
        self.dropped = self.refused = self.unheard = 0
        self.reset_probability = 0.0
        self._target_port = target_port
        self.counts = counts
        self._random = random.Random(seed)
        self._delay = 0.0
        self._refused_share, self.substitute = 0.0, b""
        self._doomed: int | None = None
        self._refusal = ""
        self._lines: set[_Line] = set()
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._ended.set)
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the proxy did not end"
        self._loop.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def delay(self, seconds: float) -> None:
        """Make each round trip longer by `seconds`, half of it in each direction."""
        self._delay = seconds

    def refuse_some(self, words: str, share: float) -> None:
        """Refuse this share of all commands in these words, and keep their connections."""
        # The server says the words, so that replies keep their order.
        script = b"return redis.error_reply(ARGV[1])"
        parts = (b"EVAL", script, b"0", words.encode())
        packed = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._refused_share, self.substitute = share, b"*4\r\n" + packed

    def drop_reply(self, n: int) -> None:
        """Swallow the reply of the n-th command from now on, and reset its connection.

        The server has executed it; replies to what was sent before it still arrive.
        """
        self._do(lambda: setattr(self, "_doomed", self.commands + n))

    @property
    def armed(self) -> bool:
        """Whether `drop_reply` still waits for its command."""
        return self._doomed is not None

    def black_hole(self) -> None:
        """Accept and read, but forward nothing; neither of existing connections."""
        self._do(self._passing.clear)

    def restore(self) -> None:
        """Forward again. What was held up arrives late, also from clients that gave up."""
        self._do(self._passing.set)

    def refuse(self, words: str) -> None:
        """Answer every command with this error from now on, as a server that has lost its role."""

        def refuse() -> None:
            self._refusal = words
            self._pin(words)

        self._do(refuse)

    def relent(self) -> None:
        """Serve new connections; those that were refused remain so."""
        self._do(lambda: setattr(self, "_refusal", ""))

    def pin(self, words: str = "") -> None:
        """Answer with this error on open connections only, forever; empty: answer nothing."""
        self._do(lambda: self._pin(words))

    def retarget(self, port: int) -> None:
        """Lead new connections to another server, and leave open ones where they are."""
        self._do(lambda: setattr(self, "_target_port", port))

    def _pin(self, words: str) -> None:
        for line in list(self._lines):
            line.pin(words)

    def half_close(self) -> None:
        """Tell the clients of all connections that the server has ended; they may still send."""
        self._do(lambda: [line.half_close() for line in list(self._lines)])

    def reset_all(self) -> None:
        self._do(lambda: [line.reset() for line in list(self._lines)])

    @property
    def connections(self) -> int:
        return len(self._lines)

    def _do(self, action: Callable[[], object]) -> None:
        """Run `action` in the proxy's thread and wait for it."""
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(WAIT_SECONDS), "the proxy does not answer"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        for line in list(self._lines):
            line.reset()
        while self._lines:  # noqa: ASYNC110  # they end in the next steps of this loop
            await asyncio.sleep(0.001)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target_port, limit=_CHUNK)
        except OSError:  # no server: the client sees the same as without a proxy
            _reset(writer)
            return
        line = _Line(self, (reader, writer), upstream)
        if self._refusal:
            line.pin(self._refusal)
        self._lines.add(line)
        try:
            await line.forward()
        finally:
            self._lines.discard(line)

    def count(self) -> str:
        """What shall become of a command that has just been read.

        ``pass``, ``refuse``, ``mute`` or ``cut``.
        """
        self.commands += 1
        fate = "pass"
        if self._doomed is not None and self.commands >= self._doomed:
            self._doomed, fate = None, "mute"
        elif self.reset_probability and self._random.random() < self.reset_probability:
            fate = self._random.choice(["mute", "cut"])
        self.dropped += fate != "pass"
        if fate == "pass" and self._refused_share and self._random.random() < self._refused_share:
            fate = "refuse"
        return fate

    async def hold_up(self, arrived: float) -> None:
        """Wait until bytes that came at `arrived` (loop time) may go on."""
        if (left := arrived + self._delay / 2 - self._loop.time()) > 0:
            await asyncio.sleep(left)
        await self._passing.wait()


_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Chunks = asyncio.Queue[tuple[float, bytes]]


class _Line:
    """One connection of a client, and the one to the server behind it."""

    def __init__(self, proxy: Proxy, client: _Pair, server: _Pair) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._requests, self._replies = Values(), Values()
        self._sent = self._answered = 0  # commands and replies
        self._mute_from: int | None = None
        self._half_closed = False
        self._pinned: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def forward(self) -> None:
        """Until both sides have ended."""
        up: _Chunks = asyncio.Queue()
        down: _Chunks = asyncio.Queue()
        self._tasks = [
            asyncio.create_task(step)
            for step in (
                _read(self._client[0], up),
                self._upwards(up),
                _read(self._server[0], down),
                self._downwards(down),
            )
        ]
        await asyncio.wait(self._tasks)
        for _, writer in (self._client, self._server):
            writer.close()

    def half_close(self) -> None:
        """End the stream towards the client."""
        self._half_closed = True
        with contextlib.suppress(OSError):
            self._client[1].write_eof()

    def pin(self, words: str) -> None:
        """Pass nothing on any more; answer each command with these words, or not at all."""
        if self._pinned is not None:
            return
        self._pinned = words
        self._server[1].transport.abort()
        if self._replies.is_partial:
            self.reset()
        else:
            self._answer(self._sent - self._answered)

    def _answer(self, commands: int) -> None:
        if self._pinned:
            self._proxy.refused += commands
            self._client[1].write(f"-{self._pinned}\r\n".encode() * commands)
        else:
            self._proxy.unheard += commands

    def reset(self) -> None:
        for _, writer in (self._client, self._server):
            _reset(writer)
        for task in self._tasks:
            task.cancel()

    async def _upwards(self, chunks: _Chunks) -> None:
        writer, begun = self._server[1], b""
        while True:
            arrived, data = await chunks.get()
            await self._proxy.hold_up(arrived)
            if not data:
                break
            if not self._proxy.counts:
                writer.write(data)
                continue
            if self._pinned is not None:
                self._answer(len(self._requests.feed(data)))
                continue
            start = 0
            for end in self._requests.feed(data):
                fate = self._proxy.count()
                if fate == "cut":
                    return self.reset()
                if fate == "mute" and self._mute_from is None:
                    self._mute_from = self._sent
                self._sent += 1
                writer.write(
                    self._proxy.substitute if fate == "refuse" else begun + data[start:end]
                )
                start, begun = end, b""
            begun += data[start:]
        if self._pinned is not None:
            return self.reset()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _downwards(self, chunks: _Chunks) -> None:
        writer = self._client[1]
        while True:
            arrived, data = await chunks.get()
            await self._proxy.hold_up(arrived)
            if self._pinned is not None:
                return
            if not data:
                break
            if self._half_closed:
                continue
            if (passed := self._audible(data)) is None:
                writer.write(data)
                continue
            writer.write(data[:passed])
            with contextlib.suppress(OSError):
                await writer.drain()
            return self.reset()
        # The server has ended the connection: nothing that the client sends has a meaning.
        writer.close()
        self._server[1].close()
        for task in self._tasks[:2]:
            task.cancel()

    def _audible(self, data: bytes) -> int | None:
        """How many bytes come before a reply that is to be swallowed; None: there is none."""
        if not self._proxy.counts:
            return None
        if self._mute_from is not None and self._answered >= self._mute_from:
            return 0
        for end in self._replies.feed(data):
            self._answered += 1
            if self._mute_from is not None and self._answered >= self._mute_from:
                return end if len(data) > end else None
        return None


class Values:
    """Finds where the values of the Redis protocol end, in a stream that arrives in pieces.

    Requests and replies of protocol 2 are both such values.
    """

    def __init__(self) -> None:
        self._line = b""  # a header of which the end has not come
        self._skip = 0  # bytes of a string that have not come
        self._missing = 0  # elements of the value that have not come

    @property
    def is_partial(self) -> bool:
        """Whether a value has begun, and not ended."""
        return bool(self._line or self._skip or self._missing)

    def feed(self, data: bytes) -> list[int]:
        """The offsets in `data` at which a value is complete.

        >>> Values().feed(b"*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nx\\r\\n+OK\\r\\n*1\\r\\n")
        [20, 25]
        """
        ends, at = [], 0
        while at < len(data):
            if not self._skip:
                found = data.find(b"\n", at) + 1
                if not found:
                    self._line += data[at:]
                    break
                self._header(self._line + data[at:found])
                self._line, at = b"", found
            step = min(self._skip, len(data) - at)
            self._skip, at = self._skip - step, at + step
            if not self._skip and not self._missing:
                ends.append(at)
        return ends

    def _header(self, line: bytes) -> None:
        kind, number = line[:1], line[1:]
        self._missing = max(self._missing, 1) - 1
        if kind == b"*":
            self._missing += max(int(number), 0)
        elif kind == b"$" and int(number) >= 0:
            self._skip = int(number) + 2


async def _read(reader: asyncio.StreamReader, chunks: _Chunks) -> None:
    """Everything that comes, with the time at which it came; empty bytes are the end."""
    data = b"?"
    while data:
        try:
            data = await reader.read(_CHUNK)
        except OSError:
            data = b""
        await chunks.put((asyncio.get_running_loop().time(), data))


def _reset(writer: asyncio.StreamWriter) -> None:
    end: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it has ended already
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
