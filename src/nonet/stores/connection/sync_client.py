"""Connections to Redis for threads, with the interface of those for an event loop.

Calls block, so their coroutines never suspend: `nonet.base.synchronous.complete` runs them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import hiredis
import redis
from redis import exceptions
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from nonet.base.errors import ConfigurationError
from nonet.base.synchronous import TimeIsOver, seconds_left
from nonet.stores.connection.endpoint import Endpoint, EndpointSyncConnection, endpoint_of
from nonet.stores.connection.lane import UNFINISHED, make_reader
from nonet.stores.connection.redis import (
    BLOCK_SECONDS,
    DRIVER,
    RETRIED,
    RETRIES,
    TIMEOUT_SECONDS,
    connect_to,
    server_errors,
    url_errors,
)
from nonet.stores.connection.topology import Address

# Connections that are kept for later calls: as many as threads that call at a time.
_KEPT = 64
# Each thread may need one for single commands: no limit.
_MOST_CONNECTIONS = 2**31
_READ_BYTES = 64 * 1024
# How often Sentinels are asked whether the server is still the master.
_FOLLOW_SECONDS = 1.0


def connect(url: str, prefix: str) -> SyncClient:
    """Make a client for commands and scripts, as `nonet.stores.connection.redis.connect`."""
    return _connect(url, prefix, TIMEOUT_SECONDS, RETRIES)


def connect_blocking(url: str, prefix: str) -> SyncClient:
    """Make a client for blocking pops, which outwaits them and never repeats one itself."""
    return _connect(url, prefix, BLOCK_SECONDS + TIMEOUT_SECONDS, 0)


def _connect(url: str, prefix: str, timeout_seconds: float, retries: int) -> SyncClient:
    with url_errors(url):
        endpoint = endpoint_of(url, prefix)
        pool = redis.ConnectionPool.from_url(
            endpoint.url,
            protocol=2,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=timeout_seconds,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries, RETRIED),
            driver_info=DRIVER,
            max_connections=_MOST_CONNECTIONS,
        )
    plain = pool.connection_class
    pool.connection_class = type(plain.__name__, (_Bounded, plain), {})
    connect_to(endpoint, pool, EndpointSyncConnection)
    return SyncClient(pool, endpoint, retries)


class SyncLane:
    """Calls over connections that threads take in turn. Thread-safe.

    Args:
        connection: makes an unconnected connection of redis-py.
        master: the server that is in charge.
    """

    def __init__(self, connection: Callable[[], Any], master: _Master) -> None:
        self._connection = connection
        self._master = master
        # Appending to a deque, and taking from it, needs no lock.
        self._idle: deque[_Wire] = deque(maxlen=_KEPT)

    async def call(self, *args: str | bytes | float) -> Any:
        """Send a command and return its reply, see `Lane.call`."""
        return self._exchange(hiredis.pack_command(args), 1)[0]  # type: ignore[arg-type]  # it takes any number of them

    async def call_together(self, *commands: Sequence[str | bytes | float]) -> list[Any]:
        """Send several commands over one connection, see `Lane.call_together`."""
        packed = b"".join(hiredis.pack_command(tuple(each)) for each in commands)  # type: ignore[arg-type]  # as above
        return self._exchange(packed, len(commands))

    def check_loop(self) -> None:
        """Every thread may use it."""

    def reset(self) -> None:
        """Drop the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def aclose(self, _: float = 0.0) -> None:
        """Close the idle connections; a later call opens another one."""
        self.reset()

    def _exchange(self, packed: bytes, number: int) -> list[Any]:
        """Send commands and return their replies; raise the first error among these."""
        wire = self._taken()
        try:
            replies = wire.exchange(packed, number)
        except exceptions.ConnectionError:
            if wire.is_new:
                raise
            # The server has closed it meanwhile, and probably the others, too. Calls are safe to
            # repeat, see `Scripts.run`.
            wire.endpoint.suspect(wire.generation)
            wire = _Wire(self._connection())
            replies = wire.exchange(packed, number)
        self._idle.append(wire)
        for reply in replies:
            if isinstance(reply, Exception):
                if wire.endpoint.is_elsewhere(reply):
                    wire.endpoint.leave(wire.generation)
                elif isinstance(reply, exceptions.ConnectionError):
                    self.reset()  # another connection may help, as in `Lane`
                raise reply
        return replies

    def _taken(self) -> _Wire:
        """Take an idle connection to the server that is in charge now, or open one."""
        if self._master.may_be_replaced:
            self._master.check()
        while self._idle:
            wire = self._idle.pop()
            if wire.generation == wire.endpoint.generation:
                return wire
            wire.close()
        return _Wire(self._connection())


