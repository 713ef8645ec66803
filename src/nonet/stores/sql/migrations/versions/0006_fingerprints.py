"""Add what dead letters of the same cause have in common, the place of their error, and a note.

The columns have defaults because workers of the previous version still write rows during an
upgrade. Their fingerprints, and those of the rows that exist, are empty until the leading scheduler
adds them, some hundred in a transaction: here they would all be locked for as long as that takes.
Like 0001, this is safe to repeat after a process died between a statement and the entry in the
version table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TABLE = "dlq_tasks"
_INDEX = "ix_dlq_tasks_clusters"


def upgrade() -> None:
    inspector = sa.inspect(op.get_bind())
    there = {column["name"] for column in inspector.get_columns(_TABLE)}
    for name, length in (("fingerprint", 16), ("place", 255), ("note", 1000)):
        if name not in there:
            column = sa.Column(name, sa.String(length), nullable=False, server_default="")
            op.add_column(_TABLE, column)
    if _INDEX not in {index["name"] for index in inspector.get_indexes(_TABLE)}:
        columns = ["namespace", "fingerprint", "status", "created_at", "id"]
        op.create_index(_INDEX, _TABLE, columns)
