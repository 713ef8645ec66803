"""The clock of the database in statements: `db_now`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from nonet.stores.sql.database import UtcDateTime


class db_now(FunctionElement[datetime]):  # used like a function of SQL
    """The current UTC time of the database, with microseconds, constant within a statement.

    Args:
        seconds: added to it; a constant, because it becomes part of the statement.

    Example:
        sa.select(Volume).where(Volume.due_at <= db_now())
    """

    inherit_cache = True
    type = UtcDateTime()

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(sa.literal_column(str(round(seconds * 1e6))))


def _microseconds(element: Any) -> int:
    return int(next(iter(element.clauses)).name)


@compiles(db_now, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    # Not clock_timestamp(): it may change within a statement, so no index could serve a comparison.
    if not (offset := _microseconds(element)):
        return "statement_timestamp()"
    return f"(statement_timestamp() + interval '{offset} microseconds')"


@compiles(db_now, "mysql", "mariadb")
def _on_mysql(element: Any, compiler: Any, **options: Any) -> str:
    if not (offset := _microseconds(element)):
        return "(UTC_TIMESTAMP(6))"
    return f"(UTC_TIMESTAMP(6) + INTERVAL {offset} MICROSECOND)"


@compiles(db_now, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    offset = _microseconds(element)
    shift = f", '{offset / 1e6:+.6f} seconds'" if offset else ""
    # SQLite has milliseconds only; the zeros make the texts comparable to those with microseconds.
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now'{shift}) || '000')"
