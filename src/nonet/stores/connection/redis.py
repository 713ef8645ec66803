"""Connections to Redis and the loader of the Lua scripts."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from nonet.base.errors import ConfigurationError, NonetError, masked, url_problem
from nonet.stores.connection.lane import Lane
from nonet.stores.connection.replies import REFUSALS, translated
from nonet.stores.connection.topology import (
    FindingConnection,
    FindingSyncConnection,
    ServerUrl,
    read_place,
    will_pass,
)

# Every script is safe to repeat, so a lost reply may be retried. Total: below DEDUP_TTL.
_TIMEOUT_SECONDS = 5.0
_RETRIES = 3
_CONNECTIONS = 50
# The longest blocking pop; its connection waits longer than that for the answer.
BLOCK_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
# Before each retry of a script; the last of them again, while a failover is waited for.
_PAUSES = (0.1, 0.2, 0.4)
# So long a script is called again where another server may take over; with the time that the last
# call takes it is below DEDUP_TTL.
_FAILOVER_SECONDS = 14.0
# So long the replicas may take to confirm; the lane carries nothing else meanwhile.
_CONFIRM_MS = 2000

# What redis-py tells the server of itself. Without it each connection, and each client, would read
# the metadata of the installed redis-py anew, which takes 2 ms.
_DRIVER = DriverInfo(lib_version=redis.__version__)

# redis-py types every reply as `str | bytes | …`; here they are always bytes, and Any says less
# wrong than a cast at each call would.
AsyncRedis = Any
SyncRedis = Any
_RETRIED = (exceptions.ConnectionError, exceptions.TimeoutError)


def connect(url: str, prefix: str) -> AsyncRedis:
    """A client for commands and scripts; connects when first used.

    Args:
        url: see `nonet.stores.connection.topology.read_place`.
        prefix: of the keys of the namespace.

    Raises:
        ConfigurationError: the URL is no Redis URL.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES, _RETRIED)
    with _url_errors(url):
        place = read_place(url, prefix)
        # Callers beyond the pool wait for a connection; the plain pool would refuse them.
        pool = aioredis.BlockingConnectionPool.from_url(
            place.url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS * (_RETRIES + 1),
            protocol=2,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=retry,
            driver_info=_DRIVER,
        )
    return LaneClient.over(pool, place, _TIMEOUT_SECONDS, _RETRIES)


def connect_blocking(url: str, prefix: str) -> AsyncRedis:
    """A client for blocking pops: it waits longer than they do and never repeats one itself."""
    with _url_errors(url):
        place = read_place(url, prefix)
        pool = aioredis.ConnectionPool.from_url(
            place.url,
            protocol=2,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=BLOCK_SECONDS + _TIMEOUT_SECONDS,
            retry=AsyncRetry(ExponentialBackoff(), 0),
            driver_info=_DRIVER,
        )
    return LaneClient.over(pool, place, BLOCK_SECONDS + _TIMEOUT_SECONDS, 0)


