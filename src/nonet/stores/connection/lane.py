"""`Lane`: one connection to Redis with any number of calls in flight, answered in order.

redis-py opens the connection, with login, TLS and the options of the URL. The lane then takes its
transport over. Calls made in one step of the event loop go out in one write, and no call needs a
task, a timer or a connection of its own.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import hiredis
from redis import exceptions
from redis._parsers.base import BaseParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nonet.base.errors import NotBoundError
from nonet.stores.connection.endpoint import Endpoint

# Limits of the calls in flight, so that Redis serves other clients, too. Further calls wait here.
_MOST_CALLS = 200
_MOST_BYTES = 1024 * 1024
_SECOND_CHECK_SECONDS = 0.1
_LEAST_BYTES_PER_SECOND = 64 * 1024
UNFINISHED = object()
_CLOSED = "Connection closed by server."
_GIVEN_UP = "Connection given up"

_Answer = asyncio.Future[Any]


class Lane:
    """Calls over one connection, which is opened at its first use and reopened after a loss.

    Args:
        connection: makes an unconnected `EndpointConnection` of redis-py.
        timeout_seconds: how long Redis may be silent while a call is in flight (longer for long
            commands), or may take to connect. After that all calls in flight fail.
    """

    def __init__(self, connection: Callable[[], Any], timeout_seconds: float) -> None:
        self._connection = connection
        self._timeout = timeout_seconds
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[bytes, Sequence[_Answer]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, *args: str | bytes | float) -> _Answer:
        """Send a command now, and return a future of its reply. Nothing is retried.

        Cancel the future to ignore the reply; Redis may execute the command nevertheless.

        Returns:
            A future of the reply. It raises an error of redis-py: ResponseError, ConnectionError,
            TimeoutError.

        Example:
            await lane.call("GET", "key")
        """
        loop = self._running_loop()
        answer: _Answer = loop.create_future()
        self._send(loop, hiredis.pack_command(args), (answer,))  # type: ignore[arg-type]  # its stub allows one argument only
        return answer

    def call_together(self, *commands: Sequence[str | bytes | float]) -> _Answer:
        """Send several commands over one connection, with no other command in between.

        Returns:
            A future of the list of replies.

        Example:
            await lane.call_together(("SET", "key", 1), ("WAIT", 1, 1000))
        """
        loop = self._running_loop()
        packed = b"".join(hiredis.pack_command(tuple(each)) for each in commands)  # type: ignore[arg-type]  # as above
        answers: list[_Answer] = [loop.create_future() for _ in commands]
        self._send(loop, packed, answers)
        return asyncio.gather(*answers)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.check_loop()
            self._move_to(loop)
        return loop

    def _send(
        self, loop: asyncio.AbstractEventLoop, packed: bytes, answers: Sequence[_Answer]
    ) -> None:
        wire = self._wire
        if wire is not None and wire.generation != wire.endpoint.generation:
            wire = self._unless_idle(wire)
        if wire is not None and not self._waiting and wire.has_room_for(len(packed)):
            wire.send(packed, answers)
        else:
            self._waiting.append((packed, answers))
            if wire is None and self._opening is None:
                self._opening = loop.create_task(self._open(), name="lane")

    def _unless_idle(self, wire: _Wire) -> _Wire | None:
        """Close an outdated connection if it is idle; else its calls find out whether it works."""
        if wire.is_idle:
            wire.close(exceptions.ConnectionError(_GIVEN_UP))
        return self._wire

    def bind(self) -> None:
        """Bind this lane to the running event loop; others are refused while that loop runs.

        Raises:
            NotBoundError: another running event loop uses this lane.
        """
        self._running_loop()

    def check_loop(self) -> None:
        """Check that no other running event loop uses this lane.

        Raises:
            NotBoundError: another one does, and it would get the answers.
        """
        if self._loop not in (None, asyncio.get_running_loop()) and self._loop.is_running():
            raise NotBoundError(
                "this application is open in another event loop, which still runs: use it in the "
                "loop that opened it. In other threads use task.schedule_sync() or app.sync; a "
                "task with a plain `def execute` also has context().after_commit(). A program that "
                "submits only from threads opens a nonet.SyncNonet"
            )

    def reset(self) -> None:
        """Drop the connection and fail its pending calls; the next call opens another one."""
        if self._wire is not None:
            self._wire.close(exceptions.ConnectionError(_GIVEN_UP))

    async def aclose(self, patience_seconds: float = 0.0) -> None:
        """Close the connection; a later call opens another one.

        Args:
            patience_seconds: how long to wait for earlier calls. Unanswered ones then fail.
        """
        if asyncio.get_running_loop() is not self._loop:
            return
        await self._finish(patience_seconds)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
            self._opening = None  # a task cancelled before its first step does not reset it
        closed = exceptions.ConnectionError("Connection closed")
        self._fail_waiting(closed)  # first, or _lost would open another wire for them
        if (wire := self._wire) is not None:
            wire.close(closed)
            await wire.closed

    async def _finish(self, seconds: float) -> None:
        """Wait for the answers to all calls, but at most for this time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0 and (last := self._last()) is not None:
            await asyncio.wait({last}, timeout=left)

    def _last(self) -> _Answer | None:
        """The last answer that is still wanted."""
        waiting = (each for _, (*_, each) in reversed(self._waiting) if not each.done())
        return next(waiting, None) or (self._wire.last if self._wire is not None else None)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start over in another loop: connections of the old one, which has ended, are unusable."""
        if self._wire is not None:
            self._wire.endpoint.closed(self._wire)
        self._loop, self._wire, self._opening = loop, None, None
        self._waiting.clear()

    async def _open(self) -> None:
        try:
            wire = await _opened(self._connection(), self._timeout, self._pass_on, self._lost)
        except BaseException as error:
            self._opening = None
            failed = isinstance(error, Exception)
            self._fail_waiting(error if failed else exceptions.ConnectionError("Closed"))
            if not failed:
                raise
        else:
            self._wire, self._opening = wire, None
            self._pass_on()

    def _pass_on(self) -> None:
        """Send waiting calls while there is room."""
        while self._wire is not None and self._waiting:
            if not self._wire.has_room_for(len(self._waiting[0][0])):
                return
            packed, answers = self._waiting.popleft()
            if not all(answer.cancelled() for answer in answers):
                self._wire.send(packed, answers)

    def _lost(self, wire: _Wire) -> None:
        if wire is not self._wire:
            return
        self._wire = None
        if self._waiting and self._opening is None and self._loop is not None:
            self._opening = self._loop.create_task(self._open(), name="lane")

    def _fail_waiting(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, deque()
        _fail((answer for _, answers in waiting for answer in answers), error)


class _Wire(asyncio.Protocol):
    """The open connection of a lane.

    Attributes:
        endpoint: the server that it connects to.
        generation: the endpoint's generation when it was opened.
        closed: done when the connection is closed.
    """

    def __init__(
        self,
        connection: Any,
        timeout_seconds: float,
        has_room: Callable[[], None],
        lost: Callable[[_Wire], None],
    ) -> None:
        self._connection = connection  # kept, because it closes the transport when it is deleted
        self.endpoint: Endpoint = connection.endpoint
        self.generation: int = connection.generation
        self._transport: asyncio.Transport = connection._writer.transport
        self._timeout = timeout_seconds
        self._has_room = has_room
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._reader = make_reader()
        # Pending answers in order, with the bytes sent; the first of several has those of all.
        self._owed: deque[tuple[_Answer, int]] = deque()
        self._owed_bytes = 0
        self._unsent: list[bytes] = []
        # Loop time of the last data, or of the first command that was sent while idle.
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._is_refused = False
        self._is_elsewhere = False
        self.endpoint.opened(self)
        self._transport.set_protocol(self)
        self._transport.resume_reading()  # a StreamReader may have stopped it

    @property
    def last(self) -> _Answer | None:
        """The last pending answer that is still wanted."""
        return next((answer for answer, _ in reversed(self._owed) if not answer.done()), None)

    @property
    def is_idle(self) -> bool:
        """Whether no call is in flight."""
        return not self._owed

    def has_room_for(self, length: int) -> bool:
        """Whether a command of this length may be sent now; always if nothing is in flight."""
        if not self._owed:
            return True
        return len(self._owed) < _MOST_CALLS and self._owed_bytes + length <= _MOST_BYTES

    def send(self, packed: bytes, answers: Sequence[_Answer]) -> None:
        """Send commands: at once if nothing is in flight, else in one write with other calls."""
        if not self._owed:
            self._heard = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout, self._check_silence)
            self._transport.write(packed)
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(packed)
        self._owed.append((answers[0], len(packed)))
        for answer in answers[1:]:
            self._owed.append((answer, 0))
        self._owed_bytes += len(packed)

    def close(self, error: Exception) -> None:
        """Close the connection; pending answers fail with `error`."""
        self.endpoint.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        self._lost(self)
        owed, self._owed = self._owed, deque()
        self._owed_bytes = 0
        self._unsent.clear()
        _fail((answer for answer, _ in owed), error)

    def give_up(self) -> None:
        """Close the connection in the next step of its event loop. Thread-safe."""
        with suppress(RuntimeError):  # the loop has ended, and its connections with it
            self._loop.call_soon_threadsafe(self.close, exceptions.ConnectionError(_GIVEN_UP))

    def data_received(self, data: bytes) -> None:
        """Hand each reply to its caller."""
        self._heard, self._is_late = self._loop.time(), False
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not UNFINISHED:
                self._deliver(reply)
                if isinstance(reply, exceptions.RedisError):
                    self._judge(reply)
        except (hiredis.HiredisError, exceptions.InvalidResponse, IndexError) as error:
            self.close(exceptions.InvalidResponse(str(error) or "a reply to no command"))
            return
        if self._is_refused:
            self.close(exceptions.ConnectionError(_GIVEN_UP))
            if self._is_elsewhere:
                self.endpoint.leave(self.generation)
            return
        self._has_room()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer, or something on the way to it, has closed the connection."""
        self.close(exceptions.ConnectionError(str(error) if error else _CLOSED))
        self._connection._writer = self._connection._reader = None
        if not self.closed.done():
            self.closed.set_result(None)

    def _judge(self, reply: exceptions.RedisError) -> None:
        """End the connection after some errors: a new one may reach another server, or log in.

        In redis-py, a refused login and a reached limit of clients are ConnectionErrors.
        """
        self._is_elsewhere = self._is_elsewhere or self.endpoint.is_elsewhere(reply)
        if self._is_elsewhere or isinstance(reply, exceptions.ConnectionError):
            self._is_refused = True

    def _deliver(self, reply: Any) -> None:
        answer, length = self._owed.popleft()
        self._owed_bytes -= length
        if answer.done():  # cancelled
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def _flush(self) -> None:
        if self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._transport.write(data)

    def _check_silence(self) -> None:
        """Check whether Redis has been silent for too long. One timer serves all calls."""
        self._timer = None
        if not self._owed:
            return
        # A long command takes long to arrive.
        patience = self._timeout + self._owed_bytes / _LEAST_BYTES_PER_SECOND
        left = self._heard + patience - self._loop.time()
        if left <= 0 and not self._is_late:
            # After this process was suspended, timers can fire before sockets are read. A reply may
            # have arrived: wait once more, so that it is read first.
            self._is_late, left = True, _SECOND_CHECK_SECONDS
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            self.endpoint.suspect(self.generation)
            self.close(exceptions.TimeoutError("Timeout reading from socket"))


async def _opened(
    connection: Any,
    timeout_seconds: float,
    has_room: Callable[[], None],
    lost: Callable[[_Wire], None],
) -> _Wire:
    connection.retry = Retry(NoBackoff(), 0)  # callers retry what is safe to repeat
    try:
        async with asyncio.timeout(timeout_seconds):
            await connection.connect()
    except BaseException as error:
        await connection.disconnect(nowait=True)
        if isinstance(error, TimeoutError):
            raise exceptions.TimeoutError("Timeout connecting to server") from None
        raise
    return _Wire(connection, timeout_seconds, has_room, lost)


def _fail(answers: Iterable[_Answer], error: BaseException) -> None:
    """Give each caller its own copy of an error, as each raise extends its traceback."""
    for answer in answers:
        if not answer.done():
            answer.set_exception(copy.copy(error))


def make_reader() -> hiredis.Reader:
    """Make a parser of replies, which gives `UNFINISHED` while it needs more data."""
    return hiredis.Reader(
        protocolError=exceptions.InvalidResponse,
        replyError=BaseParser.parse_error,
        notEnoughData=UNFINISHED,
    )
