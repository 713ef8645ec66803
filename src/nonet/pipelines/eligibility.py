"""Which rows a pipeline may lease: the statements that select them.

Who may take a row:

* A free row: any pipeline of its table. A row whose lease has ended: its owner only, because the
  owner knows what the dead process may have begun.
* A *waiting* row (``waiting_since``) could not get its related rows. It keeps its due time, and so
  its place in the order. It claims its related rows: other rows do not take them. The row that has
  waited longer goes first.
* A due row that its parent claims (`Children`) waits for the parent. A due row that is shared
  (`Shared`) goes before a main row that began to wait after the shared row was due. So neither side
  starves: many main rows may wait for a shared row, but only one parent for a child.
* An owner or a waiting row that has not come back for `ABANDONED_SECONDS` is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.pipelines.clock import db_now
from nonet.pipelines.columns import OWNER_LENGTH
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Related
from nonet.pipelines.table_keys import key_of, order_of, serving_index, table_of, text_of_key
from nonet.rules.pipelines import HOLD

ABANDONED_SECONDS = 600.0

Mains = Sequence[tuple[type[Pipeline[Any]], Related]]
"""The pipelines whose related rows are in a table."""


def mains_of(classes: Iterable[type[Pipeline[Any]]], table: sa.Table) -> Mains:
    """The pipelines whose related rows are in a table."""
    return [
        (of, related)
        for of in classes
        for related in of.related
        if table_of(related.model) is table
    ]


FREE: dict[str, Any] = {"lease_token": None, "lease_owner": None, "lease_expires_at": None}


def owner_of_related(pipeline: Pipeline[Any], key: Any) -> str:
    """Owner of the related rows of a main row."""
    text = text_of_key(key)
    owner = f"{pipeline.name}:{text}"
    if len(owner) <= OWNER_LENGTH:
        return owner
    return f"{pipeline.name}:{hashlib.sha256(text.encode()).hexdigest()}"


def may_take(table: sa.Table, owner: str) -> sa.ColumnElement[bool]:
    """Whether a program, not a pipeline, may lease a row now; it may take a waiting row."""
    columns = table.c
    is_free = columns.lease_token.is_(None)
    is_over = columns.lease_expires_at < db_now()
    return sa.or_(is_free, sa.and_(is_over, _may_retake(table, owner)))


def _may_retake(table: Any, owner: str) -> sa.ColumnElement[bool]:
    last = sa.func.coalesce(table.c.lease_expires_at, table.c.last_processed_at)
    is_own = table.c.lease_owner.in_([owner, HOLD])
    return sa.or_(is_own, last < db_now(-ABANDONED_SECONDS))


def fetch_statement(
    pipeline: Pipeline[Any], mains: Mains, condition: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    table = table_of(pipeline.model)
    columns = table.c
    chosen = pipeline.select()
    is_unleased = sa.or_(columns.lease_expires_at.is_(None), columns.lease_expires_at < db_now())
    is_over = sa.and_(columns.lease_token.is_not(None), _may_retake(table, pipeline.name))
    is_unowned = sa.or_(columns.lease_owner.is_(None), _may_retake(table, pipeline.name))
    is_free = sa.and_(columns.lease_token.is_(None), is_unowned)
    if mains:
        is_free = sa.and_(is_free, sa.not_(is_claimed(mains)))
    shown = (columns.due_at, db_now(), columns.waiting_since, columns.suspect)
    return (
        chosen.with_only_columns(key_of(table), *shown, maintain_column_froms=True)
        .where(condition, columns.due_at.is_not(None), is_unleased, sa.or_(is_free, is_over))
        .order_by(None)
        .order_by(*order_of(chosen, table))
        .with_for_update(skip_locked=True, of=table, key_share=True)
    )


def in_index_order(statement: sa.Select[Any], pipeline: Pipeline[Any]) -> sa.Select[Any]:
    """Let MySQL and MariaDB walk the index of the order, see `prefer_index`."""
    table = table_of(pipeline.model)
    hint = f"FORCE INDEX ({serving_index(table, order_of(pipeline.select(), table))})"
    return statement.with_hint(table, hint, "mysql").with_hint(table, hint, "mariadb")


async def prefer_index(session: AsyncSession) -> None:
    """Let the server walk the index in its order until enough rows are found.

    It cannot know that most rows are free. Without statistics of the lease columns, as after a bulk
    load, PostgreSQL would read and sort the whole table for each fetch. MariaDB would collect all
    waiting rows before it examines a due one.
    """
    dialect: Any = (await session.connection()).dialect
    if dialect.name == "postgresql":
        off = ("enable_seqscan", "enable_bitmapscan", "enable_sort")
        await session.execute(sa.select(*(sa.func.set_config(name, "off", True) for name in off)))
    elif getattr(dialect, "is_mariadb", False):
        await session.execute(sa.text("SET SESSION optimizer_switch = 'exists_to_in=off'"))


def is_claimed(mains: Mains) -> sa.ColumnElement[bool]:
    """Whether a main row that waits for a free row goes before it."""
    return sa.or_(*(_claim(of, related, related.goes_first) for of, related in mains))


def is_claimed_before(mains: Mains, table: Any, since: Any) -> sa.ColumnElement[bool]:
    """Whether a related row is left to another row, which has waited since an earlier time.

    The other row is a main row that waits for the related row, or the related row itself if it
    waits for rows that are related to it.
    """
    claims = [
        _claim(of, related, lambda main: main.c.waiting_since < since) for of, related in mains
    ]
    return sa.or_(*claims, sa.and_(is_waiting(table), table.c.waiting_since < since))


def is_waiting(table: Any) -> sa.ColumnElement[bool]:
    """Whether a row waits for its related rows, and its pipeline has tried lately."""
    columns = table.c
    last = sa.func.coalesce(columns.lease_expires_at, columns.waiting_since)
    return sa.and_(
        columns.waiting_since.is_not(None),
        columns.due_at.is_not(None),
        last > db_now(-ABANDONED_SECONDS),
    )


def _claim(
    of: type[Pipeline[Any]], related: Related, goes_first: Callable[[Any], sa.ColumnElement[bool]]
) -> sa.ColumnElement[bool]:
    main = table_of(of.model).alias()
    of_row = sa.and_(related.is_of(main), is_waiting(main), goes_first(main))
    return sa.exists(sa.select(sa.literal(1)).where(of_row))


def leased(table: sa.Table, token: str, owner: str, seconds: float) -> dict[Any, Any]:
    """The lease columns of a row with a new lease."""
    columns = table.c
    until = db_now(seconds)
    return {columns.lease_token: token, columns.lease_owner: owner, columns.lease_expires_at: until}


def free(table: sa.Table) -> dict[Any, Any]:
    """The lease columns of a row without a lease."""
    return {table.c[name]: value for name, value in FREE.items()}
