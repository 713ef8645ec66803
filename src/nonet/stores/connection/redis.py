"""Clients of Redis, and calls of the Lua scripts: `connect`, `Scripts`."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from nonet.base.errors import (
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
    masked,
    url_problem,
)
from nonet.base.keys import prefix
from nonet.base.synchronous import sleep
from nonet.stores.connection.endpoint import (
    Endpoint,
    EndpointConnection,
    EndpointSyncConnection,
    endpoint_of,
)
from nonet.stores.connection.lane import Lane
from nonet.stores.connection.replies import REFUSALS, translated
from nonet.telemetry.outage import REDIS

# Every script is safe to repeat, so a call without a reply is retried, in total below DEDUP_TTL.
TIMEOUT_SECONDS = 5.0
RETRIES = 3
_CONNECTIONS = 50
# The longest blocking pop. Its connection waits longer for the answer.
BLOCK_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
# Seconds before each retry of a script. The last pause is repeated during a failover.
_PAUSES = (0.1, 0.2, 0.4)
# How long a script is retried while another server takes over. With the last call it is below
# DEDUP_TTL.
FAILOVER_SECONDS = 14.0
# How long the replicas may take to confirm. The lane is blocked meanwhile.
_CONFIRM_MS = 2000

_SCRIPTS = Path(__file__).parents[1] / "scripts"

# What redis-py tells the server about itself. By default each connection and client would read the
# metadata of the installed package, which takes 2 ms.
DRIVER = DriverInfo(lib_version=redis.__version__)

# redis-py types every reply as `str | bytes | …`. Here replies are always bytes, and Any avoids a
# cast at each call.
AsyncRedis = Any
SyncRedis = Any
RETRIED = (exceptions.ConnectionError, exceptions.TimeoutError)


def connect(url: str, prefix: str) -> AsyncRedis:
    """Make a client for commands and scripts, which connects at its first use.

    Args:
        url: see `nonet.stores.connection.topology.read_place`.
        prefix: prefix of the keys of the namespace.

    Raises:
        ConfigurationError: the URL is not a valid Redis URL.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=1.0, base=0.05), RETRIES, RETRIED)
    with url_errors(url):
        endpoint = endpoint_of(url, prefix)
        # When all connections are in use, callers wait. The plain pool would raise an error.
        pool = aioredis.BlockingConnectionPool.from_url(
            endpoint.url,
            max_connections=_CONNECTIONS,
            timeout=TIMEOUT_SECONDS * (RETRIES + 1),
            protocol=2,
            socket_timeout=TIMEOUT_SECONDS,
            retry=retry,
            driver_info=DRIVER,
        )
    return LaneClient.over(pool, endpoint, TIMEOUT_SECONDS, RETRIES)


def connect_blocking(url: str, prefix: str) -> AsyncRedis:
    """Make a client for blocking pops, which outwaits them and never repeats one itself."""
    with url_errors(url):
        endpoint = endpoint_of(url, prefix)
        pool = aioredis.ConnectionPool.from_url(
            endpoint.url,
            protocol=2,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=BLOCK_SECONDS + TIMEOUT_SECONDS,
            retry=AsyncRetry(ExponentialBackoff(), 0),
            driver_info=DRIVER,
        )
    return LaneClient.over(pool, endpoint, BLOCK_SECONDS + TIMEOUT_SECONDS, 0)


