"""The lease columns are added to an existing table as `LeaseMixin` declares them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from row_tables import Base, Job

from nonet.pipelines import RowDatabase, add_lease_columns, drop_lease_columns

pytestmark = pytest.mark.server


def described(connection: sa.Connection, table: str) -> Any:
    found = sa.inspect(connection)
    columns = {
        column["name"]: (str(column["type"]), column["nullable"], str(column["default"]))
        for column in found.get_columns(table)
    }
    indexes = {index["name"]: index["column_names"] for index in found.get_indexes(table)}
    return columns, indexes


async def test_the_columns_of_an_existing_table_are_those_of_the_mixin(url: str) -> None:
    """Rows that the condition selects are due, others finished; the removal leaves no trace."""
    database = RowDatabase(url)

    def migrate(connection: sa.Connection) -> None:
        op = Operations(MigrationContext.configure(connection))
        old = (
            *(sa.Column("id", sa.Integer(), primary_key=True),),
            *(sa.Column("instance_id", sa.Integer(), index=True),),
            sa.Column("status", sa.String(20), nullable=False),
        )
        sa.Table("jobs", sa.MetaData(), *old).create(connection)
        connection.execute(sa.text("INSERT INTO jobs (id, status) VALUES (1, 'new'), (2, 'done')"))
        before = described(connection, "jobs")
        add_lease_columns(op, "jobs", due_where="status = 'new'")
        connection.execute(sa.text("INSERT INTO jobs (id, status) VALUES (3, 'new')"))
        due = connection.execute(sa.select(Job.id).where(Job.due_at.is_not(None)).order_by(Job.id))
        assert due.scalars().all() == [1, 3]
        migrated = described(connection, "jobs")
        drop_lease_columns(op, "jobs")
        assert described(connection, "jobs") == before
        connection.execute(sa.text("DROP TABLE jobs"))
        Base.metadata.create_all(connection)
        assert migrated == described(connection, "jobs")

    async with database.engine.begin() as connection:
        await connection.run_sync(migrate)
    await database.close()
