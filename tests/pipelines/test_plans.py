"""The fetch walks the index of due times, whatever is due, and without statistics of the table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from row_tables import Fleets, Instance, Instances, Jobs, on

from nonet.pipelines import RowDatabase
from nonet.pipelines.eligibility import prefer_index

pytestmark = pytest.mark.server


class Chosen(Instances):
    def select(self) -> Any:
        return sa.select(Instance).where(Instance.status == "new")


@pytest.mark.parametrize("year", [2000, 2100])
async def test_a_fetch_walks_the_index(database: RowDatabase, year: int) -> None:
    """All rows due or none, with a condition of the author, and with mains that may wait."""
    due = datetime(year, 1, 1, tzinfo=UTC)
    rows = [{"due_at": due, "status": "new" if number % 2 else "old"} for number in range(5000)]
    async with database.transaction() as session:
        await session.execute(sa.insert(Instance), rows)
    for classes in ((Chosen,), (Instances, Fleets, Jobs)):
        pipelines = on(database, *classes)
        leasing = pipelines.leasing(pipelines["instances"])
        dialect = database.engine.dialect
        compiled = leasing.fetched.limit(40).compile(
            dialect=dialect, compile_kwargs={"literal_binds": True}
        )
        explain = "EXPLAIN QUERY PLAN" if dialect.name == "sqlite" else "EXPLAIN"
        async with database.transaction() as session:
            await prefer_index(session)
            connection = await session.connection()
            plan = (await connection.exec_driver_sql(f"{explain} {compiled}")).all()
        shown = " ".join(str(part) for row in plan for part in row)
        assert "ix_instances_due" in shown, shown
        assert "Sort" not in shown
        assert "filesort" not in shown
        assert "MATERIALIZED" not in shown
