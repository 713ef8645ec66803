"""Create the table of the audit: who changed what in the dashboard and the API.

Like 0001, this is safe to repeat after a process died between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL)


def upgrade() -> None:
    op.create_table(
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
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )
    indexes = sa.inspect(op.get_bind()).get_indexes("audit_log")
    if "ix_audit_log_who" not in {index["name"] for index in indexes}:
        op.create_index("ix_audit_log_who", "audit_log", ["namespace", "who", "id"])
