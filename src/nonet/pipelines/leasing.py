"""The statements that lease, load, renew and release the rows of one pipeline: `Leasing`.

One row in one pass: `fetch` → `load` → (`process`, outside of this module) → `apply` or `fail`.
Every statement that changes a leased row checks its key and its token, so that a worker that lost
its lease changes nothing. All times are by the clock of the database.

All related rows are leased in one transaction or none is, and no row is leased while its
transaction waits for another row. So no two rows can wait for each other.

The death of a process is inferred: a load records that an attempt begins, and how (``suspect``),
and every end of an attempt erases that record. An attempt that died beside others is not counted,
because any of them may be the cause: it is repeated alone, under the same number.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import ServerUnreachableError
from nonet.pipelines.changes import Changes, statements, with_now
from nonet.pipelines.clock import db_now
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.eligibility import (
    FREE,
    Mains,
    fetch_statement,
    free,
    in_index_order,
    leased,
    prefer_index,
)
from nonet.pipelines.hints import announce
from nonet.pipelines.lease import (
    ALONE,
    WITH_OTHERS,
    Exhausted,
    Held,
    Lease,
    Loaded,
    NotSelected,
    Stale,
    by_token,
    lease_of,
    microseconds,
)
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related_leases import MainsOf, RelatedLeases, try_again
from nonet.pipelines.table_keys import key_of, table_of
from nonet.rules.pipelines import again_after


class _Guard(NamedTuple):
    """A leased row, locked until its transaction ends; `now` is the time of all its changes."""

    now: datetime
    due_at: datetime | None
    attempts: int
    last_processed_at: datetime | None


class Leasing:
    """The leases of one pipeline.

    Args:
        mains_of: returns the pipelines whose related rows are in a table.

    Attributes:
        mains: the pipelines whose related rows are in the table of this pipeline.
        fetched: selects the rows of a fetch.
    """

    def __init__(self, pipeline: Pipeline[Any], mains_of: MainsOf) -> None:
        self.pipeline = pipeline
        self.table: sa.Table = table_of(pipeline.model)
        self.database: RowDatabase = pipeline.database
        self._key = key_of(self.table)
        self._related = RelatedLeases(pipeline, mains_of)
        self.mains: Mains = mains_of(self.table)
        due = self.table.c.due_at <= db_now()
        if pipeline.process_as is not None:  # `dispatch` has the other statements
            due = sa.and_(due, self.table.c.attempts < 0)
        self.fetched: sa.Select[Any] = in_index_order(
            fetch_statement(pipeline, self.mains, due), pipeline
        )

    # ---- one row, from its fetch to its release -------------------------------------------------

    async def fetch(self, limit: int, since: float) -> list[Lease]:
        """Lease due rows, the first in the order of the pipeline.

        Args:
            limit: number of rows at most.
            since: monotonic time now.
        """
        async with self.database.transaction() as session:
            await prefer_index(session)
            found = (await session.execute(self.fetched.limit(limit))).all()
            if not found:
                return []
            token = str(uuid.uuid4())
            of_all = self._key.in_([row[0] for row in found])
            values = leased(self.table, token, self.pipeline.name, self.pipeline.lease)
            await _update(session, self.table, of_all, values)
        return [lease_of(row, token, since) for row in found]

    async def load(self, lease: Lease, *, alone: bool = False) -> Loaded | Exhausted:
        """Count an attempt, lease the related rows, and read the row.

        Args:
            alone: no other row or task is in process in this process.

        Raises:
            Stale: the lease was lost.
            RelatedBusy: a related row is leased by others; nothing has changed.
            NotSelected: `Pipeline.load` does not select the row; nothing has changed.
            ServerUnreachableError: repeat it. An earlier try that was committed after all is
                recognised by its attempt.
            Exception: the author's code failed; nothing has changed.
        """
        try:
            async with self.database.transaction() as session:
                found = await self._load(session, lease, alone)
        except (Stale, ServerUnreachableError, asyncio.CancelledError):
            raise
        except BaseException:
            lease.attempt = 0
            raise
        if isinstance(found, Exhausted):  # its related rows are released before the row
            await self._related.wake(lease)
            lease.related = []
        return found

    async def _load(self, session: AsyncSession, lease: Lease, alone: bool) -> Loaded | Exhausted:
        columns = self.table.c
        last = columns.attempts
        counted: Any = last + 1
        most = self.pipeline.max_attempts - 1
        if lease.attempt:  # an earlier try may have been committed
            counted = most = lease.attempt
        elif lease.suspect == WITH_OTHERS:  # 0: the row was resumed meanwhile
            counted = sa.case((last == 0, 1), else_=last)
            most += 1
        mine = sa.and_(self._is_mine(lease), last.between(0, most))
        begun = {columns.suspect: ALONE if alone else WITH_OTHERS, columns.waiting_since: None}
        if not await _update(session, self.table, mine, {columns.attempts: counted, **begun}):
            return await self._exhausted(session, lease)
        row = await self._read(session, lease)
        lease.attempt, lease.due_at = row.attempts, row.due_at
        if self.pipeline.related and self.pipeline.needs_related(row):
            related = await self._related.lease(session, lease)
            row = await self._read(session, lease)  # it may have loaded related rows
            lease.related = related
        session.expunge_all()
        return Loaded(row)

    async def count(self, lease: Lease) -> None:
        """Count an attempt of a row that cannot be loaded. Raises `Stale`."""
        columns = self.table.c
        async with self.database.transaction() as session:
            guard = await self._lock(session, lease)
            lease.attempt = lease.attempt or guard.attempts + 1
            counted = {columns.attempts: lease.attempt}
            await _update(session, self.table, self._is_mine(lease), counted)

    async def _read(self, session: AsyncSession, lease: Lease) -> Any:
        statement = self.pipeline.load(lease.key).execution_options(populate_existing=True)
        row = (await session.execute(statement)).unique().scalar_one_or_none()
        if row is None:
            raise NotSelected
        return row

    async def _exhausted(self, session: AsyncSession, lease: Lease) -> Exhausted:
        """Mark a row as dying, because its last attempts died with their processes."""
        guard = await self._lock(session, lease)
        await self._related.release_abandoned(session, lease)
        if guard.attempts < 0:
            return Exhausted(-guard.attempts, microseconds(guard.last_processed_at))
        return await self._mark_dying(session, lease, guard)

    async def _mark_dying(self, session: AsyncSession, lease: Lease, guard: _Guard) -> Exhausted:
        attempts, columns = abs(guard.attempts), self.table.c
        dying: dict[Any, Any] = {columns.attempts: -attempts, columns.last_processed_at: guard.now}
        dying |= {columns.waiting_since: None, columns.suspect: 0}
        await _update(session, self.table, self._is_mine(lease), dying)
        return Exhausted(attempts, microseconds(guard.now))

    async def apply(
        self,
        lease: Lease,
        row: Any,
        changes: Changes,
        interval: float,
        tries: list[datetime],
        within: Callable[[AsyncSession], Awaitable[None]],
    ) -> None:
        """Write the changes of a successful attempt and release the row and its related rows.

        Args:
            interval: seconds until the row is due again, unless the changes say otherwise.
            tries: collects the times of the tries. After a lost connection the last try may have
                been committed, which a repetition recognises by its time.
            within: called in the transaction.

        Raises:
            Stale: the lease was lost; nothing was written.
        """
        due_in = interval if changes.due_in is None else changes.due_in
        async with self._releasing(lease) as session:
            guard = await self._guard(session, lease, tries)
            if guard is None:
                return
            due = None if changes.is_finished else guard.now + timedelta(seconds=due_in)
            values = with_now(self.pipeline.model, changes.values, guard.now) | {"attempts": 0}
            await self._end(session, lease, guard, due, values)
            for statement in statements(changes, guard.now):
                await session.execute(statement)
            for model, _ in changes.touches:
                announce(session, table_of(model).name)
            await self.pipeline.apply(session, row, changes)
            await within(session)

    async def fail(
        self, lease: Lease, delay: float, tries: list[datetime], *, counts: bool = True
    ) -> None:
        """Release a row that was not processed successfully, due again after `delay` seconds.

        Args:
            tries: as in `apply`.
            counts: whether this was an attempt.

        Raises:
            Stale: the lease was lost; nothing was written.
        """
        async with self._releasing(lease) as session:
            guard = await self._guard(session, lease, tries)
            if guard is None:
                return
            is_counted = guard.attempts == lease.attempt > 0
            used = guard.attempts - (is_counted and not counts)
            due = guard.now + timedelta(seconds=delay)
            await self._end(session, lease, guard, due, {"attempts": used})

    async def _end(
        self,
        session: AsyncSession,
        lease: Lease,
        guard: _Guard,
        due: datetime | None,
        values: dict[str, Any],
    ) -> None:
        due_at = _unless_touched(due, guard, lease)
        values |= {"due_at": due_at, "last_processed_at": guard.now, "suspect": 0, **FREE}
        values["waiting_since"] = None
        model = self.pipeline.model
        update = sa.update(model).where(self._key == lease.key).values(values)
        # Nothing to synchronise: on MySQL this would cost another statement.
        await session.execute(update.execution_options(synchronize_session=False))
        await self._related.release(session, lease)
        if due_at not in (due, None):  # touched: its pipeline has skipped it, as it was leased
            announce(session, self.table.name)

    async def exhaust(self, lease: Lease) -> Exhausted:
        """Mark a row as dying after its last attempt. Raises `Stale`."""
        async with self._releasing(lease) as session:
            guard = await self._lock(session, lease)
            await self._related.release(session, lease)
            exhausted = await self._mark_dying(session, lease, guard)
        lease.related = []
        return exhausted

    async def bury(self, lease: Lease) -> None:
        """Finish a dying row whose letter is written. Raises `Stale`."""
        columns = self.table.c
        async with self._releasing(lease) as session:
            guard = await self._lock(session, lease)
            due_at = _unless_touched(None, guard, lease)
            values = {columns.due_at: due_at, columns.attempts: 0, **free(self.table)}
            await _update(session, self.table, self._is_mine(lease), values)
            if due_at is not None:
                announce(session, self.table.name)

    async def put_off(self, lease: Lease, delay: float) -> None:
        """Release a dying row whose letter was not written, due again after `delay` seconds.

        Raises `Stale`.
        """
        columns = self.table.c
        values = {columns.due_at: db_now(delay), **free(self.table)}
        await self._change(lease, values)
        await self._related.wake(lease)

    async def wait(self, lease: Lease) -> float:
        """Let the row wait, because a related row was not free. Raises `Stale`.

        It keeps its due time, and the start of its wait, so that it keeps its place.

        Returns:
            In how many seconds it tries again, unless a release wakes it before.
        """
        columns = self.table.c
        again = again_after(lease.waiting) * random.uniform(0.75, 1.25)
        values: dict[Any, Any] = {
            columns.lease_token: None,
            columns.lease_expires_at: db_now(again),
            columns.waiting_since: sa.func.coalesce(columns.waiting_since, db_now()),
        }
        if self.pipeline.process_as is not None:
            # Its task ends, and the next one must differ from it.
            values |= {columns.due_at: db_now(), columns.last_processed_at: db_now()}
        await self._change(lease, values)
        # The related rows may have been released after the try, and before this row could be woken.
        async with self.database.transaction() as session:
            query = sa.select(columns.waiting_since).where(self._key == lease.key)
            since = await session.scalar(query)
            if since is not None and await self._related.are_free(session, lease.key, since):
                await try_again(session, self.table, [lease.key])
        return again

    async def defer(self, lease: Lease, seconds: float) -> None:
        """Release a row that must run alone, but cannot now; it is fetched again after a while."""
        columns = self.table.c
        values = {columns.lease_token: None, columns.lease_expires_at: db_now(seconds)}
        await self._change(lease, values)

    @asynccontextmanager
    async def _releasing(self, *leases: Lease) -> AsyncIterator[AsyncSession]:
        """Open a transaction that releases rows, and after it wake the rows that wait for them.

        Wake them also if an earlier try was committed but its reply was lost.
        """
        async with self.database.transaction() as session:
            yield session
        await self._related.wake(*leases)

    async def _change(self, lease: Lease, values: dict[Any, Any]) -> None:
        async with self.database.transaction() as session:
            if not await _update(session, self.table, self._is_mine(lease), values):
                raise Stale

    async def release(self, leases: Sequence[Lease]) -> None:
        """Release rows that were not processed: they stay due, and no attempt is counted."""
        if not leases:
            return
        async with self._releasing(*leases) as session:
            for lease in leases:
                if lease.attempt:
                    await self._take_back(session, lease)
                await self._related.release(session, lease)
            for token, group in by_token(leases).items():
                keys = self._key.in_([each.key for each in group])
                mine = sa.and_(keys, self.table.c.lease_token == token)
                await _update(session, self.table, mine, free(self.table))

    async def _take_back(self, session: AsyncSession, lease: Lease) -> None:
        """Do not count an attempt that was loaded."""
        columns = self.table.c
        values: dict[Any, Any] = {columns.suspect: lease.suspect}
        if lease.suspect != WITH_OTHERS:  # the next attempt repeats the number
            is_counted = columns.attempts == lease.attempt
            values[columns.attempts] = sa.case(
                (is_counted, lease.attempt - 1), else_=columns.attempts
            )
        await _update(session, self.table, self._is_mine(lease), values)

    async def give_up(self, lease: Lease) -> None:
        """Release the rows of a lost lease. This process is alive, so the row is not a suspect."""
        values = free(self.table) | {self.table.c.suspect: lease.suspect}
        async with self._releasing(lease) as session:
            await self._related.release(session, lease)
            if await _update(session, self.table, self._is_mine(lease), values):
                announce(session, self.table.name)

    async def clear(self, lease: Lease) -> None:
        """Mark a row whose lease ends by itself as no suspect: this process is alive."""
        await self._change(lease, {self.table.c.suspect: lease.suspect})

    # ---- helpers --------------------------------------------------------------------------------

    def held(self, lease: Lease) -> list[Held]:
        """The rows to renew for a lease."""
        main = Held(self.table, (lease.key,), lease.token, self.pipeline.name)
        return [main, *lease.related]

    def _is_mine(self, lease: Lease) -> sa.ColumnElement[bool]:
        return sa.and_(self._key == lease.key, self.table.c.lease_token == lease.token)

    async def _guard(
        self, session: AsyncSession, lease: Lease, tries: list[datetime]
    ) -> _Guard | None:
        """Lock a row that is still leased; None: an earlier try was committed after all."""
        try:
            guard = await self._lock(session, lease)
        except Stale:
            query = sa.select(self.table.c.last_processed_at).where(self._key == lease.key)
            if tries and await session.scalar(query) in tries:
                return None
            raise
        tries.append(guard.now)
        return guard

    async def _lock(self, session: AsyncSession, lease: Lease) -> _Guard:
        """Lock a row until the end of the transaction. Raises `Stale` if it is not leased."""
        columns = self.table.c
        query = sa.select(
            db_now(), columns.due_at, columns.attempts, columns.last_processed_at
        ).where(self._is_mine(lease))
        found = (await session.execute(query.with_for_update(key_share=True))).one_or_none()
        if found is None:
            raise Stale
        return _Guard(*found)


def _unless_touched(due: datetime | None, guard: _Guard, lease: Lease) -> datetime | None:
    """The due time to set; a row that was touched during the lease keeps its own."""
    return due if guard.due_at == lease.due_at else guard.due_at


async def _update(
    session: AsyncSession, table: sa.Table, where: Any, values: dict[Any, Any]
) -> int:
    """Change rows; return how many matched."""
    changed: Any = await session.execute(sa.update(table).where(where).values(values))
    return int(changed.rowcount)