def connect_sync(url: str, prefix: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> SyncRedis:
    """A client for a thread of its own. It does not retry: its caller beats again anyway."""
    with _url_errors(url):
        place = read_place(url, prefix)
        client = redis.Redis.from_url(
            place.url,
            protocol=2,
            socket_timeout=timeout_seconds,
            retry=Retry(ExponentialBackoff(), 0),
            driver_info=_DRIVER,
        )
    _find_first(client.connection_pool, place, FindingSyncConnection)
    return client


class LaneClient(aioredis.Redis):
    """redis-py's client for single commands, and a lane for scripts.

    Attributes:
        lane: carries the scripts.
        retries: how often a script is called again that got no answer.
        failover_seconds: how long it is called again while another server takes over.
    """

    lane: Lane
    retries: int
    failover_seconds: float

    @classmethod
    def over(cls, pool: Any, place: ServerUrl, timeout_seconds: float, retries: int) -> LaneClient:
        """A client of which each answer comes within a time."""
        client: Any = cls.from_pool(pool)
        _find_first(pool, place, FindingConnection)
        plain = pool.connection_class
        pool.connection_class = type(plain.__name__, (_CancellableWrites, plain), {})
        client.lane = Lane(pool.make_connection, timeout_seconds)
        client.retries = retries
        client.failover_seconds = _FAILOVER_SECONDS if place.finder and retries else 0.0
        client._popping = {}
        client._timeout = timeout_seconds
        made: LaneClient = client
        return made

    def lane_for(self, key: str) -> Lane:
        """The lane of somebody who waits for elements of a list: it carries nothing of others."""
        if key not in self._popping:
            self._popping[key] = Lane(self.connection_pool.make_connection, self._timeout)
        return self._popping[key]

    async def reconnect(self) -> None:
        """Use other connections from now on: the server has been replaced."""
        for lane in (self.lane, *self._popping.values()):
            lane.reset()
        await self.connection_pool.disconnect(inuse_connections=True)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Wait for what is under way, but not long, and close all connections."""
        await self.lane.aclose(_CLOSE_SECONDS)
        for lane in self._popping.values():
            await lane.aclose()
        await super().aclose(close_connection_pool)

    _popping: dict[str, Lane]
    _timeout: float


class Scripts:
    """The Lua scripts of one namespace, called over the lane of a client.

    Calls that are made at a time share round trips, and answer each its own caller.

    Args:
        lane: another one.
        replicas: how many must confirm what `run_confirmed` wrote.
    """

    def __init__(
        self, client: AsyncRedis, prefix: str, lane: Lane | None = None, replicas: int = 0
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.replicas = replicas
        self.lane: Lane = lane or client.lane

    async def run(self, name: str, *args: Any) -> Any:
        """Run a script; loads it into the server when that does not know it yet.

        It is called again while there is no answer, unless the client is one that repeats nothing;
        and where another server may take over, while none has.
        A cancelled caller does not undo the call.

        Raises:
            ServerUnreachableError: no answer, also after the retries.
            ConfigurationError: Redis does not let us in, or forbids the script.
            NonetError: the script failed.
        """
        return await self._repeat(self.lane.call, name, args)

    async def run_confirmed(self, name: str, *args: Any) -> tuple[Any, bool]:
        """`run`, and whether as many replicas as are asked for have what it wrote.

        If they do not have it in time, it was written nevertheless.
        """
        if not self.replicas:
            return await self.run(name, *args), True
        answer, replicas = await self._repeat(self._call_and_wait, name, args)
        return answer, replicas >= self.replicas

    async def _repeat(
        self, call: Callable[..., Awaitable[Any]], name: str, args: Sequence[Any]
    ) -> Any:
        source, digest = script(name)
        failures, began = 0, time.monotonic()
        while True:
            try:
                try:
                    return await call("EVALSHA", digest, 1, self.prefix, *args)
                except exceptions.NoScriptError:
                    return await call("EVAL", source, 1, self.prefix, *args)
            except REFUSALS as error:
                if not self._may_repeat(error, failures, began):
                    raise _told(error, self.client, name) from error
            await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1

    async def _call_and_wait(self, *command: Any) -> tuple[Any, int]:
        mark, _ = script("mark")
        wait = ("WAIT", self.replicas, _CONFIRM_MS)
        answers = self.lane.call_together(command, ("EVAL", mark, 1, self.prefix), wait)
        answer, _, replicas = await asyncio.gather(*answers)
        return answer, replicas

    def _may_repeat(self, error: Exception, failures: int, began: float) -> bool:
        if failures < self.client.retries and isinstance(error, _RETRIED):
            return True
        waits = isinstance(error, _RETRIED) or will_pass(error)
        return waits and time.monotonic() < began + self.client.failover_seconds


def run_sync(client: SyncRedis, prefix: str, name: str, *args: Any) -> Any:
    """`Scripts.run` for a synchronous client."""
    source, digest = script(name)
    finder = client.connection_pool.connection_kwargs.get("finder")
    if finder is not None and finder.is_told_first:
        client.connection_pool.disconnect()  # it is called rarely, and finds the server anew
    try:
        try:
            return client.evalsha(digest, 1, prefix, *args)
        except exceptions.NoScriptError:
            return client.eval(source, 1, prefix, *args)
    except REFUSALS as error:
        raise _told(error, client, name) from error


@cache
def script(name: str) -> tuple[str, str]:
    """Source and SHA-1 of a script with its parts.

    ``@include PART …`` is replaced by the parts. ``@defer PART … FUNCTION`` becomes that function,
    which sets the parts up when it is called: each call of a script makes all its functions anew,
    and most ends of a task wake nobody.
    """
    folder = files("nonet.stores") / "scripts"

    def read(file: str) -> str:
        return (folder / f"{file}.lua").read_text(encoding="utf-8")

    def parts(names: str) -> str:
        return "\n".join(read(f"lib/{name}") for name in names.split())

    def deferred(match: re.Match[str]) -> str:
        function = match[2]
        return f"local function {function}(...)\n{parts(match[1])}return {function}(...)\nend"

    text = read(name)
    source = re.sub(r"^-- @include (.+)$", lambda match: parts(match[1]), text, flags=re.MULTILINE)
    source = re.sub(r"^-- @defer (.+) (\w+)$", deferred, source, flags=re.MULTILINE)
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@asynccontextmanager
async def server_errors(client: AsyncRedis, script: str = "") -> AsyncIterator[None]:
    """Translate what Redis says into errors of ours, once, at this edge."""
    try:
        yield
    except REFUSALS as error:
        raise _told(error, client, script) from error


async def blocking_pop(client: AsyncRedis, key: str) -> bytes | None:
    """Wait at most `BLOCK_SECONDS` for the next element of a list; None if there was none."""
    lane = client.lane_for(key)
    try:
        popped = await lane.call("BLPOP", key, BLOCK_SECONDS)
    except asyncio.CancelledError:
        lane.reset()  # or Redis would give it the next element
        raise
    except REFUSALS as error:
        raise _told(error, client) from error
    return popped[1] if popped else None


def literal(text: str) -> str:
    """`text` with the wildcards of a pattern for ``SCAN`` escaped."""
    return "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in text)


async def ping(client: AsyncRedis) -> None:
    """Raise `ServerUnreachableError` unless the server answers."""
    async with server_errors(client), asyncio.timeout(_TIMEOUT_SECONDS * (_RETRIES + 1)):
        await client.ping()


class _CancellableWrites:
    """Writes of a connection that a cancellation reaches.

    redis-py writes inside `asyncio.wait_for`, which in Python 3.11 returns as if nothing had
    happened when it is cancelled in the step in which the write ends (CPython issue 86296). It
    also costs a task per command.
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        timeout, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(timeout):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]  # of the connection class that this is mixed into
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise exceptions.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = timeout


