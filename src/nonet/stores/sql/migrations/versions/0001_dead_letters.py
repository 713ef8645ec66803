"""Create the table of dead letters.

MySQL commits each statement by itself, so this must be safe to repeat after a process died between
a statement and the entry in the version table.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

_MYSQL = ("mysql", "mariadb")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL)


def upgrade() -> None:
    op.create_table(
        "dlq_tasks",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.String(128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("task_class", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("vo", sa.String(255), nullable=True),
        sa.Column("parent_id", sa.String(128), nullable=True),
        sa.Column("resubmitted_from", sa.BigInteger(), nullable=True),
        sa.Column("resubmitted_as", sa.String(128), nullable=True),
        sa.Column("submitted_at", _TIME, nullable=False),
        sa.Column("last_attempted_at", _TIME, nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=True),
        sa.Column("error_type", sa.String(255), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("traceback", _LONG_TEXT, nullable=False),
        sa.Column("task_args", _BYTES, nullable=False),
        sa.UniqueConstraint("task_id", "generation", name="uq_dlq_tasks_task_generation"),
        if_not_exists=True,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )
    indexes = sa.inspect(op.get_bind()).get_indexes("dlq_tasks")
    if "ix_dlq_tasks_status" not in {index["name"] for index in indexes}:
        op.create_index("ix_dlq_tasks_status", "dlq_tasks", ["status"])
