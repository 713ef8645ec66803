"""Lease and release the related rows of main rows, and wake the rows that wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import ServerUnreachableError
from nonet.pipelines.clock import db_now
from nonet.pipelines.eligibility import (
    Mains,
    free,
    is_claimed_before,
    is_waiting,
    leased,
    may_take,
    owner_of_related,
)
from nonet.pipelines.hints import announce
from nonet.pipelines.lease import Held, Lease, RelatedBusy
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Related
from nonet.pipelines.table_keys import key_of, table_of

logger = logging.getLogger(__name__)

MainsOf = Callable[[sa.Table], Mains]
"""Returns the pipelines whose related rows are in a table."""


class RelatedLeases:
    """The related rows of the rows of one pipeline."""

    def __init__(self, pipeline: Pipeline[Any], mains_of: MainsOf) -> None:
        self._pipeline = pipeline
        self._mains_of = mains_of

    async def lease(self, session: AsyncSession, lease: Lease) -> list[Held]:
        """Lease all related rows of a main row.

        Raises:
            RelatedBusy: one is leased by others, or left to a row that has waited longer.
        """
        found = [await self._lease(session, lease, item) for item in self._pipeline.related]
        return [held for held in found if held is not None]

    async def _lease(self, session: AsyncSession, lease: Lease, related: Related) -> Held | None:
        table = table_of(related.model)
        key = key_of(table)
        may_lease = self._may_lease(lease.key, related, lease.waiting_since or db_now())
        query = sa.select(key).where(may_lease).order_by(key)
        query = query.with_for_update(skip_locked=True, of=table, key_share=True)
        got = (await session.scalars(query)).all()
        if len(got) < await self._count(session, lease.key, related):
            raise RelatedBusy
        if not got:
            return None
        owner = owner_of_related(self._pipeline, lease.key)
        values = leased(table, lease.token, owner, self._pipeline.lease)
        await session.execute(sa.update(table).where(key.in_(got)).values(values))
        return Held(table, tuple(got), lease.token, owner)

    def _may_lease(self, main: Any, related: Related, since: Any) -> sa.ColumnElement[bool]:
        """The related rows that a main row may lease now, given since when it waits."""
        table = table_of(related.model)
        owner = owner_of_related(self._pipeline, main)
        is_left = is_claimed_before(self._mains_of(table), table, since)
        is_free = sa.and_(may_take(table, owner), sa.not_(is_left))
        # Only attempts of this row use this owner. We have its lease, so earlier attempts have
        # ended.
        is_own = table.c.lease_owner == owner
        return sa.and_(related.condition(self._pipeline.model, main), sa.or_(is_free, is_own))

    async def _count(self, session: AsyncSession, main: Any, related: Related) -> int:
        condition = related.condition(self._pipeline.model, main)
        table = table_of(related.model)
        count = sa.select(sa.func.count()).select_from(table).where(condition)
        return int((await session.execute(count)).scalar_one())

    async def are_free(self, session: AsyncSession, main: Any, since: Any) -> bool:
        """Whether a main row could lease all related rows, given since when it waits."""
        for related in self._pipeline.related:
            table = table_of(related.model)
            free_now = sa.select(sa.func.count()).select_from(table)
            free_now = free_now.where(self._may_lease(main, related, since))
            found = (await session.execute(free_now)).scalar_one()
            if found < await self._count(session, main, related):
                return False
        return True

    async def release(self, session: AsyncSession, lease: Lease) -> None:
        """Release the related rows of a lease."""
        for held in lease.related:
            columns = held.table.c
            mine = sa.and_(
                key_of(held.table).in_(held.keys),
                columns.lease_token == held.token,
                columns.lease_owner == held.owner,
            )
            await self._free(session, held.table, mine)

    async def release_abandoned(self, session: AsyncSession, lease: Lease) -> None:
        """Release the related rows of attempts that died: no attempt of this row follows.

        Wait for rows that another transaction has locked. If they were skipped, no later call would
        release them, and they would keep their owner until it counts as abandoned.
        """
        owner = owner_of_related(self._pipeline, lease.key)
        for related in self._pipeline.related:
            table = table_of(related.model)
            of_row = related.condition(self._pipeline.model, lease.key)
            query = sa.select(key_of(table)).where(of_row, table.c.lease_owner == owner)
            query = query.with_for_update(of=table, key_share=True)
            if keys := (await session.scalars(query)).all():
                lease.related.append(Held(table, tuple(keys), lease.token, owner))
                await self._free(session, table, key_of(table).in_(keys))

    async def _free(self, session: AsyncSession, table: sa.Table, where: Any) -> None:
        await session.execute(sa.update(table).where(where).values(free(table)))
        announce(session, table.name)  # such a row may be due, and its pipeline has skipped it

    async def wake(self, *leases: Lease) -> None:
        """Let the rows that wait for released rows try again now, the longest waiting first.

        It wakes only as many as there are released rows: the others would find them leased again.
        It runs after the commit of the release, and a row that must wait checks its related rows
        after the commit of its wait. So one of the two sees the other.
        """
        freed: list[tuple[sa.Table, Sequence[Any]]] = [
            (table_of(self._pipeline.model), [lease.key for lease in leases])
        ]
        freed += [(held.table, held.keys) for lease in leases for held in lease.related]
        waiters = [
            (of, related, table, keys)
            for table, keys in freed
            for of, related in self._mains_of(table)
        ]
        if not waiters:
            return
        try:
            async with self._pipeline.database.transaction() as session:
                for of, related, table, keys in waiters:
                    await _wake(session, of, related, key_of(table).in_(keys), len(keys))
        except ServerUnreachableError as error:
            logger.debug("waiting rows not woken, they try again by themselves: %s", error)


async def _wake(
    session: AsyncSession, of: type[Pipeline[Any]], related: Related, freed: Any, most: int
) -> None:
    waiting = table_of(of.model)
    main = waiting.alias()
    columns = main.c
    query = (
        sa.select(key_of(main))
        .where(related.is_of(main), freed, is_waiting(main))
        .where(columns.lease_token.is_(None), columns.lease_expires_at > db_now())
        .order_by(columns.waiting_since)
        .limit(most)
    )
    query = query.with_for_update(skip_locked=True, of=main, key_share=True)
    if woken := (await session.scalars(query)).all():
        await try_again(session, waiting, sorted(set(woken)))


async def try_again(session: AsyncSession, table: sa.Table, keys: Sequence[Any]) -> None:
    """Let waiting rows of a table be fetched now."""
    waits = sa.and_(table.c.waiting_since.is_not(None), table.c.lease_token.is_(None))
    update = sa.update(table).where(key_of(table).in_(keys), waits)
    await session.execute(update.values({table.c.lease_expires_at: db_now(-1)}))
    announce(session, table.name)
