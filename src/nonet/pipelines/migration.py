"""Add the lease columns to an existing table: for migrations with alembic."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nonet.pipelines.clock import db_now
from nonet.pipelines.columns import lease_columns


def add_lease_columns(op: Any, table: str, *, due_where: str | None = None) -> None:
    """Add the columns and the index of `LeaseMixin` to a table.

    Rows that exist become due now. Code that does not know the columns keeps working: rows that it
    inserts are due at once.

    Args:
        op: the operations of alembic, ``from alembic import op``.
        table: name of the table.
        due_where: SQL condition of the rows that become due, e.g. ``"status <> 'deleted'"``; the
            others are finished. None: all become due.

    Example:
        def upgrade() -> None:
            add_lease_columns(op, "volumes", due_where="status = 'creating'")
    """
    bind = op.get_bind()
    [key] = sa.inspect(bind).get_pk_constraint(table)["constrained_columns"]
    # Without a default at first: SQLite adds no column with a default that is an expression.
    columns = lease_columns()
    with op.batch_alter_table(table) as batch:
        for column in columns:
            if column.name == "due_at":
                column.server_default = None
            batch.add_column(column)
    due = sa.table(table, sa.column("due_at"))
    update = sa.update(due).values(due_at=db_now())
    op.execute(update if due_where is None else update.where(sa.text(due_where)))
    with op.batch_alter_table(table) as batch:
        batch.alter_column(
            "due_at", existing_type=columns[0].type, existing_nullable=True, server_default=db_now()
        )
    op.create_index(
        f"ix_{table}_due", table, ["due_at", key], postgresql_where=sa.text("due_at IS NOT NULL")
    )


def drop_lease_columns(op: Any, table: str) -> None:
    """Remove what `add_lease_columns` has added.

    Args:
        op: the operations of alembic.
        table: name of the table.

    Example:
        def downgrade() -> None:
            drop_lease_columns(op, "volumes")
    """
    op.drop_index(f"ix_{table}_due", table_name=table)
    with op.batch_alter_table(table) as batch:
        for column in lease_columns():
            batch.drop_column(column.name)
