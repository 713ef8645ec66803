"""How Nonet reaches its SQL database: engine, error translation, schema version.

SQLAlchemy costs a sixth of a second to import and alembic more, so that callers import this
module where they first need it, and alembic is imported only to look at or change the schema.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from nonet.base.errors import (
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
    masked,
    url_problem,
)

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "nonet_alembic_version"

CONNECT_SECONDS = 5
ANSWER_SECONDS = 10.0  # for one operation, connecting included
MIGRATION_SECONDS = 120.0  # for an upgrade, waiting for another process that upgrades included

_DRIVERS = {
    "sqlite": "aiosqlite",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
    "postgresql": "asyncpg",
}
_EXTRAS = {"mysql": "nonet[mysql]", "mariadb": "nonet[mysql]", "postgresql": "nonet[postgres]"}
_CONNECT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "aiosqlite": {"timeout": CONNECT_SECONDS},  # how long a writer waits for other writers
    "aiomysql": {"connect_timeout": CONNECT_SECONDS, "charset": "utf8mb4"},
    "asyncpg": {"timeout": CONNECT_SECONDS},
}

_Answer = TypeVar("_Answer")


def open_engine(url: str) -> AsyncEngine:
    """An engine for ``url``; nothing is connected yet.

    A URL without a driver gets the asynchronous one. Connections to SQLite write ahead (WAL) and
    wait for each other, so that several processes share the file.

    Raises:
        ConfigurationError: no usable URL, or its driver is not installed.

    >>> open_engine("mysql://nonet@localhost/nonet").url.drivername
    'mysql+aiomysql'
    """
    parsed = _parse(url)
    defaults = _CONNECT_ARGUMENTS.get(parsed.get_driver_name(), {})
    try:
        engine = create_async_engine(
            parsed,
            pool_pre_ping=True,
            hide_parameters=True,  # task arguments do not belong into errors and logs
            connect_args={k: v for k, v in defaults.items() if k not in parsed.query},
        )
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get(parsed.get_backend_name(), "that package")
        raise ConfigurationError(
            f"database {masked(url)} needs the package {missing.name!r}: install {extra}"
        ) from missing
    except SQLAlchemyError as error:
        raise ConfigurationError(f"database {masked(url)}: {_one_line(error)}") from error
    if parsed.get_backend_name() == "sqlite":
        sa.event.listen(engine.sync_engine, "do_connect", _try_to_open)
        sa.event.listen(engine.sync_engine, "connect", _on_connect)
    return engine


class Database:
    """One database of this process: its connections, and tables that are there when needed.

    A SQLite file is created or migrated when it is first written, others by ``task-run db
    upgrade``. It works again as soon as the database does.

    Args:
        url: SQLAlchemy URL; without a driver (``mysql://…``) the asynchronous one is chosen.
        answer_seconds: after which a silent database counts as unreachable.

    Raises:
        ConfigurationError: the URL is wrong or its driver is not installed.
    """

    def __init__(self, url: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.url = url
        self.engine = open_engine(url)
        self._answer_seconds = answer_seconds
        self._migrated = self.engine.dialect.name != "sqlite"
        self._migrating = asyncio.Lock()

    @property
    def is_missing(self) -> bool:
        """Whether it is a SQLite file that nobody has written yet: there is nothing to read."""
        return is_missing(self.url)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block; raises as `answering`."""
        await self.migrate_sqlite()
        async with self.answering(), self.engine.begin() as connection:
            yield connection

    async def look_for(self, *tables: sa.Table) -> None:
        """Return if it answers and has these tables with all columns, or makes them when needed.

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
        """`answering` for this database."""
        return answering(self.url, self._answer_seconds)

    async def migrate_sqlite(self) -> None:
        """Create or migrate the tables, once, if this is a SQLite file.

        Those of a newer release serve as well, as with other databases: migrations only add.
        """
        async with self._migrating:
            if not self._migrated:
                await _upgraded(self.url, _upgrade_or_leave)
                self._migrated = True

    async def close(self) -> None:
        """Close all connections; do it before the event loop ends."""
        await self.engine.dispose()


@asynccontextmanager
async def answering(url: str, seconds: float = ANSWER_SECONDS) -> AsyncIterator[None]:
    """Turn what a database or its driver raises inside the block into errors of Nonet.

    Args:
        url: the database; its password does not reach the message.
        seconds: after which a silent server counts as unreachable.

    Raises:
        ServerUnreachableError: the server refused, broke off or did not answer in time.
        ConfigurationError: tables or columns are missing.
        NonetError: it refuses the values that it was given.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except DBAPIError as error:
        if _lacks_schema(error):
            brief = "lacks the tables of this version: run 'task-run db upgrade'"
            raise _about(url, ConfigurationError, brief) from error
        if isinstance(error, DataError):
            raise _refused(url, error.orig) from error
        raise _unreachable(url, _one_line(error.orig)) from error
    except StatementError as error:
        raise _refused(url, error.orig or error) from error
    except TimeoutError as error:
        reason = _one_line(error) or f"silent for {seconds:g} s"
        raise _unreachable(url, reason) from error
    except (OSError, SQLAlchemyError) as error:
        raise _unreachable(url, _one_line(error)) from error


def _refused(url: str, error: BaseException | None) -> NonetError:
    return _about(url, NonetError, f"refuses the values: {_one_line(error)}")


# ---- schema -------------------------------------------------------------------------------------


class Schema(StrEnum):
    """How the tables in a database compare with those that this package needs."""

    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"
    ABSENT = "absent"


async def upgrade(url: str) -> str:
    """Create or migrate the tables; any number of processes may do so at the same time.

    Returns:
        The revision that the database has now.

    Raises:
        ConfigurationError: the database was migrated by a newer version of Nonet, or the
            directory of a SQLite file cannot be created.
        ServerUnreachableError: it does not answer.
    """
    return await _upgraded(url, _upgrade)


async def _upgraded(url: str, how: Callable[[sa.Connection, Config], str]) -> str:
    _create_directory(url)
    return await asyncio.to_thread(_with_alembic, url, how, MIGRATION_SECONDS)


async def check(url: str) -> Schema:
    """Compare the tables in the database with those of this package; nothing is changed."""
    if is_missing(url):
        return Schema.ABSENT  # connecting would create the file
    return await asyncio.to_thread(_with_alembic, url, _check, ANSWER_SECONDS)


def is_missing(url: str) -> bool:
    """Whether `url` is a SQLite file that nobody has written yet: there is nothing to read."""
    file = _sqlite_file(_parse(url))
    return file is not None and not file.exists()


_alembic_in_use = threading.Lock()  # alembic keeps the migration that runs in module globals


def _with_alembic(
    url: str, step: Callable[[sa.Connection, Config], _Answer], seconds: float
) -> _Answer:
    """Run ``step`` in a transaction. Called in a thread: alembic would block the event loop."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "nonet.stores.sql:migrations")
    config.attributes["version_table"] = VERSION_TABLE
    config.attributes["url"] = masked(url)

    async def run() -> _Answer:
        engine = open_engine(url)
        try:
            async with answering(url, seconds), engine.begin() as connection:
                return await connection.run_sync(step, config)
        finally:
            await engine.dispose()

    with _alembic_in_use:
        return asyncio.run(run())


def _upgrade(connection: sa.Connection, config: Config) -> str:
    from alembic import command

    _hold_schema(connection)
    if _schema(connection, config) is Schema.AHEAD:
        raise ConfigurationError(
            f"database {config.attributes['url']} was migrated by a newer version of Nonet: "
            "upgrade this installation"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return str(_revision(connection))


def _upgrade_or_leave(connection: sa.Connection, config: Config) -> str:
    """`_upgrade`, but for tables of a newer release."""
    if _schema(connection, config) is Schema.AHEAD:
        return str(_revision(connection))
    return _upgrade(connection, config)


def _check(connection: sa.Connection, config: Config) -> Schema:
    return _schema(connection, config)


def _schema(connection: sa.Connection, config: Config) -> Schema:
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(config)
    revision = _revision(connection)
    if revision is None:
        return Schema.ABSENT
    if revision == scripts.get_current_head():
        return Schema.CURRENT
    known = {script.revision for script in scripts.walk_revisions()}
    return Schema.BEHIND if revision in known else Schema.AHEAD


def _revision(connection: sa.Connection) -> str | None:
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _hold_schema(connection: sa.Connection) -> None:
    """Keep other processes from migrating until this transaction, or connection, ends."""
    match connection.dialect.name:
        case "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('nonet_schema'))")
        case _:
            held = connection.exec_driver_sql("SELECT GET_LOCK('nonet_schema', 60)").scalar()
            if held != 1:
                raise TimeoutError("another process has been migrating it for 60 s")


# ---- column types -------------------------------------------------------------------------------


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An instant with microseconds: aware and in UTC when read, whatever the server's time zone."""

    impl = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value and _utc(value)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value and _utc(value)


def _utc(value: datetime) -> datetime:
    """A value without zone is in UTC, here and in the columns of MySQL and SQLite."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# ---- helpers ------------------------------------------------------------------------------------


def _parse(url: str) -> sa.URL:
    try:
        if problem := url_problem(url):
            raise ValueError(problem)
        parsed = sa.make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigurationError(f"database {masked(url)!r}: {_one_line(error)}") from error
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
    if parsed.drivername == backend:
        parsed = parsed.set(drivername=f"{backend}+{_DRIVERS[backend]}")
    return parsed


def _sqlite_file(parsed: sa.URL) -> Path | None:
    """Where a SQLite database is kept; None for servers."""
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _create_directory(url: str) -> None:
    try:
        if file := _sqlite_file(_parse(url)):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"database {masked(url)}: cannot create its directory: {error}"
        ) from error


def _try_to_open(_dialect: object, _record: object, args: Any, options: Any) -> None:
    """Fail here where the file cannot be opened: aiosqlite would leave a thread behind.

    That thread writes a traceback when it outlives the event loop.
    """
    sqlite3.connect(*args, **options).close()


def _on_connect(connection: Any, _record: object) -> None:
    connection.run_async(_write_ahead)


async def _write_ahead(connection: Any) -> None:
    """Switch the file to WAL. SQLite does not let this wait for other processes: we retry."""
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                await connection.execute_fetchall("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            await asyncio.sleep(0.01)


# MySQL: no such table, unknown column; PostgreSQL: undefined_table, undefined_column.
_SCHEMA_CODES = {1146, 1054, "42P01", "42703"}


def _lacks_schema(error: DBAPIError) -> bool:
    cause = error.orig
    if cause is None:
        return False
    return bool(_codes(cause) & _SCHEMA_CODES) or str(cause).startswith(
        ("no such table", "no such column")
    )


# MySQL, MariaDB; PostgreSQL; and serialization_failure.
_DEADLOCK_CODES = {1213, "40P01", "40001"}


_DEADLOCK_PAUSES = (0.02, 0.1, 0.5)


async def again_after_deadlock(transaction: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Run a transaction, again and again if the database gives it up for another one."""
    for longest_pause in _DEADLOCK_PAUSES:
        try:
            return await transaction()
        except ServerUnreachableError as error:
            if not _is_deadlock(error):
                raise
        await asyncio.sleep(random.uniform(0, longest_pause))
    return await transaction()


def _is_deadlock(error: NonetError) -> bool:
    cause = error.__cause__.orig if isinstance(error.__cause__, DBAPIError) else None
    return cause is not None and bool(_DEADLOCK_CODES & _codes(cause))


def _codes(cause: BaseException) -> set[Any]:
    return {getattr(cause, "sqlstate", None), *cause.args[:1]}


def _unreachable(url: str, reason: str) -> NonetError:
    return _about(url, ServerUnreachableError, f"cannot be used: {reason}", reason)


def _about(url: str, kind: type[NonetError], problem: str, brief: str = "") -> NonetError:
    error = kind(f"database {masked(url)} {problem}")
    error.brief = brief or problem
    return error


def _one_line(error: BaseException | None) -> str:
    """The first line of what a driver says: MySQL's drivers put a number before it."""
    if error is None:
        return "no reason given"
    text = str(error.args[1]) if len(error.args) == 2 else str(error)
    return text.strip().partition("\n")[0][:300]
