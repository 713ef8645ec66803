"""What operators see of rows: `measure` counts the rows of a pipeline, `look` reads one row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from nonet.pipelines.clock import db_now
from nonet.pipelines.eligibility import is_claimed
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.table_keys import key_of, table_of
from nonet.rules.pipelines import MOST, RowFigures, RowState


async def measure(pipeline: Pipeline[Any]) -> RowFigures:
    """Count the due rows of a pipeline; `MOST` + 1 means that there are more than `MOST`."""
    table = table_of(pipeline.model)
    columns = table.c
    shown = (columns.lease_token, columns.waiting_since, columns.lease_expires_at)
    rows = (
        pipeline.select()
        .with_only_columns(*shown, columns.attempts, columns.due_at, maintain_column_froms=True)
        .where(columns.due_at <= db_now())
        .order_by(None)
        .order_by(columns.due_at, key_of(table))
    )
    due = rows.limit(MOST + 1).subquery()
    is_leased = due.c.lease_token.is_not(None)
    is_over = due.c.lease_expires_at < db_now()
    # A row whose process died became free when its lease ended, not when it was due.
    free_since = sa.case(
        (sa.not_(is_leased), due.c.due_at), (is_over, due.c.lease_expires_at), else_=None
    )

    def number(condition: Any) -> Any:
        return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)

    query = sa.select(
        db_now(),
        sa.func.count(),
        number(sa.and_(is_leased, sa.not_(is_over))),
        number(sa.and_(is_leased, is_over)),
        number(sa.and_(due.c.waiting_since.is_not(None), sa.not_(is_leased))),
        number(due.c.attempts < 0),
        sa.func.min(free_since, type_=columns.due_at.type),
    ).select_from(due)
    async with pipeline.database.transaction() as session:
        now, total, leased, stale, waiting, dying, oldest = (await session.execute(query)).one()
    age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
    return RowFigures(now, int(total), int(leased), int(stale), int(waiting), int(dying), age)


async def look(leasing: Leasing, key: Any) -> RowState | None:
    """Read the lease columns of a row; None: it does not exist."""
    pipeline, columns = leasing.pipeline, leasing.table.c
    own = key_of(leasing.table)
    chosen = pipeline.select().with_only_columns(own, maintain_column_froms=True)
    query = sa.select(
        db_now(),
        columns.due_at,
        columns.lease_expires_at,
        columns.lease_token,
        columns.lease_owner,
        columns.attempts,
        own.in_(chosen.where(own == key).order_by(None)),
        columns.waiting_since,
        columns.suspect > 0,
    ).where(own == key)
    async with pipeline.database.transaction() as session:
        found = (await session.execute(query)).one_or_none()
        wanted_by = ""
        for of, related in leasing.mains:
            wanted = sa.select(own).where(own == key, is_claimed([(of, related)]))
            if await session.scalar(wanted) is not None:
                wanted_by = of.name
                break
    if found is None:
        return None
    task = pipeline.process_as.__name__ if pipeline.process_as else ""
    return replace(RowState(*found), wanted_by=wanted_by, task=task)
