"""`Endpoint`: the server behind a Redis URL, shared by all connections of this process to it.

Another server may take over while connections to the old one stay open: a managed service promotes
a replica, a Kubernetes Service gets another target, an operator orders a failover of Sentinel. The
connection that notices this first makes the others reconnect, so that no process works on two
servers. It notices

* a refusal such as ``READONLY``, see `nonet.stores.connection.replies.is_elsewhere`,
* on a new connection, the ``run_id`` of a server that is new to this process,
* a new epoch, see `nonet.stores.connection.epoch`.

`EndpointConnection` and `EndpointSyncConnection` add this to the connections of redis-py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from redis import exceptions
from redis.connection import parse_url

from nonet.base.errors import ConfigurationError
from nonet.base.loop import in_own_thread
from nonet.stores.connection.replies import code_of, is_elsewhere
from nonet.stores.connection.topology import Finder, read_place


class Wire(Protocol):
    """An open connection with calls in flight."""

    def give_up(self) -> None:
        """Close it soon. Thread-safe."""


class Endpoint:
    """The server behind a Redis URL, as far as this process knows it. Thread-safe.

    Attributes:
        url: a URL of one server that redis-py can parse.
        finder: finds that server; None: its address is in `url`.
        generation: rises when open connections must no longer be used. A connection remembers
            the generation in which it was opened.
        url_file: file that holds the URL; empty: none.
    """

    def __init__(self, url: str, finder: Finder | None) -> None:
        self.url = url
        self.finder = finder
        self.generation = 0
        self.url_file = ""
        self._login: dict[str, Any] = {}
        self._met: set[bytes] = set()
        # Changed and copied in single steps, as several threads use it.
        self._wires: set[Wire] = set()

    def opened(self, wire: Wire) -> None:
        """Remember a connection, to close it when another server takes over."""
        self._wires.add(wire)

    def closed(self, wire: Wire) -> None:
        """Forget a connection."""
        self._wires.discard(wire)

    def is_elsewhere(self, error: BaseException) -> bool:
        """Whether an error means that another server may serve this URL now."""
        # A node of a cluster always redirects clients that cannot follow.
        return is_elsewhere(error) and (self.finder is not None or code_of(error) != "MOVED")

    def leave(self, generation: int | None = None) -> None:
        """Close all connections, because another server may have taken over.

        Args:
            generation: the generation of the connection that noticed it. If it is outdated, another
                connection was faster, and nothing happens. None: close them in any case.
        """
        if generation in (None, self.generation):
            self.generation += 1
            for wire in tuple(self._wires):
                wire.give_up()

    def suspect(self, generation: int) -> None:
        """Reuse no idle connection of this generation, because one of them has not answered.

        Connections with calls in flight may still work, and have time-outs of their own.
        """
        if generation == self.generation:
            self.generation += 1

    def meet(self, run_id: bytes, generation: int) -> int:
        """Note which server a new connection has reached; return the connection's generation.

        A known server changes nothing: a proxy may spread connections over several servers.
        """
        if run_id in self._met:
            return generation
        is_another = bool(self._met)
        self._met.add(run_id)
        if is_another:
            logger.info("Redis server changed: reopening all connections")
            self.leave(generation)
        return self.generation

    def log_in(self, connection: Any) -> None:
        """Give a connection the login that was last read from `url_file`."""
        for name, text in self._login.items():
            setattr(connection, name, text)

    def reread_login(self, connection: Any) -> bool:
        """Read `url_file` again; return whether its login differs from that of a connection."""
        if not self.url_file:
            return False
        try:
            text = Path(self.url_file).read_text(encoding="utf-8").strip()
            options: Any = parse_url(read_place(text, "").url)  # type: ignore[no-untyped-call]  # redis-py
        except (OSError, ValueError, ConfigurationError):  # it is being replaced, or wrong
            return False
        self._login = {name: options.get(name) for name in ("username", "password")}
        return any(getattr(connection, name) != text for name, text in self._login.items())


logger = logging.getLogger(__name__)

_endpoints: WeakValueDictionary[tuple[str, str], Endpoint] = WeakValueDictionary()


def endpoint_of(url: str, prefix: str) -> Endpoint:
    """Return the endpoint of a URL, for the keys with this prefix.

    Raises:
        ConfigurationError: the URL is wrong or incomplete.
    """
    place = read_place(url, prefix)
    # The node of a cluster depends on the prefix.
    made = Endpoint(place.url, place.finder)
    return _endpoints.setdefault((url, str(place.finder)), made)


class _Connection:
    """What the connections of both clients of redis-py have in common.

    Attributes:
        generation: of the endpoint, when the connection was opened.
    """

    def __init__(self, *, endpoint: Endpoint, **options: Any) -> None:
        self.endpoint = endpoint
        self.generation = endpoint.generation
        super().__init__(**options)

    @property
    def _plain(self) -> Any:
        """The connection of redis-py, without what is added here."""
        return super()

    def _is_outdated(self: Any) -> bool:
        return bool(self.is_connected and self.generation != self.endpoint.generation)

    def _prepare(self: Any) -> None:
        """Become ready to be opened, perhaps once more."""
        # Before it connects: what other connections notice meanwhile concerns this one, too.
        self.generation = self.endpoint.generation
        self.endpoint.log_in(self)
        if getattr(self, "ssl_context", None) is not None:
            self.ssl_context.context = None  # reads certificates anew: they may be replaced

    def _meet(self, info: bytes) -> None:
        if found := re.search(rb"^run_id:(\w+)", info, re.MULTILINE):
            self.generation = self.endpoint.meet(found[1], self.generation)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Notice by the error of a reply that this server, or its connections, are not good."""
        try:
            yield
        except exceptions.TimeoutError:
            self.endpoint.suspect(self.generation)
            raise
        except exceptions.RedisError as error:
            if not self.endpoint.is_elsewhere(error):
                raise
            self.endpoint.leave(self.generation)
            # After this error redis-py closes the connection, and retries over a new one.
            code = getattr(error, "status_code", None)
            raise exceptions.ConnectionError(str(error), status_code=code) from error


class EndpointConnection(_Connection):
    """A connection of redis-py's asyncio client to the server of its endpoint."""

    async def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        """Connect, also if the open connection is outdated. Pools always do."""
        if self._is_outdated():
            await self.disconnect(nowait=True)
        try:
            await self._plain.connect_check_health(*args, **options)
        except exceptions.AuthenticationError:
            if not self.endpoint.reread_login(self):
                raise
            await self._plain.connect_check_health(*args, **options)

    async def _connect(self: Any) -> None:
        self._prepare()
        if (finder := self.endpoint.finder) is not None:
            self.host, self.port = await in_own_thread(finder.find)
        await self._plain._connect()

    async def on_connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        await self._plain.on_connect_check_health(*args, **options)
        await self.send_command("INFO", "server", check_health=False)
        with suppress(exceptions.ResponseError):  # the user may not ask, or the server is busy
            self._meet(await self.read_response())

    async def read_response(self: Any, *args: Any, **options: Any) -> Any:
        with self._noticing():
            return await self._plain.read_response(*args, **options)


class EndpointSyncConnection(_Connection):
    """`EndpointConnection` for the synchronous client of redis-py."""

    def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        """Connect, also if the open connection is outdated. Pools always do."""
        if self._is_outdated():
            self.disconnect()
        try:
            self._plain.connect_check_health(*args, **options)
        except exceptions.AuthenticationError:
            if not self.endpoint.reread_login(self):
                raise
            self._plain.connect_check_health(*args, **options)

    def _connect(self: Any) -> Any:
        self._prepare()
        if (finder := self.endpoint.finder) is not None:
            self.host, self.port = finder.find()
        return self._plain._connect()

    def on_connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        self._plain.on_connect_check_health(*args, **options)
        self.send_command("INFO", "server", check_health=False)
        with suppress(exceptions.ResponseError):
            self._meet(self.read_response())

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        with self._noticing():
            return self._plain.read_response(*args, **options)
