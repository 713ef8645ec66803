"""Which rows a pipeline may lease: the statements that select them.

Who may take a row:

* A free row: any pipeline of its table. A row whose lease has ended: its owner only, because the
  owner knows what the dead process may have begun.
* A *waiting* row (owner, but no token) could not get its related rows. Its pipeline tries again
  soon. Until then no pipeline fetches the related rows, so that they become free; except for rows
  that it owns already, because it has to end what it began, and for rows that have been due for
  `FIRST_SECONDS`, because main rows could wait for them one after the other without an end.
* An owner that has not come back for `ABANDONED_SECONDS` is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.pipelines.clock import db_now
from nonet.pipelines.columns import OWNER_LENGTH
from nonet.pipelines.keys import key_of, serving_index, table_of, text_of_key
from nonet.pipelines.pipeline import Pipeline, order_of
from nonet.pipelines.related import Related
from nonet.rules.pipelines import HOLD

ABANDONED_SECONDS = 600.0
FIRST_SECONDS = 60.0

FREE: dict[str, Any] = {"lease_token": None, "lease_owner": None, "lease_expires_at": None}


def owner_of_related(pipeline: Pipeline[Any], key: Any) -> str:
    """Owner of the related rows of a main row."""
    text = text_of_key(key)
    owner = f"{pipeline.name}:{text}"
    if len(owner) <= OWNER_LENGTH:
        return owner
    return f"{pipeline.name}:{hashlib.sha256(text.encode()).hexdigest()}"


def may_take(table: sa.Table, owner: str) -> sa.ColumnElement[bool]:
    """Whether an owner that is no pipeline may lease a row now; a waiting row may be taken."""
    columns = table.c
    is_free = columns.lease_token.is_(None)
    is_over = columns.lease_expires_at < db_now()
    return sa.or_(is_free, sa.and_(is_over, _may_retake(table, owner)))


def _may_retake(table: Any, owner: str) -> sa.ColumnElement[bool]:
    last = sa.func.coalesce(table.c.lease_expires_at, table.c.last_processed_at)
    is_own = table.c.lease_owner.in_([owner, HOLD])
    return sa.or_(is_own, last < db_now(-ABANDONED_SECONDS))


def fetch_statement(
    pipeline: Pipeline[Any],
    waiting_for: Sequence[tuple[type[Pipeline[Any]], Related]],
    condition: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    table = table_of(pipeline.model)
    columns = table.c
    chosen = pipeline.select()
    is_unleased = sa.or_(columns.lease_expires_at.is_(None), columns.lease_expires_at < db_now())
    is_unowned = columns.lease_owner.is_(None)
    wanted = sa.or_(*(is_wanted(of, related) for of, related in waiting_for), sa.false())
    may_begin = sa.and_(is_unowned, sa.not_(wanted)) if waiting_for else is_unowned
    return (
        chosen.with_only_columns(
            key_of(table), columns.due_at, db_now(), maintain_column_froms=True
        )
        .where(
            condition,
            columns.due_at.is_not(None),
            is_unleased,
            sa.or_(may_begin, _may_retake(table, pipeline.name)),
        )
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
    rows that wait before it looks at one that is due.
    """
    dialect: Any = (await session.connection()).dialect
    if dialect.name == "postgresql":
        off = ("enable_seqscan", "enable_bitmapscan", "enable_sort")
        await session.execute(sa.select(*(sa.func.set_config(name, "off", True) for name in off)))
    elif getattr(dialect, "is_mariadb", False):
        await session.execute(sa.text("SET SESSION optimizer_switch = 'exists_to_in=off'"))


def due_rows(pipeline: Pipeline[Any]) -> sa.Select[Any]:
    table = table_of(pipeline.model)
    columns = table.c
    shown = (columns.lease_token, columns.lease_owner, columns.lease_expires_at)
    return (
        pipeline.select()
        .with_only_columns(*shown, columns.attempts, columns.due_at, maintain_column_froms=True)
        .where(columns.due_at <= db_now())
        .order_by(None)
        .order_by(columns.due_at, key_of(table))
    )


def is_wanted(of: type[Pipeline[Any]], related: Related) -> sa.ColumnElement[bool]:
    """Whether a main row of another pipeline waits for a row of this table, and goes first."""
    main = table_of(of.model).alias()
    has_time = table_of(related.model).c.due_at > db_now(-FIRST_SECONDS)
    is_waiting = sa.and_(
        main.c.lease_owner == of.name,
        main.c.lease_token.is_(None),
        main.c.due_at.is_not(None),
        main.c.last_processed_at > db_now(-ABANDONED_SECONDS),
    )
    waiting = sa.exists(sa.select(sa.literal(1)).where(related.is_of(main), is_waiting))
    return sa.and_(has_time, waiting)


def leased(table: sa.Table, token: str, owner: str, seconds: float) -> dict[Any, Any]:
    """The lease columns of a row with a new lease."""
    columns = table.c
    until = db_now(seconds)
    return {columns.lease_token: token, columns.lease_owner: owner, columns.lease_expires_at: until}


def free(table: sa.Table) -> dict[Any, Any]:
    """The lease columns of a row without a lease."""
    return {table.c[name]: value for name, value in FREE.items()}