@contextmanager
def _url_errors(url: str) -> Iterator[None]:
    problem = url_problem(url)  # before redis-py, which quotes what it cannot read
    try:
        if not problem:
            yield
            return
    except (ValueError, AttributeError) as error:
        problem = str(error)
    raise ConfigurationError(f"NONET_REDIS_URL {masked(url)!r}: {problem}") from None


def _find_first(pool: Any, place: ServerUrl, how: type) -> None:
    """Let the connections of a pool find their server, if it is no fixed one.

    Raises:
        ConfigurationError: the URL has a parameter that no connection takes.
    """
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        name = re.search(r"argument '(\w+)'", str(error))
        tls = "; with TLS it is rediss://" if name and name[1].startswith("ssl_") else ""
        raise ConfigurationError(
            f"NONET_REDIS_URL {masked(place.url)!r}: parameter {name[1] if name else error!r} is "
            f"not known{tls}"
        ) from None
    if place.finder is not None:
        plain = pool.connection_class
        pool.connection_class = type(plain.__name__, (how, plain), {})
        pool.connection_kwargs["finder"] = place.finder


def _told(error: Exception, client: AsyncRedis | SyncRedis, script: str = "") -> NonetError:
    is_found = "finder" in client.connection_pool.connection_kwargs
    return translated(error, _address(client), script, is_found=is_found)


def _address(client: AsyncRedis | SyncRedis) -> str:
    """The URL that a client was made of, without its password."""
    pool = client.connection_pool
    options = pool.connection_kwargs
    if "finder" in options:
        return str(options["finder"])
    user = options.get("username") or ""
    login = f"{user}{':***' if options.get('password') else ''}"
    at = f"{login}@" if login else ""
    database = options.get("db", 0)
    if "path" in options:
        return f"unix://{at}{options['path']}?db={database}"
    tls = issubclass(pool.connection_class, (aioredis.SSLConnection, redis.SSLConnection))
    server = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{'rediss' if tls else 'redis'}://{at}{server}/{database}"
