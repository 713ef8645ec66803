"""The transaction of a caller, in which durable tasks are written: `connection_of`."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from nonet.base.errors import ConfigurationError, masked
from nonet.stores.sql.database import Database


async def connection_of(transaction: Any, database: Database) -> AsyncConnection:
    """Get the connection of a caller's transaction.

    Args:
        transaction: an ``AsyncConnection`` or ``AsyncSession``.
        database: the database on which it must be.

    Raises:
        TypeError: it is something else.
        ConfigurationError: it is on another database, or the session cannot be used.
    """
    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    try:
        if isinstance(transaction, AsyncSession):
            transaction = await transaction.connection()
    except SQLAlchemyError as error:
        raise ConfigurationError(f"transaction: the session cannot be used: {error}") from error
    if not isinstance(transaction, AsyncConnection):
        raise TypeError(
            "transaction: pass an AsyncConnection or AsyncSession of SQLAlchemy, not "
            f"{type(transaction).__module__}.{type(transaction).__qualname__}"
        )
    theirs = transaction.engine.url
    if _place(database.engine.url) != _place(theirs):
        raise ConfigurationError(
            f"transaction: it is on the database {masked(str(theirs))}, but durable tasks are "
            f"stored in {masked(database.url)}: set NONET_DB_URL to the same database"
        )
    return transaction


def is_same_database(one: str, other: str) -> bool:
    """Whether two URLs name the same database."""
    return _place(sa.make_url(one)) == _place(sa.make_url(other))


def _place(url: sa.URL) -> tuple[str, str]:
    """Identify a database in any spelling of its URL. Leave out the host: it may have aliases."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, os.path.realpath(url.database or "")
    return backend.replace("mariadb", "mysql"), url.database or ""
