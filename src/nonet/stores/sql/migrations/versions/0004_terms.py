"""Add the terms of durable tasks: what else was agreed on when they were submitted.

As 0001, this is safe to repeat when a process dies between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    columns = sa.inspect(op.get_bind()).get_columns("outbox_tasks")
    if "terms" not in {column["name"] for column in columns}:
        # A default: processes of the version before still write rows while others are upgraded.
        terms = sa.Column("terms", sa.String(255), nullable=False, server_default="")
        op.add_column("outbox_tasks", terms)


def downgrade() -> None:
    with op.batch_alter_table("outbox_tasks") as table:
        table.drop_column("terms")
