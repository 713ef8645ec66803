"""Connections to Redis and the loader of the Lua scripts."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from nonet.errors import ConfigurationError, masked, url_problem
from nonet.stores.replies import REFUSALS, translated

# Every script is safe to repeat, so a lost reply may be retried. Total: below DEDUP_TTL.
_TIMEOUT_SECONDS = 5.0
_RETRIES = 3
_CONNECTIONS = 50
# The longest blocking pop; its connection waits longer than that for the answer.
BLOCK_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
# Calls in one round trip: below it Redis serves others in between.
_BATCH = 200

# redis-py types every reply as `str | bytes | …`; here they are always bytes, and Any says less
# wrong than a cast at each call would.
AsyncRedis = Any
SyncRedis = Any
_RETRIED = (exceptions.ConnectionError, exceptions.TimeoutError)


def connect(url: str) -> AsyncRedis:
    """A client for commands and scripts; connects when first used.

    Raises:
        ConfigurationError: the URL is no Redis URL.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES, _RETRIED)
    with _url_errors(url):
        # Callers beyond the pool wait for a connection; the plain pool would refuse them.
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS * (_RETRIES + 1),
            protocol=2,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=retry,
        )
    return _cancellable(aioredis.Redis.from_pool(pool))


def connect_blocking(url: str) -> AsyncRedis:
    """A client for blocking pops: it waits longer than they do and never repeats one itself."""
    with _url_errors(url):
        client = aioredis.Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=BLOCK_SECONDS + _TIMEOUT_SECONDS,
            retry=AsyncRetry(ExponentialBackoff(), 0),
        )
    return _cancellable(client)


def connect_sync(url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> SyncRedis:
    """A client for a thread of its own. It does not retry: its caller beats again anyway."""
    with _url_errors(url):
        return redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_seconds,
            retry=Retry(ExponentialBackoff(), 0),
        )


class Scripts:
    """The Lua scripts of one namespace, run through one asyncio client."""

    def __init__(self, client: AsyncRedis, prefix: str) -> None:
        self.client = client
        self.prefix = prefix

    async def run(self, name: str, *args: Any) -> Any:
        """Run a script; loads it into the server when that does not know it yet.

        Raises:
            ServerUnreachableError: no answer, also after the retries.
            ConfigurationError: Redis does not let us in, or forbids the script.
            NonetError: the script failed.
        """
        source, digest = script(name)
        async with server_errors(self.client, name):
            try:
                return await self.client.evalsha(digest, 1, self.prefix, *args)
            except exceptions.NoScriptError:
                return await self.client.eval(source, 1, self.prefix, *args)


class BatchedScripts:
    """Scripts whose calls share round trips.

    Calls that are made while a round trip is under way go together in the next one: nothing
    waits for a timer, and one connection serves any number of callers.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._waiting: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def run(self, name: str, *args: Any) -> Any:
        """`Scripts.run`, together with others. A cancelled caller does not undo the call."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, args, answer))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="batched scripts")
        return await answer

    async def aclose(self) -> None:
        """Wait for what is under way, but not long: Redis may be frozen."""
        if self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender}, timeout=_CLOSE_SECONDS)
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[:_BATCH]
            del self._waiting[:_BATCH]
            try:
                answers = await self._round_trip(batch)
            except BaseException as error:
                for _, _, waiting in batch:
                    _resolve(waiting, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for (_, _, waiting), answer in zip(batch, answers, strict=True):
                    _resolve(waiting, answer)

    async def _round_trip(
        self, batch: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]]
    ) -> list[Any]:
        if len(batch) == 1:
            name, args, _ = batch[0]
            return [await self._scripts.run(name, *args)]
        client, prefix = self._scripts.client, self._scripts.prefix
        async with server_errors(client), client.pipeline(transaction=False) as pipe:
            for name, args, _ in batch:
                pipe.evalsha(script(name)[1], 1, prefix, *args)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        for index, answer in enumerate(answers):
            if isinstance(answer, exceptions.RedisError):
                # One by one: the script was not loaded, or this call alone is wrong.
                name, args, _ = batch[index]
                try:
                    answers[index] = await self._scripts.run(name, *args)
                except Exception as error:
                    answers[index] = error
        return answers


def _resolve(waiting: asyncio.Future[Any], answer: Any) -> None:
    if waiting.done():
        return
    if isinstance(answer, BaseException):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def run_sync(client: SyncRedis, prefix: str, name: str, *args: Any) -> Any:
    """`Scripts.run` for a synchronous client."""
    source, digest = script(name)
    try:
        try:
            return client.evalsha(digest, 1, prefix, *args)
        except exceptions.NoScriptError:
            return client.eval(source, 1, prefix, *args)
    except REFUSALS as error:
        raise translated(error, _address(client), name) from error


@cache
def script(name: str) -> tuple[str, str]:
    """Source and SHA-1 of a script with its parts.

    ``@include PART …`` is replaced by the parts. ``@defer PART … FUNCTION`` becomes that function,
    which sets the parts up when it is called: each call of a script makes all its functions anew,
    and most ends of a task wake nobody.
    """
    folder = files(__package__) / "scripts"
    text = (folder / f"{name}.lua").read_text()

    def parts(names: str) -> str:
        return "\n".join((folder / "lib" / f"{name}.lua").read_text() for name in names.split())

    def deferred(match: re.Match[str]) -> str:
        function = match[2]
        return f"local function {function}(...)\n{parts(match[1])}return {function}(...)\nend"

    source = re.sub(r"^-- @include (.+)$", lambda match: parts(match[1]), text, flags=re.MULTILINE)
    source = re.sub(r"^-- @defer (.+) (\w+)$", deferred, source, flags=re.MULTILINE)
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@asynccontextmanager
async def server_errors(client: AsyncRedis, script: str = "") -> AsyncIterator[None]:
    """Translate what Redis says into errors of ours, once, at this edge."""
    try:
        yield
    except REFUSALS as error:
        raise translated(error, _address(client), script) from error


async def blocking_pop(client: AsyncRedis, key: str) -> bytes | None:
    """Wait at most `BLOCK_SECONDS` for the next element of a list; None if there was none."""
    async with server_errors(client):
        popped = await client.blpop([key], timeout=BLOCK_SECONDS)
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


def _cancellable(client: AsyncRedis) -> AsyncRedis:
    pool = client.connection_pool
    plain = pool.connection_class
    pool.connection_class = type(plain.__name__, (_CancellableWrites, plain), {})
    return client


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


def _address(client: AsyncRedis | SyncRedis) -> str:
    """The URL that a client was made of, without its password."""
    pool = client.connection_pool
    options = pool.connection_kwargs
    user = options.get("username") or ""
    login = f"{user}{':***' if options.get('password') else ''}"
    at = f"{login}@" if login else ""
    database = options.get("db", 0)
    if "path" in options:
        return f"unix://{at}{options['path']}?db={database}"
    tls = issubclass(pool.connection_class, (aioredis.SSLConnection, redis.SSLConnection))
    server = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{'rediss' if tls else 'redis'}://{at}{server}/{database}"
