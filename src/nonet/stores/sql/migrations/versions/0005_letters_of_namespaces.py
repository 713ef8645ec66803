"""Add the namespace of dead letters, and how often they were submitted again.

The columns have defaults because workers of the previous version still write rows during an
upgrade. Like 0001, this is safe to repeat after a process died between a statement and the entry in
the version table.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TABLE = "dlq_tasks"
_OLD, _NEW = "uq_dlq_tasks_task_generation", "uq_dlq_tasks_identity"


def upgrade() -> None:
    _change(
        [
            sa.Column("namespace", sa.String(64), nullable=False, server_default=""),
            sa.Column("resubmissions", sa.Integer(), nullable=False, server_default="0"),
        ],
        _NEW,
        ["namespace", "task_id", "generation"],
        _OLD,
    )


def _change(columns: list[sa.Column[Any]], made: str, of: list[str], gone: str) -> None:
    """Add the columns, then replace the unique key."""
    bind = op.get_bind()
    there = {column["name"] for column in sa.inspect(bind).get_columns(_TABLE)}
    for column in columns:
        if column.name not in there:
            op.add_column(_TABLE, column)
    keys = {key["name"] for key in sa.inspect(bind).get_unique_constraints(_TABLE)}
    if bind.dialect.name == "sqlite":
        if made not in keys:
            _copy(bind, made, of, gone)
        return
    if made not in keys:  # before the old key is dropped, so that there is always one
        op.create_unique_constraint(made, _TABLE, of)
    if gone in keys:
        op.drop_constraint(gone, _TABLE, type_="unique")


def _copy(bind: sa.Connection, made: str, of: list[str], gone: str) -> None:
    """Copy the table, as SQLite cannot change a key, and restore the counter of row numbers."""
    query = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'dlq_tasks'")
    last = bind.execute(query).scalar()
    with op.batch_alter_table(_TABLE, table_kwargs={"sqlite_autoincrement": True}) as table:
        table.drop_constraint(gone, type_="unique")
        table.create_unique_constraint(made, of)
    if last is not None:
        bind.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'dlq_tasks'"))
        bind.execute(
            sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('dlq_tasks', :last)"),
            {"last": last},
        )
