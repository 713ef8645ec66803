"""Create the tables.

MySQL commits each statement by itself, so this must be safe to repeat after a process died between
a statement and the entry in the version table.
"""

from typing import Any

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
    _create_dead_letters()
    _create_outbox()
    _create_mirror()
    _create_audit()
    _create_schedules()


def _create_dead_letters() -> None:
    _create_table(
        "dlq_tasks",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("task_id", sa.String(128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("task_class", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("vo", sa.String(255), nullable=True),
        sa.Column("parent_id", sa.String(128), nullable=True),
        sa.Column("resubmitted_from", sa.BigInteger(), nullable=True),
        sa.Column("resubmitted_as", sa.String(128), nullable=True),
        sa.Column("resubmissions", sa.Integer(), nullable=False),
        sa.Column("submitted_at", _TIME, nullable=False),
        sa.Column("last_attempted_at", _TIME, nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=True),
        sa.Column("error_type", sa.String(255), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(16), nullable=False),
        sa.Column("location", sa.String(255), nullable=False),
        sa.Column("note", sa.String(1000), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("traceback", _LONG_TEXT, nullable=False),
        sa.Column("task_args", _BYTES, nullable=False),
        sa.UniqueConstraint("namespace", "task_id", "generation", name="uq_dlq_tasks_identity"),
        sqlite_autoincrement=True,
    )
    _create_index("ix_dlq_tasks_status", "dlq_tasks", "status")
    clusters = ("namespace", "fingerprint", "status", "created_at", "id")
    _create_index("ix_dlq_tasks_clusters", "dlq_tasks", *clusters)


def _create_outbox() -> None:
    _create_table(
        "outbox_tasks",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("task_id", sa.String(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("task_class", sa.String(255), nullable=False),
        sa.Column("stream", sa.String(64), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("terms", sa.String(255), nullable=False),
        sa.Column("locks", _LONG_TEXT, nullable=False),
        sa.Column("envelope", _BYTES, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "task_id"),
    )
    open_ones = ("namespace", "epoch", "created_at", "task_id")
    _create_index("ix_outbox_tasks_epoch", "outbox_tasks", *open_ones)


def _create_mirror() -> None:
    _create_table(
        "mirror",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name_hash", sa.String(64), nullable=False),
        sa.Column("name", _LONG_TEXT, nullable=False),
        sa.Column("value", _LONG_TEXT, nullable=False),
        sa.Column("updated", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "kind", "name_hash"),
    )


def _create_audit() -> None:
    _create_table(
        "audit_log",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("what", _LONG_TEXT, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("outcome", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "id"),
    )
    _create_index("ix_audit_log_who", "audit_log", "namespace", "who", "id")


def _create_schedules() -> None:
    _create_table(
        "schedules",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("task_class", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("schedule", _LONG_TEXT, nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.Column("envelope", _BYTES, nullable=False),
        sa.Column("catch_up", sa.String(8), nullable=False),
        sa.Column("misfire_grace", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("namespace", "id"),
    )


def _create_table(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> None:
    op.create_table(
        name,
        *parts,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
        **options,
    )


def _create_index(name: str, table: str, *columns: str) -> None:
    indexes = sa.inspect(op.get_bind()).get_indexes(table)
    if name not in {index["name"] for index in indexes}:
        op.create_index(name, table, columns)
