"""`RowDatabase`: the connections of this process to the database of pipeline rows."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError, masked
from nonet.stores.sql.answers import ANSWER_SECONDS, codes, is_deadlock, one_line
from nonet.stores.sql.database import MYSQL, open_engine, parse_url

# MySQL: too many connections, lock wait timeout, shutdown, read only, lost connections.
_OUTAGE_CODES = {1040, 1053, 1205, 1290, 1927, 2002, 2003, 2006, 2013, 2055}
# PostgreSQL: connection, resource, operator and system errors; a lock that was not available.
# SQLite has no codes.
_OUTAGE_TEXTS = ("08", "53", "57", "58", "55P03", "database is locked", "unable to open database")
_LEAST_VERSIONS = {"mysql": (8, 0, 1), "mariadb": (10, 6)}


class RowDatabase:
    """The connections of this process to the database of pipeline rows.

    Declare it in a module: nothing is opened before its first use. Pipelines keep one connection
    for the renewal of leases, so ``connections - 1`` are left for everything else. They are opened
    in the isolation level READ COMMITTED.

    Args:
        url: SQLAlchemy URL, or a function that returns it, called when it is first needed. Without
            a driver (``postgresql://…``) it gets the asynchronous one.
        connections: number of connections at most, in one process; at least 2.
        options: further arguments of SQLAlchemy's ``create_async_engine``.

    Raises:
        ValueError: `connections` is less than 2.

    Example:
        database = RowDatabase(lambda: os.environ["APP_DB_URL"], connections=10)

        async with database.sessions() as session:
            print(await session.scalar(sa.select(sa.func.count()).select_from(Volume)))
    """

    def __init__(
        self, url: str | Callable[[], str], *, connections: int = 5, **options: Any
    ) -> None:
        if connections < 2:
            raise ValueError(
                f"RowDatabase: connections={connections} must be 2 or more: one renews leases"
            )
        self._url = url
        self._connections = connections
        self._options = options
        self._engine: AsyncEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: AbstractAsyncContextManager[Any] = nullcontext()

    @property
    def url(self) -> str:
        """The URL, with its password.

        Raises:
            ConfigurationError: an environment variable that it needs is missing.
        """
        try:
            return self._url if isinstance(self._url, str) else self._url()
        except KeyError as missing:
            raise ConfigurationError(
                f"the URL of a RowDatabase needs {missing}: set this environment variable"
            ) from missing

    @property
    def engine(self) -> AsyncEngine:
        """The engine of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._engine is None or self._loop is not loop:
            self._engine = self.open_engine(self._connections - 1)
            self._loop = loop
            # SQLite has one writer at a time, and its own waiting is unfair.
            is_sqlite = self._engine.dialect.name == "sqlite"
            self._writing = asyncio.Lock() if is_sqlite else nullcontext()
        return self._engine

    @property
    def sessions(self) -> async_sessionmaker[AsyncSession]:
        """Makes sessions on these connections."""
        return async_sessionmaker(self.engine, expire_on_commit=False)

    def open_engine(self, connections: int) -> AsyncEngine:
        """Make a further engine, for another event loop."""
        options = {"pool_size": connections, "max_overflow": 0, **self._options}
        engine = open_engine(self.url, **_isolation(self.url), **options)
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine.sync_engine, "connect", _begin_by_hand)
            sa.event.listen(engine.sync_engine, "begin", _begin_immediately)
        return engine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """Open a session with a transaction, and commit it at the end of the block.

        Raises:
            ServerUnreachableError: the database refused, broke the connection, aborted the
                transaction because of a conflict, or did not answer within 10 seconds.
            SQLAlchemyError: a statement is wrong.
        """
        sessions = self.sessions
        # The transaction begins after the lock: an earlier one would not see what others wrote.
        async with self.answering(), self._writing, sessions.begin() as session:
            yield session

    @asynccontextmanager
    async def answering(self, seconds: float = ANSWER_SECONDS) -> AsyncIterator[None]:
        """Translate outages inside the block to `ServerUnreachableError`, after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            if not is_outage(error):
                raise
            reason = one_line(error.orig if isinstance(error, DBAPIError) else error)
            reason = reason or f"no answer within {seconds:g} s"
            unreachable = ServerUnreachableError(
                f"database {masked(self.url)} cannot be used: {reason}"
            )
            unreachable.brief = reason
            raise unreachable from error

    @asynccontextmanager
    async def used_once(self, pipeline: str) -> AsyncIterator[None]:
        """Close it at the end of the block, and name the pipeline whose statement it refuses.

        A table without lease columns is refused so.

        Raises:
            NonetError: the database refuses a statement.
        """
        try:
            yield
        except (DBAPIError, OverflowError) as error:
            reason = one_line(error.orig if isinstance(error, DBAPIError) else error)
            raise NonetError(
                f"pipeline {pipeline}: its database refuses the statement: {reason}"
            ) from error
        finally:
            await self.close()

    async def check(self) -> None:
        """Check that the database answers, and can skip locked rows.

        Raises:
            ServerUnreachableError: it does not answer.
            ConfigurationError: it is too old.
        """
        async with self.transaction() as session:
            connection = await session.connection()
        dialect: Any = connection.dialect
        kind = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
        least = _LEAST_VERSIONS.get(kind)
        if least and dialect.server_version_info[: len(least)] < least:
            found = ".".join(str(part) for part in dialect.server_version_info)
            raise ConfigurationError(
                f"database {masked(self.url)} is {kind} {found}: pipelines need "
                f"{'.'.join(map(str, least))} or newer, which can skip locked rows"
            )

    def reserve(self) -> IO[str] | None:
        """Reserve a SQLite file for this process, until the returned file is closed.

        Returns:
            None for a database server.

        Raises:
            ConfigurationError: another process has reserved it.
        """
        parsed = parse_url(self.url)
        if parsed.get_backend_name() != "sqlite":
            return None
        path = Path(f"{parsed.database}.pipelines.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigurationError(
                f"database {masked(self.url)}: another process runs pipelines on this SQLite file; "
                "stop it, or move to PostgreSQL, MySQL or MariaDB for several processes"
            ) from None
        return file

    async def close(self) -> None:
        """Close all connections of the running event loop."""
        if self._engine is not None:
            await self._engine.dispose()
            self._engine = None


def is_outage(error: BaseException) -> bool:
    """Whether an error means that the database is unavailable, not that a statement is wrong.

    An aborted transaction counts as an outage: it may succeed when it is repeated.
    """
    if not isinstance(error, DBAPIError):
        # A full pool raises a TimeoutError of SQLAlchemy.
        return isinstance(error, OSError | TimeoutError | sa.exc.TimeoutError)
    found = codes(error.orig) if error.orig is not None else set()
    return (
        error.connection_invalidated
        or isinstance(error, InterfaceError)
        or is_deadlock(error)
        or any(code in _OUTAGE_CODES or str(code).startswith(_OUTAGE_TEXTS) for code in found)
    )


def _isolation(url: str) -> dict[str, str]:
    """The default level of MySQL locks the gaps between rows, so that inserts wait for fetches."""
    is_mysql = parse_url(url).get_backend_name() in MYSQL
    return {"isolation_level": "READ COMMITTED"} if is_mysql else {}


def _begin_by_hand(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # else the driver begins transactions later than SQLAlchemy


def _begin_immediately(connection: sa.Connection) -> None:
    # A transaction that reads first and writes later could not wait for another writer.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