def connect_sync(url: str, prefix: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> SyncRedis:
    """Make a client for a thread. It does not retry: its callers renew periodically anyway."""
    with url_errors(url):
        endpoint = endpoint_of(url, prefix)
        client = redis.Redis.from_url(
            endpoint.url,
            protocol=2,
            socket_timeout=timeout_seconds,
            retry=Retry(ExponentialBackoff(), 0),
            driver_info=DRIVER,
        )
    connect_to(endpoint, client.connection_pool, EndpointSyncConnection)
    return client


class LaneClient(aioredis.Redis):
    """The client of redis-py for single commands, with a lane for scripts.

    Attributes:
        lane: connection for scripts.
        endpoint: the server that its connections reach.
        retries: how often a script without an answer is called again.
    """

    lane: Lane
    endpoint: Endpoint
    retries: int

    @classmethod
    def over(
        cls, pool: Any, endpoint: Endpoint, timeout_seconds: float, retries: int
    ) -> LaneClient:
        """Make a client over a pool of connections. Its calls end within `timeout_seconds`."""
        client: Any = cls.from_pool(pool)
        connect_to(endpoint, pool, EndpointConnection)
        plain = pool.connection_class
        pool.connection_class = type(plain.__name__, (_Writes, plain), {})
        client.lane = Lane(pool.make_connection, timeout_seconds)
        client.endpoint = endpoint
        client.retries = retries
        client._popping = {}
        client._timeout = timeout_seconds
        made: LaneClient = client
        return made

    def lane_for(self, key: str) -> Lane:
        """Return a separate lane for blocking pops from a list, which would block other calls."""
        if key not in self._popping:
            self._popping[key] = Lane(self.connection_pool.make_connection, self._timeout)
        return self._popping[key]

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a single command; its errors are those of Nonet."""
        self.lane.check_loop()
        async with server_errors(self):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _Pipeline:
        """Collect commands, and send them together."""
        made = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.lane = self.lane
        return made

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Wait at most a second for calls in flight, then close all connections."""
        await self.lane.aclose(_CLOSE_SECONDS)
        for lane in self._popping.values():
            await lane.aclose()
        await super().aclose(close_connection_pool)

    _popping: dict[str, Lane]
    _timeout: float


class _Pipeline(aioredis.client.Pipeline):
    lane: Lane

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands and return their replies; errors are those of Nonet."""
        self.lane.check_loop()
        async with server_errors(self):
            return await super().execute(raise_on_error)


class Scripts:
    """Calls the Lua scripts for one namespace over the lane of a client.

    Concurrent calls share round trips.

    Args:
        lane: a lane to use instead of that of the client.
        replicas: how many replicas must confirm the writes of `run_confirmed`.
    """

    def __init__(
        self, client: AsyncRedis, prefix: str, lane: Lane | None = None, replicas: int = 0
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.replicas = replicas
        self.lane: Lane = lane or client.lane

    def run(self, name: str, *args: Any) -> Coroutine[Any, Any, Any]:
        """Run a script, and load it into the server if necessary.

        A call without an answer is retried, unless the client retries nothing. If another server
        may take over, retries continue until it has. Cancelling the caller does not undo the call.

        Raises:
            ServerUnreachableError: no answer, even after the retries.
            ConfigurationError: Redis refuses the login, or forbids the script.
            NonetError: the script failed.
        """
        return self._repeat(name, self.lane.call, self._command(name, args))

    def read(self, *command: Any) -> Coroutine[Any, Any, Any]:
        """Send a command that only reads, and retry it like a script.

        A running task reads with it: a failover must not end an attempt that merely waits for data.

        Raises:
            ServerUnreachableError: no answer, even after the retries.
            NonetError: Redis refuses the command.
        """
        return self._repeat("", self.lane.call, command)

    async def run_confirmed(self, name: str, *args: Any) -> tuple[Any, bool]:
        """Run a script, and report whether enough replicas have confirmed what it wrote.

        Without their confirmation in time the writes stay nevertheless.
        """
        command = self._command(name, args)
        if not self.replicas:
            return await self._repeat(name, self.lane.call, command), True
        answer, replicas = await self._repeat(name, self._call_and_wait, command)
        return answer, replicas >= self.replicas

    def _command(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return ("EVALSHA", script(name)[1], 1, self.prefix, *args)

    async def _repeat(
        self, name: str, send: Callable[..., Awaitable[Any]], command: tuple[Any, ...]
    ) -> Any:
        endpoint, failures, began = self.client.endpoint, 0, time.monotonic()
        is_switching = endpoint.finder is not None
        while True:
            try:
                answer = await send(*command)
                if REDIS.is_unavailable:
                    REDIS.answered()
                return answer
            except exceptions.NoScriptError:
                command = ("EVAL", script(name)[0], *command[2:])
                continue
            except REFUSALS as error:
                is_switching = is_switching or endpoint.is_elsewhere(error)
                if not self._may_repeat(error, failures, began, is_switching=is_switching):
                    raise _translated(error, self.client, name) from error
            await sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1

    async def _call_and_wait(self, *command: Any) -> tuple[Any, int]:
        mark, _ = script("mark")
        wait = ("WAIT", self.replicas, _CONFIRM_MS)
        answers = self.lane.call_together(command, ("EVAL", mark, 1, self.prefix), wait)
        answer, _, replicas = await answers
        return answer, replicas

    def _may_repeat(
        self, error: Exception, failures: int, began: float, *, is_switching: bool
    ) -> bool:
        """Whether to call again: a few times after lost replies, longer during a failover."""
        if not self.client.retries:
            return False
        is_lost = isinstance(error, RETRIED)
        if is_lost and failures < self.client.retries:
            return True
        waits = (is_lost and is_switching) or self.client.endpoint.is_elsewhere(error)
        return waits and time.monotonic() < began + FAILOVER_SECONDS


class RedisStore:
    """Data of one namespace in Redis.

    Args:
        client: of the broker.
    """

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)


def run_sync(client: SyncRedis, prefix: str, name: str, *args: Any) -> Any:
    """`Scripts.run` for a synchronous client."""
    source, digest = script(name)
    finder = _endpoint(client).finder
    if finder is not None and finder.is_announced:
        client.connection_pool.disconnect()  # calls are rare, so each of them finds the server anew
    try:
        try:
            answer = client.evalsha(digest, 1, prefix, *args)
        except exceptions.NoScriptError:
            answer = client.eval(source, 1, prefix, *args)
        if REDIS.is_unavailable:
            REDIS.answered()
        return answer
    except REFUSALS as error:
        raise _translated(error, client, name) from error


@cache
def script(name: str) -> tuple[str, str]:
    """Source and SHA-1 of a script with its parts, see `with_parts`."""
    source = _source(name)
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def with_parts(text: str) -> str:
    """Insert the parts that a script names.

    ``@include PART …`` is replaced by the parts. ``@defer PART … FUNCTION`` becomes that function,
    which defines the parts only when it is called. Each call of a script defines its functions
    anew, and most calls need only a few: most tasks, for example, wake no other task when they end.
    Both may stand in parts, too.
    """
    return re.sub(r"^-- @(include|defer) (.+)$", _expanded, text, flags=re.MULTILINE)


def _expanded(match: re.Match[str]) -> str:
    *names, last = match[2].split()
    if match[1] == "include":
        names.append(last)
    text = "\n".join(_source(f"lib/{name}") for name in names)
    if match[1] == "include":
        return text
    return f"local function {last}(...)\n{text}return {last}(...)\nend"


@cache  # scripts share most parts
def _source(file: str) -> str:
    return with_parts((_SCRIPTS / f"{file}.lua").read_text(encoding="utf-8"))


@asynccontextmanager
async def server_errors(client: AsyncRedis, script: str = "") -> AsyncIterator[None]:
    """Translate errors of redis-py into errors of Nonet."""
    try:
        yield
    except REFUSALS as error:
        raise _translated(error, client, script) from error


async def blocking_pop(client: AsyncRedis, key: str) -> bytes | None:
    """Wait at most `BLOCK_SECONDS` for the next element of a list; None: there was none."""
    lane = client.lane_for(key)
    try:
        popped = await lane.call("BLPOP", key, BLOCK_SECONDS)
    except asyncio.CancelledError:
        lane.reset()  # otherwise Redis would pop the next element for this call
        raise
    except REFUSALS as error:
        raise _translated(error, client) from error
    return popped[1] if popped else None


def literal(text: str) -> str:
    """Escape the wildcards of a ``SCAN`` pattern."""
    return "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in text)


async def ping(client: AsyncRedis) -> None:
    """Raise `ServerUnreachableError` unless the server answers."""
    async with server_errors(client), asyncio.timeout(TIMEOUT_SECONDS * (RETRIES + 1)):
        await client.ping()


class _Writes:
    """Makes the writes of a connection cancellable.

    redis-py writes inside `asyncio.wait_for`. In Python 3.11 that swallows a cancellation which
    comes in the same step of the event loop as the end of the write (CPython issue 86296).
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        timeout, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(timeout):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]  # of the connection class
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise exceptions.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = timeout


