"""Connections to the SQL database, and its schema: `Database`, `upgrade`, `check`.

SQLAlchemy takes 170 ms to import, and alembic more. So callers import this module where they first
need it, and this module imports alembic only to read or change the schema.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from nonet.base.errors import ConfigurationError, masked, url_problem
from nonet.base.loop import in_own_thread
from nonet.base.private import create_private
from nonet.base.synchronous import Gate
from nonet.stores.sql.answers import ANSWER_SECONDS, answering, one_line

CONNECT_SECONDS = 5
MIGRATION_SECONDS = 120.0  # for an upgrade, including the wait for another upgrade
PAGE_ROWS = 200  # rows of one statement; each may hold an envelope of NONET_MESSAGE_LIMIT
MYSQL = ("mysql", "mariadb")

_DRIVERS = {
    "sqlite": "aiosqlite",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
    "postgresql": "asyncpg",
}
_EXTRAS = {"mysql": "nonet[mysql]", "mariadb": "nonet[mysql]", "postgresql": "nonet[postgres]"}
_CONNECT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "aiosqlite": {"timeout": CONNECT_SECONDS},  # also the longest wait for another writer
    "aiomysql": {"connect_timeout": CONNECT_SECONDS, "charset": "utf8mb4"},
    "asyncpg": {"timeout": CONNECT_SECONDS},
}

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def open_engine(url: str, **options: Any) -> AsyncEngine:
    """Make an engine for a URL, without a connection.

    A URL without a driver gets the asynchronous one. SQLite uses a write-ahead log (WAL), and
    writers wait for each other, so that several processes can share the file.

    Args:
        options: further arguments of ``create_async_engine``.

    Raises:
        ConfigurationError: the URL cannot be used, or its driver is not installed.

    >>> open_engine("mysql://nonet@localhost/nonet").url.drivername
    'mysql+aiomysql'
    """
    parsed = parse_url(url)
    defaults = _CONNECT_ARGUMENTS.get(parsed.get_driver_name(), {})
    given = options.pop("connect_args", {})
    with engine_errors(url, parsed.get_backend_name()):
        engine = create_async_engine(
            parsed,
            **{"pool_pre_ping": True, **options},
            hide_parameters=True,  # keeps task arguments out of errors and logs
            connect_args={k: v for k, v in defaults.items() if k not in parsed.query} | given,
        )
    if parsed.get_backend_name() == "sqlite":
        sa.event.listen(engine.sync_engine, "do_connect", keep_private)
        sa.event.listen(engine.sync_engine, "do_connect", _try_to_open)
        sa.event.listen(engine.sync_engine, "connect", _on_connect)
    return engine


@contextmanager
def engine_errors(url: str, backend: str) -> Iterator[None]:
    """Translate what SQLAlchemy raises while it makes an engine.

    Raises:
        ConfigurationError: the URL cannot be used, or its driver is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get(backend, "that package")
        raise ConfigurationError(
            f"database {masked(url)} needs the package {missing.name!r}: install {extra}"
        ) from missing
    except SQLAlchemyError as error:
        raise ConfigurationError(f"database {masked(url)}: {one_line(error)}") from error


class Database:
    """The connections of this process to one database.

    The tables of a SQLite file are created or migrated at its first transaction, those of a server
    by ``task-run db upgrade``. After an outage it works again as soon as the database does.

    Args:
        url: SQLAlchemy URL; without a driver (``mysql://…``) it gets the asynchronous one.
        answer_seconds: after this time a silent database counts as unreachable.
        engine: what makes connections, with the interface of an ``AsyncEngine``; None: one.

    Raises:
        ConfigurationError: the URL is wrong or its driver is not installed.
    """

    def __init__(
        self, url: str, *, answer_seconds: float = ANSWER_SECONDS, engine: Any = None
    ) -> None:
        self.url = url
        self.engine: AsyncEngine = engine or open_engine(url)
        self._answer_seconds = answer_seconds
        self._migrated = self.engine.dialect.name != "sqlite"
        self._migrating = Gate()

    @property
    def is_missing(self) -> bool:
        """Whether this is a SQLite file that does not exist yet, so there is nothing to read."""
        return is_missing(self.url)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, and commit it at the end of the block; raises as `answering`."""
        await self.migrate_sqlite()
        async with self.answering(), self.engine.begin() as connection:
            yield connection

    async def rows(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[Any]:
        """Run a query in a transaction of its own; no rows from a SQLite file that is missing."""
        if self.is_missing:
            return []
        async with self.transaction() as connection:
            return (await connection.execute(query)).all()

    async def look_for(self, *tables: sa.Table) -> None:
        """Check that the database answers and has these tables with all columns.

        Raises:
            ServerUnreachableError: it does not answer.
            ConfigurationError: a table or column is missing.
        """
        if self.is_missing:
            return
        async with self.transaction() as connection:
            for table in tables:
                await connection.execute(sa.select(table).limit(0))

    def answering(self) -> AbstractAsyncContextManager[None]:
        """Translate what this database raises inside the block, see `answers.answering`."""
        return answering(self.url, self._answer_seconds)

    async def migrate_sqlite(self) -> None:
        """Create or migrate the tables of a SQLite file, once.

        Tables of a newer release are left as they are: migrations only add, so they work.
        """
        async with self._migrating:
            if not self._migrated:
                await _upgraded(self.url, "upgrade_or_leave")
                self._migrated = True

    async def close(self) -> None:
        """Close all connections. Call this before the event loop ends."""
        await self.engine.dispose()


# ---- schema -------------------------------------------------------------------------------------


class Schema(StrEnum):
    """How the tables of a database compare with those that this release needs."""

    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"
    ABSENT = "absent"


async def upgrade(url: str) -> str:
    """Create or migrate the tables. Several processes may do this at the same time.

    Returns:
        The revision of the database.

    Raises:
        ConfigurationError: the database was migrated by a newer version of Nonet, or the
            directory of a SQLite file cannot be created.
        ServerUnreachableError: the database does not answer.
    """
    return await _upgraded(url, "upgrade")


async def _upgraded(url: str, step: str) -> str:
    _create_directory(url)
    return await in_own_thread(partial(_with_alembic, url, step, MIGRATION_SECONDS))


async def check(url: str) -> Schema:
    """Compare the tables of the database with those of this release; change nothing."""
    if is_missing(url):
        return Schema.ABSENT  # connecting would create the file
    return Schema(await asyncio.to_thread(_with_alembic, url, "state", ANSWER_SECONDS))


def is_missing(url: str) -> bool:
    """Whether `url` is a SQLite file that does not exist yet, so there is nothing to read."""
    file = _sqlite_file(parse_url(url))
    return file is not None and not file.exists()


_alembic_in_use = threading.Lock()  # alembic keeps the running migration in module globals


def _with_alembic(url: str, step: str, seconds: float) -> str:
    """Call a function of `nonet.stores.sql.migrating` in a transaction, and return its answer.

    Runs in a thread, as alembic would block the event loop.
    """
    from nonet.stores.sql import migrating  # alembic takes 0.1 s, and is rarely needed

    config = migrating.made_config(url)

    async def run() -> str:
        engine = open_engine(url)
        try:
            async with answering(url, seconds), engine.begin() as connection:
                return await connection.run_sync(getattr(migrating, step), config)
        finally:
            await engine.dispose()

    with _alembic_in_use:
        return asyncio.run(run())


# ---- column types -------------------------------------------------------------------------------


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An instant with microseconds, read as an aware UTC datetime in any server time zone."""

    impl = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value and _utc(value)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value and _utc(value)


