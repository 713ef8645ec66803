"""Create the table of open durable tasks.

Like 0001, this is safe to repeat after a process died between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL)


def upgrade() -> None:
    op.create_table(
        "outbox_tasks",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("task_id", sa.String(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("task_class", sa.String(255), nullable=False),
        sa.Column("stream", sa.String(64), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("locks", _LONG_TEXT, nullable=False),
        sa.Column("envelope", _BYTES, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "task_id"),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )
    indexes = sa.inspect(op.get_bind()).get_indexes("outbox_tasks")
    if "ix_outbox_tasks_epoch" not in {index["name"] for index in indexes}:
        op.create_index(
            "ix_outbox_tasks_epoch", "outbox_tasks", ["namespace", "epoch", "created_at", "task_id"]
        )