class _Master:
    """The server that is in charge of a namespace, if Sentinels can replace it.

    A master that is replaced by a command of Sentinel accepts writes for some more seconds, and
    loses them. Programs with an event loop follow in the background (`Broker.follow`); threads ask
    the Sentinels before a call, once a second.

    Attributes:
        may_be_replaced: whether to `check` it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        finder = endpoint.finder
        self.may_be_replaced = finder is not None and finder.is_announced
        self._endpoint = endpoint
        self._address: Address | None = None
        self._asked = 0.0

    def check(self) -> None:
        """Ask whether it was replaced, if that was not done just now."""
        now = time.monotonic()
        finder = self._endpoint.finder
        if not self.may_be_replaced or finder is None or now < self._asked + _FOLLOW_SECONDS:
            return
        self._asked = now
        try:
            found = finder.find()
        except (exceptions.RedisError, OSError, ConfigurationError):
            return  # connections that need a server raise it, too
        before, self._address = self._address, found
        if before not in (None, found):
            self._endpoint.leave()


class _Wire:
    """An open connection of a lane, which one thread uses at a time."""

    def __init__(self, connection: Any) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection._sock
        self._reader = make_reader()
        self._timeout: float | None = connection.socket_timeout
        self.endpoint: Endpoint = connection.endpoint
        self.generation: int = connection.generation
        self.is_new = True

    def exchange(self, packed: bytes, number: int) -> list[Any]:
        """Send commands, and return a reply or an error of the server for each."""
        replies: list[Any] = []
        try:
            self._limit()
            self._socket.sendall(packed)
            while len(replies) < number:
                while (reply := self._reader.gets()) is UNFINISHED:
                    self._limit()
                    if not (data := self._socket.recv(_READ_BYTES)):
                        raise exceptions.ConnectionError("Connection closed by server.")
                    self._reader.feed(data)
                replies.append(reply)
        except TimeoutError:
            self.close()
            seconds_left(None)  # raises if it was a limit around the call
            self.endpoint.suspect(self.generation)
            raise exceptions.TimeoutError("Timeout reading from socket") from None
        except OSError as error:
            self.close()
            raise exceptions.ConnectionError(str(error)) from error
        except BaseException:
            self.close()  # a reply may be on its way
            raise
        self.is_new = False
        return replies

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _limit(self) -> None:
        """Let the socket wait no longer than a time limit around the call."""
        left = seconds_left(self._timeout)
        if left != self._socket.gettimeout():  # to set it is a system call
            self._socket.settimeout(left)


class SyncClient:
    """The client of redis-py for threads, with the interface of `LaneClient`. Thread-safe.

    Its commands are coroutines that do not suspend.

    Attributes:
        lane: connections for scripts.
        endpoint, retries: as of `LaneClient`.
    """

    def __init__(self, pool: Any, endpoint: Endpoint, retries: int) -> None:
        self.connection_pool = pool
        self.endpoint = endpoint
        self._master = _Master(endpoint)
        self.lane = SyncLane(self._open, self._master)
        self.retries = retries
        self._redis = redis.Redis.from_pool(pool)

    def _open(self) -> Any:
        """Make an unconnected connection, which does not retry by itself, beside the pool."""
        made = self.connection_pool.connection_class(**self.connection_pool.connection_kwargs)
        made.retry = Retry(NoBackoff(), 0)
        return made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        command = getattr(self._redis, name)

        async def run(*args: Any, **options: Any) -> Any:
            self._master.check()
            async with server_errors(self):
                return command(*args, **options)

        return run

    def lane_for(self, key: str) -> SyncLane:
        """Return a lane for blocking pops: each call has a connection of its own anyway."""
        return self.lane

    def pipeline(self, transaction: bool = True) -> _SyncPipeline:
        """Collect commands, and send them together."""
        self._master.check()
        return _SyncPipeline(self._redis.pipeline(transaction=transaction))

    async def aclose(self) -> None:
        """Close all connections."""
        self.lane.reset()
        self._redis.close()


class _SyncPipeline:
    """A pipeline of redis-py with the interface of one for an event loop."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.connection_pool = pipeline.connection_pool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pipeline.reset()

    def __getattr__(self, name: str) -> Callable[..., _SyncPipeline]:
        command = getattr(self._pipeline, name)

        def queue(*args: Any, **options: Any) -> _SyncPipeline:
            command(*args, **options)
            return self

        return queue

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands and return their replies."""
        async with server_errors(self):
            replies: list[Any] = self._pipeline.execute(raise_on_error=raise_on_error)
        return replies


class _Bounded:
    """A connection of redis-py whose calls end with the time limit around them."""

    _is_limited = False

    def _connect(self: Any) -> Any:
        most, self.socket_connect_timeout = (
            self.socket_connect_timeout,
            seconds_left(self.socket_connect_timeout),
        )
        try:
            return super()._connect()  # type: ignore[misc]  # of the connection class
        finally:
            self.socket_connect_timeout = most

    def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        self._limit()
        super().send_packed_command(command, check_health)  # type: ignore[misc]  # as above

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        try:
            self._limit()
            return super().read_response(*args, **options)  # type: ignore[misc]  # as above
        except exceptions.TimeoutError:
            seconds_left(None)  # raises if it was that limit
            raise
        except TimeIsOver:
            self.disconnect()  # a reply is on its way
            raise

    def _limit(self: Any) -> None:
        """Let the socket wait no longer than the limit, or as long as usual after there was one."""
        left = seconds_left(None)
        if left is None and not self._is_limited:
            return
        self._is_limited = left is not None
        if self._sock is not None:
            self._sock.settimeout(seconds_left(self.socket_timeout))
