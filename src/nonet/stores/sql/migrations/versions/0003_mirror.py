"""Create the table of values that must survive a loss of Redis.

Like 0001, this is safe to repeat after a process died between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL)


def upgrade() -> None:
    op.create_table(
        "mirror",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name_hash", sa.String(64), nullable=False),
        sa.Column("name", _LONG_TEXT, nullable=False),
        sa.Column("value", _LONG_TEXT, nullable=False),
        sa.Column("updated", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "kind", "name_hash"),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )
