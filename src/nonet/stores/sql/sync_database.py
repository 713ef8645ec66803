"""SQL for threads, with the interface of `Database`: `SyncDatabase`.

Calls block, so their coroutines never suspend: `nonet.base.synchronous.complete` runs them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from nonet.stores.sql.answers import ANSWER_SECONDS
from nonet.stores.sql.database import CONNECT_SECONDS, Database, engine_errors, keep_private, parse

_POSTGRES = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": round(ANSWER_SECONDS * 1000)}
_CONNECT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "pysqlite": {"timeout": CONNECT_SECONDS},  # also the longest wait for another writer
    "pymysql": {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
        "charset": "utf8mb4",
    },
    "psycopg": _POSTGRES,
    "psycopg2": _POSTGRES,
}
_DIALECTS: Mapping[str, Any] = {
    "sqlite": sqlite.dialect,
    "mysql": mysql.dialect,
    "postgresql": postgresql.dialect,
}


class SyncDatabase(Database):
    """The connections of this process to one database, for threads. Thread-safe."""

    def __init__(self, url: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        super().__init__(url, answer_seconds=answer_seconds, engine=_SyncEngine(url))


class _SyncEngine:
    """An engine of SQLAlchemy with the interface of an ``AsyncEngine``."""

    def __init__(self, url: str) -> None:
        parsed = parse(url)
        driver = _driver_of(parsed.get_backend_name())
        parsed = parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}")
        defaults = _CONNECT_ARGUMENTS[driver]
        with engine_errors(url, parsed.get_backend_name()):
            self._engine = sa.create_engine(
                parsed,
                pool_pre_ping=True,
                hide_parameters=True,  # keeps task arguments out of errors and logs
                connect_args={k: v for k, v in defaults.items() if k not in parsed.query},
            )
        if driver == "pysqlite":
            sa.event.listen(self._engine, "do_connect", keep_private)
            sa.event.listen(self._engine, "connect", _write_ahead)
        self.url = self._engine.url
        self.dialect = self._engine.dialect

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[SyncConnection]:
        """Open a transaction, and commit it at the end of the block."""
        with self._engine.begin() as connection:
            yield SyncConnection(connection)

    async def dispose(self) -> None:
        """Close all connections."""
        self._engine.dispose()


class SyncConnection:
    """A connection of SQLAlchemy with the interface of an ``AsyncConnection``."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect

    async def execute(self, statement: Any, parameters: Any = None) -> sa.CursorResult[Any]:
        """Run a statement."""
        return self._connection.execute(statement, parameters)


class DjangoConnection:
    """A connection of Django, for inserts of rows.

    Args:
        connection: ``django.db.connection``, or one of ``django.db.connections``.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # Cursors of Django take the parameters of all drivers as %s.
        self.dialect: sa.Dialect = _DIALECTS[connection.vendor](paramstyle="format")

    async def execute(self, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows in the transaction of the connection."""
        compiled: Any = statement.compile(dialect=self.dialect, column_keys=list(rows[0]))
        processors = {
            name: bind.type.dialect_impl(self.dialect).bind_processor(self.dialect)
            for name, bind in compiled.binds.items()
        }

        def value(name: str, row: Mapping[str, Any]) -> Any:
            process = processors[name]
            return row[name] if process is None else process(row[name])

        values = [[value(name, row) for name in compiled.positiontup] for row in rows]
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(str(compiled), values)
        except Exception as error:
            # Django wraps the error of the driver, as SQLAlchemy does.
            if isinstance(error.__cause__, self._connection.Database.Error):
                raise sa.exc.DBAPIError(str(compiled), None, error.__cause__) from error
            raise


def _driver_of(backend: str) -> str:
    """Return the driver for threads; for PostgreSQL the one that is installed."""
    if backend == "postgresql":
        return "psycopg2" if not find_spec("psycopg") and find_spec("psycopg2") else "psycopg"
    return "pysqlite" if backend == "sqlite" else "pymysql"


def _write_ahead(connection: Any, _record: object) -> None:
    """Switch the file to WAL, with retries: SQLite does not wait for other processes here."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(0.01)
