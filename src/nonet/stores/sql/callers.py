"""The transaction of a caller, in which durable tasks are written: `connection_of`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from nonet.base.errors import ConfigurationError, masked
from nonet.stores.sql.database import Database
from nonet.stores.sql.sync_database import DjangoConnection, SyncConnection, SyncDatabase

Connection = AsyncConnection | SyncConnection | DjangoConnection


async def connection_of(transaction: Any, database: Database) -> Connection:
    """Get the connection of a caller's transaction.

    Args:
        transaction: an ``AsyncConnection`` or ``AsyncSession``; in a program without an event loop
            a ``Connection``, a ``Session`` or the connection of Django.
        database: the database on which it must be.

    Raises:
        TypeError: it is something else.
        ConfigurationError: it is on another database, or the session cannot be used.
    """
    if isinstance(database, SyncDatabase):
        return _sync_connection_of(transaction, database)
    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    with _session_errors():
        if isinstance(transaction, AsyncSession):
            transaction = await transaction.connection()
    if not isinstance(transaction, AsyncConnection):
        raise _wrong(transaction, "an AsyncConnection or AsyncSession of SQLAlchemy")
    _check_place(transaction.engine.url, database)
    return transaction


def _sync_connection_of(
    transaction: Any, database: SyncDatabase
) -> SyncConnection | DjangoConnection:
    if hasattr(transaction, "vendor") and hasattr(transaction, "settings_dict"):  # of Django
        name = str(transaction.settings_dict["NAME"])
        _check_place(sa.URL.create(transaction.vendor, database=name), database)
        return DjangoConnection(transaction)
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    with _session_errors():
        if isinstance(transaction, Session):
            transaction = transaction.connection()
    if not isinstance(transaction, sa.Connection):
        wanted = "a Connection or Session of SQLAlchemy, or the connection of Django"
        raise _wrong(transaction, wanted)
    _check_place(transaction.engine.url, database)
    return SyncConnection(transaction)


@contextmanager
def _session_errors() -> Iterator[None]:
    """Translate what a session raises that gives no connection."""
    try:
        yield
    except SQLAlchemyError as error:
        raise ConfigurationError(f"transaction: the session cannot be used: {error}") from error


def _wrong(transaction: Any, wanted: str) -> TypeError:
    kind = type(transaction)
    return TypeError(f"transaction: pass {wanted}, not {kind.__module__}.{kind.__qualname__}")


def _check_place(theirs: sa.URL, database: Database) -> None:
    """Raise ConfigurationError if a transaction is on another database than durable tasks."""
    if _place(database.engine.url) != _place(theirs):
        raise ConfigurationError(
            f"transaction: it is on the database {masked(str(theirs))}, but durable tasks are "
            f"stored in {masked(database.url)}: set NONET_DB_URL to the same database"
        )


def is_same_database(one: str, other: str) -> bool:
    """Whether two URLs name the same database."""
    return _place(sa.make_url(one)) == _place(sa.make_url(other))


def _place(url: sa.URL) -> tuple[str, str]:
    """Identify a database in any spelling of its URL. Leave out the host: it may have aliases."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, os.path.realpath(url.database or "")
    return backend.replace("mariadb", "mysql"), url.database or ""