@contextmanager
def url_errors(url: str) -> Iterator[None]:
    problem = url_problem(url)  # before redis-py, which quotes passwords in its errors
    try:
        if not problem:
            yield
            return
    except (ValueError, AttributeError) as error:
        problem = str(error)
    raise ConfigurationError(f"NONET_REDIS_URL {masked(url)!r}: {problem}") from None


def connect_to(endpoint: Endpoint, pool: Any, how: type) -> None:
    """Let a pool make connections to the server of an endpoint.

    Raises:
        ConfigurationError: the URL has an unknown parameter.
    """
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        name = re.search(r"argument '(\w+)'", str(error))
        tls = ": TLS needs rediss://" if name and name[1].startswith("ssl_") else ""
        raise ConfigurationError(
            f"NONET_REDIS_URL {masked(endpoint.url)!r}: "
            f"parameter {name[1] if name else error!r} is not known{tls}"
        ) from None
    plain = pool.connection_class
    pool.connection_class = type(plain.__name__, (how, plain), {})
    pool.connection_kwargs["endpoint"] = endpoint


def _endpoint(client: AsyncRedis | SyncRedis) -> Endpoint:
    found: Endpoint = client.connection_pool.connection_kwargs["endpoint"]
    return found


def _translated(error: Exception, client: AsyncRedis | SyncRedis, script: str = "") -> NonetError:
    is_found = _endpoint(client).finder is not None
    found = translated(error, _address(client), script, is_found=is_found)
    if isinstance(found, ServerUnreachableError):
        found.server = "Redis"
    return found


def _address(client: AsyncRedis | SyncRedis) -> str:
    """The URL of a client, without its password."""
    pool = client.connection_pool
    options = pool.connection_kwargs
    if (finder := _endpoint(client).finder) is not None:
        return str(finder)
    user = options.get("username") or ""
    login = f"{user}{':***' if options.get('password') else ''}"
    at = f"{login}@" if login else ""
    database = options.get("db", 0)
    if "path" in options:
        return f"unix://{at}{options['path']}?db={database}"
    tls = issubclass(pool.connection_class, (aioredis.SSLConnection, redis.SSLConnection))
    server = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{'rediss' if tls else 'redis'}://{at}{server}/{database}"
