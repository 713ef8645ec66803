"""Renew leases in SQL: `extend`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.pipelines.clock import db_now
from nonet.pipelines.lease import Held
from nonet.pipelines.table_keys import key_of


class Extended(NamedTuple):
    """What a renewal did not extend.

    Attributes:
        lost: rows that are deleted, or leased by others.
        skipped: rows that a transaction of another program has locked. Their leases still hold.
    """

    lost: set[Held]
    skipped: set[Held]


async def extend(session: AsyncSession, items: Sequence[Held], seconds: float) -> Extended:
    """Renew leases, except those of locked rows.

    A program may keep a row locked for as long as its transaction takes. If the renewal waited for
    that, all leases of this process would end.

    Args:
        items: rows of one table.
        seconds: how long they last from now.
    """
    table = items[0].table
    key, token = key_of(table), table.c.lease_token
    keys = sorted({key for item in items for key in item.keys})
    mine = sa.and_(key.in_(keys), token.in_({item.token for item in items}))
    query = sa.select(key, token).where(mine).order_by(key)
    query = query.with_for_update(skip_locked=True, key_share=True)
    renewed = {(row[0], row[1]) for row in await session.execute(query)}
    if renewed:
        until = {table.c.lease_expires_at: db_now(seconds)}
        renewing = sa.update(table).where(key.in_([row[0] for row in renewed])).values(until)
        await session.execute(renewing)
    left = {item for item in items if not renewed.issuperset(_leases(item))}
    if not left:
        return Extended(set(), set())
    query = sa.select(key, token).where(mine)
    alive = {(row[0], row[1]) for row in await session.execute(query)}
    lost = {item for item in left if not alive.issuperset(_leases(item))}
    return Extended(lost, left - lost)


def _leases(item: Held) -> set[tuple[Any, str]]:
    return {(key, item.token) for key in item.keys}
