"""Hand due rows to tasks: the pipeline's process calls `dispatch`, the task's calls `take`."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from nonet.pipelines.clock import db_now
from nonet.pipelines.eligibility import fetch_statement, in_index_order, leased, prefer_index
from nonet.pipelines.lease import Lease, lease_of, microseconds
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.table_keys import key_of

# After this time a row is dispatched again if no task has leased it.
_DISPATCH_SECONDS = 60.0


class Dispatched(NamedTuple):
    """A due row for which a task is submitted; `series` changes when the row was processed."""

    key: Any
    series: int


async def dispatch(leasing: Leasing, limit: int) -> list[Dispatched]:
    """Take due rows for tasks: they are due again in a while, unless a task leases them.

    Then they are dispatched again, because the task may be lost.
    """
    table, columns = leasing.table, leasing.table.c
    is_due = sa.and_(columns.due_at <= db_now(), columns.attempts >= 0)
    statement = fetch_statement(leasing.pipeline, leasing.mains, is_due)
    statement = in_index_order(statement, leasing.pipeline).add_columns(columns.last_processed_at)
    async with leasing.database.transaction() as session:
        await prefer_index(session)
        found = (await session.execute(statement.limit(limit))).all()
        if found:
            later = sa.update(table).where(key_of(table).in_([row[0] for row in found]))
            await session.execute(later.values({columns.due_at: db_now(_DISPATCH_SECONDS)}))
    return [Dispatched(row[0], microseconds(row.last_processed_at)) for row in found]


async def take(leasing: Leasing, key: Any, series: int, since: float) -> Lease | None:
    """Lease a row that was dispatched to a task.

    It is due when the lease ends, so that it is dispatched again if the task dies.

    Args:
        series: as in `Dispatched`.
        since: monotonic time now.

    Returns:
        None if the row was processed meanwhile, is finished, or is leased by others.
    """
    pipeline, table, columns = leasing.pipeline, leasing.table, leasing.table.c
    is_row = key_of(table) == key
    statement = fetch_statement(pipeline, leasing.mains, is_row)
    async with leasing.database.transaction() as session:
        query = statement.add_columns(columns.last_processed_at)
        found = (await session.execute(query)).one_or_none()
        if found is None or microseconds(found.last_processed_at) != series:
            return None
        token = str(uuid.uuid4())
        ends_at = found[2] + timedelta(seconds=pipeline.lease)
        values = leased(table, token, pipeline.name, pipeline.lease)
        values |= {columns.lease_expires_at: ends_at, columns.due_at: ends_at}
        await session.execute(sa.update(table).where(is_row).values(values))
    lease = lease_of(found, token, since)
    lease.due_at = ends_at
    return lease
