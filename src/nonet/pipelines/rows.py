"""`Rows`: how programs write rows that pipelines process: `touch` and `hold`."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import ConflictError, LeaseLostError, RowsBusy
from nonet.pipelines.clock import db_now
from nonet.pipelines.eligibility import free, leased, may_take
from nonet.pipelines.hints import announce
from nonet.pipelines.table_keys import key_of, table_of
from nonet.rules.pipelines import HOLD

_HOLD_SECONDS = 30.0
_ASK_SECONDS = (0.05, 0.25)


class Rows:
    """The rows of one table that pipelines process, for the rest of the program.

    Args:
        model: the mapped class, with `LeaseMixin`.

    Example:
        volumes = Rows(Volume)

        async with database.sessions() as session:
            async with volumes.hold(session, [7], wait=5):
                await session.execute(sa.update(Volume).where(Volume.id == 7).values(size=20))

    Attributes:
        table: the table.
    """

    def __init__(self, model: Any) -> None:
        self.table: sa.Table = table_of(model)
        self._key = key_of(self.table)

    async def touch(self, session: AsyncSession, ids: Sequence[Any]) -> int:
        """Make rows due now, in the transaction of a session, and hint after its commit.

        A row that is being processed is due again as soon as its result was applied. A finished row
        is due again, too.

        Args:
            ids: primary keys.

        Returns:
            How many of the rows exist.

        Example:
            async with database.sessions.begin() as session:
                session.add(Event(volume_id=7, text="resize"))
                await volumes.touch(session, [7])
        """
        return await self._change(session, ids, {self.table.c.due_at: db_now()})

    async def resume(
        self, session: AsyncSession, ids: Sequence[Any], at_time: datetime | None = None
    ) -> int:
        """Make rows due again that had become dead letters: their attempts count from 0.

        Args:
            ids: primary keys.
            at_time: when they are due; None: now.

        Returns:
            How many of the rows exist.
        """
        columns = self.table.c
        values = {columns.attempts: 0, columns.suspect: 0, columns.due_at: at_time or db_now()}
        return await self._change(session, ids, values)

    async def _change(
        self, session: AsyncSession, ids: Sequence[Any], values: dict[Any, Any]
    ) -> int:
        update = sa.update(self.table).where(self._key.in_(sorted(ids))).values(values)
        changed: Any = await session.execute(update)
        announce(session, self.table.name)
        return int(changed.rowcount)

    @asynccontextmanager
    async def hold(
        self, session: AsyncSession, ids: Sequence[Any], *, wait: float = 5.0
    ) -> AsyncIterator[None]:
        """Lease rows while a program changes them, so that no pipeline processes them meanwhile.

        The end of the block commits the transaction of the session, together with the release. An
        exception rolls it back. The lease lasts 30 seconds; a longer block fails at its end.

        Args:
            session: has no open transaction.
            ids: primary keys; they are leased in their order, all or none.
            wait: seconds to wait for others.

        Raises:
            RowsBusy: a pipeline or another program still leases a row.
            ConflictError: the session has an open transaction, or a row does not exist.
            LeaseLostError: the block took too long; nothing was changed.
        """
        if session.in_transaction():
            raise ConflictError(
                "hold: the session has an open transaction, which would not see what pipelines "
                "have written: call hold() before the first statement of the session"
            )
        token = str(uuid.uuid4())
        keys = sorted(set(ids))
        try:
            await self._lease(session, keys, token, wait)
            yield
            if await self._release(session, keys, token) < len(keys):
                raise LeaseLostError(
                    f"hold: the lease of rows of table {self.table.name} ended after "
                    f"{_HOLD_SECONDS:g} s, before the block did; nothing was changed"
                )
            announce(session, self.table.name)  # rows that became due meanwhile were skipped
            await session.commit()
        except BaseException:  # also a cancellation right after the rows were leased
            await session.rollback()
            await asyncio.shield(self._give_up(session, keys, token))
            raise

    async def _lease(self, session: AsyncSession, keys: list[Any], token: str, wait: float) -> None:
        ends_at = time.monotonic() + wait
        values = leased(self.table, token, HOLD, _HOLD_SECONDS)
        may_lease = sa.and_(self._key.in_(keys), may_take(self.table, HOLD))
        query = sa.select(self._key).where(may_lease).order_by(self._key)
        query = query.with_for_update(skip_locked=True, key_share=True)
        while True:
            async with session.begin():
                got = (await session.scalars(query)).all()
                if len(got) == len(keys):
                    update = sa.update(self.table).where(self._key.in_(keys)).values(values)
                    await session.execute(update)
                    return
                await self._check_exist(session, keys)
            left = ends_at - time.monotonic()
            if left <= 0:
                busy = next(key for key in keys if key not in got)
                raise RowsBusy(self.table.name, busy)
            await asyncio.sleep(min(left, random.uniform(*_ASK_SECONDS)))

    async def _check_exist(self, session: AsyncSession, keys: list[Any]) -> None:
        found = set((await session.scalars(sa.select(self._key).where(self._key.in_(keys)))).all())
        if missing := [key for key in keys if key not in found]:
            raise ConflictError(f"hold: table {self.table.name} has no row {missing[0]}")

    async def _release(self, session: AsyncSession, keys: list[Any], token: str) -> int:
        """Release the rows that are still leased; return how many these were."""
        mine = sa.and_(self._key.in_(keys), self.table.c.lease_token == token)
        update = sa.update(self.table).where(mine).values(free(self.table))
        released: Any = await session.execute(update)
        return int(released.rowcount)

    async def _give_up(self, session: AsyncSession, keys: list[Any], token: str) -> None:
        """Release the rows after a failure; if that fails too, the lease ends by itself."""
        try:
            async with session.begin():
                await self._release(session, keys, token)
        except (sa.exc.SQLAlchemyError, OSError):
            await session.rollback()
