"""The lease columns of a table: `LeaseMixin` and `lease_columns`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from nonet.pipelines.clock import db_now
from nonet.stores.sql.database import UtcDateTime

TOKEN_LENGTH = 36
OWNER_LENGTH = 255


def lease_columns() -> list[sa.Column[Any]]:
    """New columns, as `LeaseMixin` has them, for tables that are not declared as classes.

    Example:
        >>> [column.name for column in lease_columns()][:2]
        ['due_at', 'last_processed_at']
    """
    return [
        sa.Column("due_at", UtcDateTime(), nullable=True, server_default=db_now()),
        sa.Column("last_processed_at", UtcDateTime(), nullable=True),
        sa.Column("lease_expires_at", UtcDateTime(), nullable=True),
        sa.Column("lease_token", sa.String(TOKEN_LENGTH), nullable=True),
        sa.Column("lease_owner", sa.String(OWNER_LENGTH), nullable=True),
        sa.Column("waiting_since", UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("suspect", sa.Integer(), nullable=False, server_default="0"),
    ]


LEASE_COLUMNS = frozenset(column.name for column in lease_columns())


def lease_index(table: sa.Table) -> sa.Index:
    """Add the index that the fetch of a pipeline needs to a table, unless it exists."""
    name = f"ix_{table.name}_due"
    found = next((index for index in table.indexes if index.name == name), None)
    if found is not None:
        return found
    due = table.c.due_at
    return sa.Index(name, due, *table.primary_key.columns, postgresql_where=due.is_not(None))


class LeaseMixin:
    """Columns with which pipelines lease the rows of a table; put it before the declarative base.

    A new row is due at once; one with ``due_at=None`` is not due until a touch. Programs read these
    columns; only pipelines and `nonet.pipelines.Rows` write them.
    `nonet.pipelines.add_lease_columns` adds them to an existing table.

    Attributes:
        due_at: when the row needs attention; NULL: it is finished. UTC.
        last_processed_at: when a result was applied last; NULL: never.
        lease_expires_at: when the lease ends unless it is renewed; of a waiting row: when its
            pipeline tries again.
        lease_token: identifies the lease; NULL: the row is free.
        lease_owner: the pipeline that leases the row, or waits for its related rows.
        waiting_since: since when the row waits for its related rows; NULL: it does not.
        attempts: attempts since the last success; negative: exhausted, and about to become a dead
            letter.
        suspect: whether its attempt began beside attempts of other rows (1) or alone (2). If the
            process died, the next attempt runs alone. 0: the last attempt ended.

    Example:
        class Volume(LeaseMixin, Base):
            __tablename__ = "volumes"
            id: Mapped[int] = mapped_column(primary_key=True)
    """

    # Without `evaluates_none` SQLAlchemy would leave out `due_at=None`, and the row would be due.
    due_at: Mapped[datetime | None] = mapped_column(
        UtcDateTime().evaluates_none(), server_default=db_now()
    )
    last_processed_at: Mapped[datetime | None] = mapped_column(UtcDateTime())
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime())
    lease_token: Mapped[str | None] = mapped_column(sa.String(TOKEN_LENGTH))
    lease_owner: Mapped[str | None] = mapped_column(sa.String(OWNER_LENGTH))
    waiting_since: Mapped[datetime | None] = mapped_column(UtcDateTime())
    attempts: Mapped[int] = mapped_column(server_default="0")
    suspect: Mapped[int] = mapped_column(server_default="0")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        table = cls.__dict__.get("__table__")
        if isinstance(table, sa.Table):
            lease_index(table)
