"""Add the terms of durable tasks: further conditions of their submission.

Like 0001, this is safe to repeat after a process died between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    columns = sa.inspect(op.get_bind()).get_columns("outbox_tasks")
    if "terms" not in {column["name"] for column in columns}:
        # With a default, as processes of the previous version still write rows during an upgrade.
        terms = sa.Column("terms", sa.String(255), nullable=False, server_default="")
        op.add_column("outbox_tasks", terms)
