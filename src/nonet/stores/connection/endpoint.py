"""`Endpoint`: where a Redis URL leads, shared by all connections of this process that use it.

Another server may take over while connections to the old one stay open: a managed service promotes
a replica, a Kubernetes Service gets another target, Sentinel obeys an order. The connection that
notices this first makes the others reconnect, so that no process works on two servers. It notices

* a reply that means "not I, not now", see `nonet.stores.connection.replies.is_elsewhere`,
* the ``run_id`` of a server that this process has not met, on a new connection,
* a new epoch, see `nonet.stores.connection.epoch`.

`EndpointConnection` and `EndpointSyncConnection` add this to the connections of redis-py.
"""

from __future__ import annotations

import logging
import re
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
    """Where a Redis URL leads, as this process knows it. Thread-safe.

    Attributes:
        url: a URL of one server that redis-py can parse.
        finder: finds that server; None: its address is in `url`.
        generation: rises when open connections are no longer to be used. A connection remembers
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
        """Close all connections: their server is no longer the right one.

        Args:
            generation: of the connection that has noticed it. If it is an earlier one than now,
                another connection was first. None: do it in any case.
        """
        if generation in (None, self.generation):
            self.generation += 1
            for wire in tuple(self._wires):
                wire.give_up()

    def suspect(self, generation: int) -> None:
        """Reuse no idle connection of this generation: one of them has not answered.

        Connections with calls in flight may still be good, and have time-outs of their own.
        """
        if generation == self.generation:
            self.generation += 1

    def meet(self, run_id: bytes, generation: int) -> int:
        """Note which server a new connection has reached; return the generation that it is of.

        A server that was met before changes nothing: a proxy may spread connections over several.
        """
        if run_id in self._met:
            return generation
        is_another = bool(self._met)
        self._met.add(run_id)
        if is_another:
            logger.info("Redis server changed: opening all connections anew")
            self.leave(generation)
        return self.generation

    def log_in(self, connection: Any) -> None:
        """Let a connection use the login that `url_file` had last."""
        for name, text in self._login.items():
            setattr(connection, name, text)

    def reread_login(self, connection: Any) -> bool:
        """Read the login in `url_file`; return whether a refused connection has used another."""
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


class EndpointConnection:
    """A connection of the asyncio client of redis-py that goes where its endpoint leads."""

    def __init__(self, *, endpoint: Endpoint, **options: Any) -> None:
        self.endpoint = endpoint
        self.generation = endpoint.generation
        super().__init__(**options)

    async def connect(self: Any) -> None:
        """Connect, also if the open connection is to be used no longer. Pools always call it."""
        if self.is_connected and self.generation != self.endpoint.generation:
            await self.disconnect(nowait=True)
        await super().connect()  # type: ignore[misc]  # of the connection class

    async def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        try:
            await super().connect_check_health(*args, **options)  # type: ignore[misc]  # as above
        except exceptions.AuthenticationError:
            if not self.endpoint.reread_login(self):
                raise
            await super().connect_check_health(*args, **options)  # type: ignore[misc]  # as above

    async def _connect(self: Any) -> None:
        _prepare(self)
        if (finder := self.endpoint.finder) is not None:
            self.host, self.port = await in_own_thread(finder.find)
        await super()._connect()  # type: ignore[misc]  # as above

    async def on_connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        await super().on_connect_check_health(*args, **options)  # type: ignore[misc]  # as above
        await self.send_command("INFO", "server", check_health=False)
        try:
            _meet(self, await self.read_response())
        except exceptions.ResponseError:
            return  # the user may not ask, or the server is busy

    async def read_response(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]  # as above
        except exceptions.TimeoutError:
            self.endpoint.suspect(self.generation)
            raise
        except exceptions.RedisError as error:
            if not self.endpoint.is_elsewhere(error):
                raise
            await self.disconnect(nowait=True)
            self.endpoint.leave(self.generation)
            raise _again(error) from error


class EndpointSyncConnection:
    """`EndpointConnection` for the synchronous client of redis-py."""

    def __init__(self, *, endpoint: Endpoint, **options: Any) -> None:
        self.endpoint = endpoint
        self.generation = endpoint.generation
        super().__init__(**options)

    def connect(self: Any) -> None:
        """Connect, also if the open connection is to be used no longer. Pools always call it."""
        if self.is_connected and self.generation != self.endpoint.generation:
            self.disconnect()
        super().connect()  # type: ignore[misc]  # of the connection class

    def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        try:
            super().connect_check_health(*args, **options)  # type: ignore[misc]  # as above
        except exceptions.AuthenticationError:
            if not self.endpoint.reread_login(self):
                raise
            super().connect_check_health(*args, **options)  # type: ignore[misc]  # as above

    def _connect(self: Any) -> Any:
        _prepare(self)
        if (finder := self.endpoint.finder) is not None:
            self.host, self.port = finder.find()
        return super()._connect()  # type: ignore[misc]  # as above

    def on_connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        super().on_connect_check_health(*args, **options)  # type: ignore[misc]  # as above
        self.send_command("INFO", "server", check_health=False)
        try:
            _meet(self, self.read_response())
        except exceptions.ResponseError:
            return  # as in `EndpointConnection`

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]  # as above
        except exceptions.TimeoutError:
            self.endpoint.suspect(self.generation)
            raise
        except exceptions.RedisError as error:
            if not self.endpoint.is_elsewhere(error):
                raise
            self.disconnect()
            self.endpoint.leave(self.generation)
            raise _again(error) from error


def _prepare(connection: Any) -> None:
    """Make a connection ready to be opened, perhaps once more."""
    # Before it connects: what other connections notice meanwhile concerns this one, too.
    connection.generation = connection.endpoint.generation
    connection.endpoint.log_in(connection)
    if getattr(connection, "ssl_context", None) is not None:
        connection.ssl_context.context = None  # reads certificates anew: they may be replaced


def _meet(connection: Any, info: Any) -> None:
    found = re.search(rb"^run_id:(\w+)", info, re.MULTILINE) if isinstance(info, bytes) else None
    if found is not None:
        connection.generation = connection.endpoint.meet(found[1], connection.generation)


def _again(error: Exception) -> exceptions.ConnectionError:
    """An error after which redis-py retries over a new connection."""
    return exceptions.ConnectionError(str(error), status_code=getattr(error, "status_code", None))
