"""Finds the server of a namespace: a fixed one, the master of Sentinel, or a node of a cluster.

All keys of a namespace are in one slot, so at any time one server has them all. A connection finds
that server before it connects, and reconnects if the server redirects or refuses it. The rest of
the code sees one server.

While a slot is being moved (ASK, TRYAGAIN), its keys are on two nodes, and a script would see only
some of them. So no command goes to the new node before it has them all: the namespace pauses.
See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#ask-redirection
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio as aioredis
from msgspec import Struct
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.crc import key_slot
from redis.retry import Retry

from nonet.base.errors import ConfigurationError, masked
from nonet.base.loop import in_own_thread

# Sentinels and nodes that do not answer in time are skipped.
_ASK_SECONDS = 1.0
_STRAGGLERS_SECONDS = 0.2
# Poll, too, as the connection to a Sentinel may hang and announce nothing.
_FOLLOW_SECONDS = 5.0
_SENTINEL_PORT, _REDIS_PORT = 26379, 6379
_SCHEMES, _KINDS = ("redis", "rediss"), ("sentinel", "cluster")
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
Address = tuple[str, int]

logger = logging.getLogger(__name__)


class Finder(Protocol):
    """Finds the server of a namespace.

    Attributes:
        is_announced: whether a replacement is known elsewhere before the old server notices it.
    """

    is_announced: bool

    def __str__(self) -> str:
        """A description without a password."""

    def find(self) -> Address:
        """Ask over the network for the current address.

        Raises:
            ConnectionError: the address is unknown now (an error of redis-py).
            ConfigurationError: the URL is wrong.
        """

    async def listen(self, heard: asyncio.Event) -> None:
        """Set `heard` whenever `find` may have another answer; runs forever."""

    def services(self) -> list[Mapping[str, str]]:
        """The fields that each Sentinel reports of the service; empty without Sentinels."""


class ServerUrl(Struct, frozen=True):
    """A parsed Redis URL.

    Attributes:
        url: a URL of one server that redis-py can parse.
        finder: finds that server; None: its address is in `url`.
    """

    url: str
    finder: Finder | None = None


def read_place(url: str, prefix: str) -> ServerUrl:
    """Parse a Redis URL; docs/how-to/prepare-redis.md lists the forms.

    Args:
        prefix: prefix of the keys of the namespace.

    Raises:
        ConfigurationError: the URL is wrong or incomplete.

    Example:
        >>> read_place("redis+cluster://a:7000,b:7000", "{nonet}:").url
        'redis://a:7000/0'
    """
    scheme, _, kind = url.partition("://")[0].partition("+")
    if kind and (scheme not in _SCHEMES or kind not in _KINDS):
        known = ", ".join(f"{scheme}+{kind}://" for scheme in _SCHEMES for kind in _KINDS)
        raise _wrong(url, f"use redis://, rediss://, unix://, embedded://, {known}")
    if not kind:
        return ServerUrl(url)
    parts = urlsplit(url)
    login, at, servers = parts.netloc.rpartition("@")
    service, _, database = unquote(parts.path).strip("/").partition("/")
    if kind == "cluster":
        service, database = "", service or database
    query = dict(parse_qsl(parts.query))
    sentinel_login = {
        name.removeprefix("sentinel_"): query.pop(name) for name in _SENTINEL_LOGIN if name in query
    }
    if not servers.strip(","):
        raise _wrong(url, "it names no server")
    addresses = _addresses(servers, _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT)
    host, port = addresses[0]
    shown = f"[{host}]" if ":" in host else host
    plain = f"{scheme}://{login}{at}{shown}:{port}/{database or 0}?{urlencode(query)}".rstrip("?")
    options = _options_to_ask(plain)
    if kind == "cluster":
        if database not in ("", "0"):
            raise _wrong(url, "a cluster has one database, 0")
        options = {name: value for name, value in options.items() if name != "db"}
        return ServerUrl(plain, _Cluster(addresses, key_slot(prefix.encode()), options))
    if not service or not re.fullmatch(r"\d*", database):
        raise _wrong(url, "write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE")
    login_free = {
        name: value for name, value in options.items() if name not in ("db", "username", "password")
    }
    return ServerUrl(plain, _Sentinels(addresses, service, {**login_free, **sentinel_login}))


class _Sentinels:
    """Asks all Sentinels for the master of a service; the answer with the highest epoch wins."""

    is_announced = True  # a master that is replaced by a command serves on for up to 10 s

    def __init__(
        self, addresses: Sequence[Address], service: str, options: Mapping[str, Any]
    ) -> None:
        self._addresses = addresses
        self._service = service
        self._options = options

    def __str__(self) -> str:
        return f"the Sentinels {_shown(self._addresses)}, service {self._service!r}"

    def find(self) -> Address:
        answers = self._ask_all()
        opinions = [one for one in answers if not isinstance(one, exceptions.RedisError)]
        masters = [(one.epoch, one.master) for one in opinions if one.master]
        if masters:
            return max(masters)[1]
        known = {name for one in opinions for name in one.services}
        if known and self._service not in known:
            raise ConfigurationError(
                f"NONET_REDIS_URL: Sentinel knows no service {self._service!r}; "
                f"it knows {', '.join(sorted(known))}"
            )
        raise exceptions.ConnectionError(
            f"Sentinel knows no master of {self._service!r} that is up"
            + "".join(
                f"; {_shown([address])}: {error}"
                for address, error in zip(self._addresses, answers, strict=True)
                if isinstance(error, exceptions.RedisError)
            )
        )

    def services(self) -> list[Mapping[str, str]]:
        answers = [one for one in self._ask_all() if isinstance(one, _Answer)]
        return [one.service for one in answers if one.service]

    def _ask_all(self) -> list[_Answer | exceptions.RedisError]:
        """The answers of all Sentinels. After a majority has answered, wait only briefly."""
        pool = ThreadPoolExecutor(len(self._addresses), "nonet-sentinels")
        asked = [pool.submit(self._ask_one, address) for address in self._addresses]
        pool.shutdown(wait=False)
        for spoken, _ in enumerate(as_completed(asked), 1):
            if spoken > len(asked) // 2:
                break
        wait(asked, _STRAGGLERS_SECONDS)
        silence = exceptions.ConnectionError("no answer yet")
        return [one.result() if one.done() else silence for one in asked]

    async def listen(self, heard: asyncio.Event) -> None:
        await asyncio.gather(*(self._listen_to(one, heard) for one in self._addresses))

    async def _listen_to(self, address: Address, heard: asyncio.Event) -> None:
        host, port = address
        while True:
            try:
                async with (
                    aioredis.Redis(host=host, port=port, **self._options) as client,
                    client.pubsub() as channel,
                ):
                    await channel.subscribe("+switch-master")
                    async for _ in channel.listen():
                        heard.set()  # also at the start: a switch may have happened before
            except (exceptions.RedisError, OSError) as error:
                logger.debug("%s:%d: %s", host, port, error)
                await asyncio.sleep(_FOLLOW_SECONDS)

    def _ask_one(self, sentinel: Address) -> _Answer | exceptions.RedisError:
        try:
            masters = _ask(sentinel, self._options, "SENTINEL", "MASTERS")
            services = {item["name"]: item for item in map(_pairs, masters)}
            fields = services.get(self._service, {})
            flags = fields.get("flags", "")
            master = (fields["ip"], int(fields["port"])) if _is_up(flags) else None
            if "failover_in_progress" in flags:  # then MASTERS still names the old one
                name = ("GET-MASTER-ADDR-BY-NAME", self._service)
                host, port = _ask(sentinel, self._options, "SENTINEL", *name)
                master = host.decode(), int(port)
        except exceptions.RedisError as error:
            return error
        return _Answer(services.keys(), master, int(fields.get("config-epoch", 0)), fields)


class _Answer(Struct, frozen=True):
    """The answer of one Sentinel.

    Attributes:
        services: names of all services that it knows.
        master: master of the wanted service; None: it is down or unknown.
        epoch: configuration epoch; the highest one is the newest.
        service: all fields of the wanted service.
    """

    services: Collection[str]
    master: Address | None
    epoch: int
    service: Mapping[str, str]


class _Cluster:
    """Asks the nodes of a cluster for the owner of a slot, starting with the last owner."""

    is_announced = False

    def __init__(self, seeds: Sequence[Address], slot: int, options: Mapping[str, Any]) -> None:
        self._seeds = seeds
        self._known = list(seeds)
        self._slot = slot
        self._options = options

    def __str__(self) -> str:
        return f"the cluster {_shown(self._seeds)}, slot {self._slot}"

    async def listen(self, heard: asyncio.Event) -> None:
        await asyncio.Event().wait()  # a replaced node redirects its clients

    def services(self) -> list[Mapping[str, str]]:
        return []

    def find(self) -> Address:
        problems = []
        for address in list(dict.fromkeys((*self._known, *self._seeds))):
            try:
                ranges = _ask(address, self._options, "CLUSTER", "SLOTS")
            except exceptions.RedisError as error:
                if "cluster support disabled" in str(error):
                    raise ConfigurationError(
                        f"NONET_REDIS_URL: {address[0]}:{address[1]} is not a node of a "
                        "cluster: write redis://, or rediss:// with TLS"
                    ) from None
                problems.append(f"{address[0]}:{address[1]}: {error}")
                continue
            nodes = [_address_of(node, address[0]) for item in ranges for node in item[2:]]
            for first, last, node, *_ in ranges:
                if first <= self._slot <= last:
                    owner = _address_of(node, address[0])
                    self._known = list(dict.fromkeys((owner, *nodes)))
                    return owner
            problems.append(f"{address[0]}:{address[1]} knows no owner of slot {self._slot}")
        raise exceptions.ConnectionError(
            "no node of the cluster knows the owner of the namespace: " + "; ".join(problems)
        )


async def follow(finder: Finder, moved: Callable[[], Awaitable[None]]) -> None:
    """Call `moved` whenever another server takes over; runs forever."""
    heard, known = asyncio.Event(), None
    listening = asyncio.create_task(finder.listen(heard), name="listen")
    try:
        while True:
            heard.clear()
            found = await _found(finder) or known
            if known not in (None, found):
                await moved()
            known = found
            with suppress(TimeoutError):
                async with asyncio.timeout(_FOLLOW_SECONDS):
                    await heard.wait()
    finally:
        listening.cancel()
        await asyncio.wait({listening})


async def _found(finder: Finder) -> Address | None:
    try:
        return await in_own_thread(finder.find)
    except (exceptions.RedisError, OSError, ConfigurationError) as error:
        logger.debug("%s: %s", finder, error)  # connections that need a server raise it, too
        return None


def _ask(address: Address, options: Mapping[str, Any], *command: str) -> Any:
    """Send a command to one server, and return its reply."""
    retry = Retry(NoBackoff(), 0)
    timeouts = {"socket_timeout": _ASK_SECONDS, "socket_connect_timeout": _ASK_SECONDS}
    host, port = address
    with redis.Redis(host, port, **{**options, **timeouts}, protocol=2, retry=retry) as client:
        return client.execute_command(*command)


def _options_to_ask(url: str) -> dict[str, Any]:
    """The options in the URL of one server, as arguments of a client of redis-py."""
    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    tls = {"ssl": True} if options.pop("connection_class", None) else {}
    drop = ("host", "port", "socket_timeout", "socket_connect_timeout", "protocol")
    return {name: value for name, value in options.items() if name not in drop} | tls


def _addresses(servers: str, port: int) -> list[Address]:
    """
    >>> _addresses("a:7000,[::1],b", 6379)
    [('a', 7000), ('::1', 6379), ('b', 6379)]
    """
    found = []
    for server in filter(None, servers.split(",")):
        parts = urlsplit(f"//{server}")
        found.append((parts.hostname or "localhost", parts.port or port))
    return found


def _address_of(node: Sequence[Any], asked: str) -> Address:
    """The address of a node in CLUSTER SLOTS. A node without a name has the asked host."""
    host, port, *_ = node
    name = host.decode() if isinstance(host, bytes) else host or ""
    return (asked if name in ("", "?") else name), int(port)


def _shown(addresses: Iterable[Address]) -> str:
    shown = ((f"[{host}]" if ":" in host else host, port) for host, port in addresses)
    return ", ".join(f"{host}:{port}" for host, port in shown)


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    texts = [part.decode() for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _is_up(flags: str) -> bool:
    """Whether the flags of Sentinel describe a master that is up.

    >>> _is_up("master"), _is_up("s_down,master"), _is_up("")
    (True, False, False)
    """
    words = set(flags.split(","))
    return "master" in words and not {"s_down", "o_down", "disconnected"} & words


def _wrong(url: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"NONET_REDIS_URL {masked(url)!r}: {why}")