def _utc(value: datetime) -> datetime:
    """Convert to UTC. A value without a time zone is in UTC, as in MySQL and SQLite columns."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *MYSQL)
LONG_BINARY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL)


# ---- statements ---------------------------------------------------------------------------------


def insert_or_update(
    dialect: sa.Dialect,
    table: sa.Table,
    key: Sequence[str],
    changes: Callable[[Any], Mapping[str, Any]],
) -> sa.Insert:
    """Insert rows, or change some columns of those that exist.

    Args:
        key: columns of the unique key.
        changes: new values by column, from the row that could not be inserted.
    """
    if dialect.name in MYSQL:
        insert = mysql.insert(table)
        return insert.on_duplicate_key_update(**changes(insert.inserted))
    make = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    upsert = make(table)
    return upsert.on_conflict_do_update(index_elements=key, set_=changes(upsert.excluded))


def pages(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Split a sequence for statements with at most `PAGE_ROWS` rows each."""
    for start in range(0, len(items), PAGE_ROWS):
        yield items[start : start + PAGE_ROWS]


# ---- helpers ------------------------------------------------------------------------------------


def parse_url(url: str) -> sa.URL:
    """Parse the URL of a database that Nonet supports, with its asynchronous driver.

    Raises:
        ConfigurationError: it cannot be used.
    """
    parsed = parse(url)
    backend = parsed.get_backend_name()
    has_driver = parsed.drivername != backend
    return parsed if has_driver else parsed.set(drivername=f"{backend}+{_DRIVERS[backend]}")


def parse(url: str) -> sa.URL:
    """Parse the URL of a database that is supported.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        if problem := url_problem(url):
            raise ValueError(problem)
        parsed = sa.make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigurationError(f"database {masked(url)!r}: {one_line(error)}") from error
    backend = parsed.get_backend_name()
    if backend not in _DRIVERS:
        raise ConfigurationError(
            f"database {masked(url)}: {backend!r} is not supported; use {', '.join(_DRIVERS)}"
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            f"database {masked(url)}: a database in memory cannot be shared by processes; "
            "name a file, as in sqlite:///nonet.db"
        )
    return parsed


def _sqlite_file(parsed: sa.URL) -> Path | None:
    """Path of a SQLite database; None for a server."""
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _create_directory(url: str) -> None:
    try:
        if file := _sqlite_file(parse_url(url)):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"database {masked(url)}: cannot create its directory: {error}"
        ) from error


def keep_private(_dialect: object, _record: object, args: Any, options: Any) -> None:
    """Create a SQLite file that only this user can read, because it will hold task arguments.

    SQLite itself would make it readable for all. It gives its log the same mode as the file.
    """
    if options.get("uri"):
        return  # the author chose how to open the file
    with suppress(OSError):  # SQLite reports the problem
        create_private(Path(args[0]))


def _try_to_open(_dialect: object, _record: object, args: Any, options: Any) -> None:
    """Fail early if the file cannot be opened.

    aiosqlite would leave a thread behind, which writes a traceback when it outlives the event loop.
    """
    sqlite3.connect(*args, **options).close()


def _on_connect(connection: Any, _record: object) -> None:
    connection.run_async(_write_ahead)


async def _write_ahead(connection: Any) -> None:
    """Switch the file to WAL, with retries: SQLite does not wait for other processes here."""
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                await connection.execute_fetchall("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            await asyncio.sleep(0.01)
