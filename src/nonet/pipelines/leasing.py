"""The statements that lease, load, renew and release the rows of one pipeline: `Leasing`.

One row in one pass: `fetch` → `load` → (`process`, outside of this module) → `apply` or `fail`.
Every statement that changes a leased row checks its key and its token, so that a worker that lost
its lease changes nothing. All times are those of the database.

All related rows are leased in one transaction or none is, and no row is leased while its
transaction waits for another row. So no two rows can wait for each other.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.base.errors import ServerUnreachableError
from nonet.pipelines.changes import Changes, statements, with_now
from nonet.pipelines.clock import db_now, read_now
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.eligibility import (
    FREE,
    due_rows,
    fetch_statement,
    free,
    in_index_order,
    is_wanted,
    leased,
    may_take,
    owner_of_related,
    prefer_index,
)
from nonet.pipelines.hints import announce
from nonet.pipelines.keys import key_of, table_of
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Related
from nonet.rules.pipelines import MOST, RowFigures, RowState

# After this time a row is dispatched again if no task has leased it.
_DISPATCH_SECONDS = 60.0
# When a waiting row is due again. Random, so that two rows that wait for each other's related rows
# do not meet again.
_WAITING_SECONDS = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Held:
    """Leased rows of one table with one token: what is renewed together.

    Attributes:
        owner: value of ``lease_owner``.
    """

    table: sa.Table
    keys: tuple[Any, ...]
    token: str
    owner: str


@dataclass(slots=True, eq=False)
class Lease:
    """One leased row, from its fetch to its release.

    Attributes:
        since: monotonic time before the lease was requested.
        due_at: when the row was due, as the fetch or `Leasing.load` read it.
        waited: seconds for which it had been due then.
        attempt: number of this attempt, from 1; 0: not counted yet.
        related: its related rows.
    """

    key: Any
    token: str
    since: float
    due_at: datetime
    waited: float = 0.0
    attempt: int = 0
    related: list[Held] = field(default_factory=list)


class Dispatched(NamedTuple):
    """A due row for which a task is submitted; `series` changes when the row was processed."""

    key: Any
    series: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A row that can be processed."""

    row: Any


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A row that becomes a dead letter.

    Attributes:
        attempts: how many attempts it had.
        series: identifies the attempts since its last success, in microseconds.
    """

    attempts: int
    series: int


class Stale(Exception):
    """The lease was lost: another worker may have the row."""


class RelatedBusy(Exception):
    """A related row is leased by others."""


class NotSelected(Exception):
    """`Pipeline.load` does not select the row."""


class _Guard(NamedTuple):
    """A leased row, locked until its transaction ends; `now` is the time of all its changes."""

    now: datetime
    due_at: datetime | None
    attempts: int


class Leasing:
    """The leases of one pipeline.

    Args:
        waiting_for: the pipelines whose related rows are in the table of this pipeline.

    Attributes:
        fetched: selects the rows of a fetch.
    """

    def __init__(
        self, pipeline: Pipeline[Any], waiting_for: Sequence[tuple[type[Pipeline[Any]], Related]]
    ) -> None:
        self.pipeline = pipeline
        self.table: sa.Table = table_of(pipeline.model)
        self.database: RowDatabase = pipeline.database
        self._key = key_of(self.table)
        due = self.table.c.due_at <= db_now()
        exhausted = self.table.c.attempts < 0
        by_task = pipeline.process_as is not None
        fetched = sa.and_(due, exhausted) if by_task else due
        dispatched = sa.and_(due, sa.not_(exhausted))
        self.fetched: sa.Select[Any] = in_index_order(
            fetch_statement(pipeline, waiting_for, fetched), pipeline
        )
        self._dispatched = in_index_order(
            fetch_statement(pipeline, waiting_for, dispatched), pipeline
        )
        self._taken = fetch_statement(pipeline, waiting_for, sa.true())
        self._due = due_rows(pipeline)
        self._waiting_for = waiting_for

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
        waited = [(row[2] - row[1]).total_seconds() for row in found]
        return [
            Lease(row[0], token, since, row[1], waits)
            for row, waits in zip(found, waited, strict=True)
        ]

    async def dispatch(self, limit: int) -> list[Dispatched]:
        """Take due rows for tasks: they are due again in a while, unless a task leases them.

        Then they are dispatched again, because the task may be lost.
        """
        columns = self.table.c
        statement = self._dispatched.add_columns(columns.last_processed_at)
        async with self.database.transaction() as session:
            await prefer_index(session)
            found = (await session.execute(statement.limit(limit))).all()
            if found:
                keys = [row[0] for row in found]
                later = {columns.due_at: db_now(_DISPATCH_SECONDS)}
                await _update(session, self.table, self._key.in_(keys), later)
        return [Dispatched(row[0], _microseconds(row[3])) for row in found]

    async def take(self, key: Any, series: int, since: float) -> Lease | None:
        """Lease a row that was dispatched to a task.

        It is due when the lease ends, so that it is dispatched again if the task dies.

        Args:
            series: as in `Dispatched`.
            since: monotonic time now.

        Returns:
            None if the row was processed meanwhile, is finished, or is leased by others.
        """
        columns = self.table.c
        statement = self._taken.add_columns(columns.last_processed_at).where(self._key == key)
        async with self.database.transaction() as session:
            found = (await session.execute(statement)).one_or_none()
            if found is None or _microseconds(found[3]) != series:
                return None
            token = str(uuid.uuid4())
            ends_at = found[2] + timedelta(seconds=self.pipeline.lease)
            values = leased(self.table, token, self.pipeline.name, self.pipeline.lease)
            values |= {columns.lease_expires_at: ends_at, columns.due_at: ends_at}
            await _update(session, self.table, self._key == key, values)
        return Lease(key, token, since, ends_at)

    async def load(self, lease: Lease) -> Loaded | Exhausted:
        """Count an attempt, lease the related rows, and read the row.

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
                return await self._load(session, lease)
        except (Stale, ServerUnreachableError, asyncio.CancelledError):
            raise
        except BaseException:
            lease.attempt = 0
            raise

    async def _load(self, session: AsyncSession, lease: Lease) -> Loaded | Exhausted:
        columns = self.table.c
        counted: Any = lease.attempt or columns.attempts + 1
        may_try = (
            columns.attempts.in_([lease.attempt - 1, lease.attempt])
            if lease.attempt
            else columns.attempts.between(0, self.pipeline.max_attempts - 1)
        )
        mine = sa.and_(self._is_mine(lease), may_try)
        if not await _update(session, self.table, mine, {columns.attempts: counted}):
            return await self._exhausted(session, lease)
        row = await self._read(session, lease)
        lease.attempt, lease.due_at = row.attempts, row.due_at
        if self.pipeline.related and self.pipeline.needs_related(row):
            related = [
                held
                for item in self.pipeline.related
                if (held := await self._lease_related(session, lease, item)) is not None
            ]
            row = await self._read(session, lease)  # it may have loaded related rows
            lease.related = related
        session.expunge_all()
        return Loaded(row)

    async def count(self, lease: Lease) -> None:
        """Count an attempt of a row that cannot be loaded. Raises `Stale`."""
        columns = self.table.c
        async with self.database.transaction() as session:
            guard = await self._guard(session, lease, [])
            assert guard is not None  # there was no earlier try
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
        columns = self.table.c
        query = sa.select(columns.attempts, columns.last_processed_at).where(self._is_mine(lease))
        found = (await session.execute(query.with_for_update(key_share=True))).one_or_none()
        if found is None:
            raise Stale
        await self._release_abandoned(session, lease)
        if found.attempts < 0:
            return Exhausted(-found.attempts, _microseconds(found.last_processed_at))
        return await self._mark_dying(session, lease, found.attempts)

    async def _mark_dying(self, session: AsyncSession, lease: Lease, attempts: int) -> Exhausted:
        now = await read_now(session)
        dying = {self.table.c.attempts: -attempts, self.table.c.last_processed_at: now}
        await _update(session, self.table, self._is_mine(lease), dying)
        return Exhausted(attempts, _microseconds(now))

    async def _release_abandoned(self, session: AsyncSession, lease: Lease) -> None:
        """Release the related rows of attempts that died: no attempt of this row follows."""
        owner = owner_of_related(self.pipeline, lease.key)
        for related in self.pipeline.related:
            table = table_of(related.model)
            of_row = related.condition(self.pipeline.model, lease.key)
            query = sa.select(key_of(table)).where(of_row, table.c.lease_owner == owner)
            query = query.with_for_update(skip_locked=True, of=table, key_share=True)
            if keys := (await session.scalars(query)).all():
                await _update(session, table, key_of(table).in_(keys), free(table))

    async def _lease_related(
        self, session: AsyncSession, lease: Lease, related: Related
    ) -> Held | None:
        table = table_of(related.model)
        key = key_of(table)
        owner = owner_of_related(self.pipeline, lease.key)
        condition = related.condition(self.pipeline.model, lease.key)
        # Only attempts of this row have this owner. Its lease is ours, so theirs have ended.
        is_own = table.c.lease_owner == owner
        may_lease = sa.and_(condition, sa.or_(may_take(table, owner), is_own))
        query = sa.select(key).where(may_lease).order_by(key)
        query = query.with_for_update(skip_locked=True, of=table, key_share=True)
        got = (await session.scalars(query)).all()
        count = sa.select(sa.func.count()).select_from(table).where(condition)
        if len(got) < (await session.execute(count)).scalar_one():
            raise RelatedBusy
        if not got:
            return None
        values = leased(table, lease.token, owner, self.pipeline.lease)
        await _update(session, table, key.in_(got), values)
        return Held(table, tuple(got), lease.token, owner)

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
        async with self.database.transaction() as session:
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
        async with self.database.transaction() as session:
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
        values |= {"due_at": due_at, "last_processed_at": guard.now, **FREE}
        model = self.pipeline.model
        update = sa.update(model).where(self._key == lease.key).values(values)
        # Nothing to synchronise: on MySQL this would cost another statement.
        await session.execute(update.execution_options(synchronize_session=False))
        await self._release_related(session, lease)

    async def exhaust(self, lease: Lease) -> Exhausted:
        """Mark a row as dying after its last attempt. Raises `Stale`."""
        async with self.database.transaction() as session:
            query = sa.select(self.table.c.attempts).where(self._is_mine(lease))
            attempts = await session.scalar(query.with_for_update(key_share=True))
            if attempts is None:
                raise Stale
            await self._release_related(session, lease)
            lease.related = []
            return await self._mark_dying(session, lease, abs(attempts))

    async def bury(self, lease: Lease) -> None:
        """Finish a dying row whose letter is written. Raises `Stale`."""
        columns = self.table.c
        async with self.database.transaction() as session:
            guard = await self._guard(session, lease, [])
            assert guard is not None  # there was no earlier try
            due_at = _unless_touched(None, guard, lease)
            values = {columns.due_at: due_at, columns.attempts: 0, **free(self.table)}
            await _update(session, self.table, self._is_mine(lease), values)

    async def put_off(self, lease: Lease, delay: float) -> None:
        """Release a dying row whose letter was not written, due again after `delay` seconds.

        Raises `Stale`.
        """
        columns = self.table.c
        values = {columns.due_at: db_now(delay), **free(self.table)}
        await self._change(lease, values)

    async def wait(self, lease: Lease) -> None:
        """Make it a waiting row, because a related row was not free. Raises `Stale`."""
        columns = self.table.c
        values = {
            columns.lease_token: None,
            columns.lease_expires_at: None,
            columns.last_processed_at: db_now(),
            columns.due_at: db_now(random.uniform(*_WAITING_SECONDS)),
        }
        await self._change(lease, values)

    async def _change(self, lease: Lease, values: dict[Any, Any]) -> None:
        async with self.database.transaction() as session:
            if not await _update(session, self.table, self._is_mine(lease), values):
                raise Stale

    async def release(self, leases: Sequence[Lease]) -> None:
        """Release rows that were not processed: they stay due, and no attempt is counted."""
        if not leases:
            return
        columns = self.table.c
        async with self.database.transaction() as session:
            for token, group in _by_token(leases).items():
                mine = sa.and_(
                    self._key.in_([each.key for each in group]), columns.lease_token == token
                )
                values = free(self.table)
                counted = [
                    (
                        sa.and_(self._key == each.key, columns.attempts == each.attempt),
                        each.attempt - 1,
                    )
                    for each in group
                    if each.attempt
                ]
                if counted:
                    values[columns.attempts] = sa.case(*counted, else_=columns.attempts)
                await _update(session, self.table, mine, values)
            for lease in leases:
                await self._release_related(session, lease)

    async def release_related(self, lease: Lease) -> None:
        """Release the related rows of a lease that was lost."""
        if lease.related:
            async with self.database.transaction() as session:
                await self._release_related(session, lease)

    # ---- figures --------------------------------------------------------------------------------

    async def measure(self) -> RowFigures:
        """Count the due rows of the pipeline, at most `MOST`."""
        columns = self.table.c
        due = self._due.limit(MOST + 1).subquery()
        is_leased = due.c.lease_token.is_not(None)
        is_over = due.c.lease_expires_at < db_now()
        # A row that was long in process became free when its lease ended, not when it was due.
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
            number(sa.and_(due.c.lease_owner.is_not(None), sa.not_(is_leased))),
            number(due.c.attempts < 0),
            sa.func.min(free_since, type_=columns.due_at.type),
        ).select_from(due)
        async with self.database.transaction() as session:
            now, total, leased, stale, waiting, dying, oldest = (await session.execute(query)).one()
        age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
        return RowFigures(now, int(total), int(leased), int(stale), int(waiting), int(dying), age)

    async def look(self, key: Any) -> RowState | None:
        """Read the lease columns of a row; None: it does not exist."""
        columns = self.table.c
        chosen = self.pipeline.select().with_only_columns(self._key, maintain_column_froms=True)
        query = sa.select(
            db_now(),
            *(columns.due_at, columns.lease_expires_at, columns.lease_token, columns.lease_owner),
            columns.attempts,
            self._key.in_(chosen.where(self._key == key).order_by(None)),
        ).where(self._key == key)
        async with self.database.transaction() as session:
            found = (await session.execute(query)).one_or_none()
            wanted_by = ""
            for of, related in self._waiting_for:
                wanted = sa.select(self._key).where(self._key == key, is_wanted(of, related))
                if await session.scalar(wanted) is not None:
                    wanted_by = of.name
                    break
        if found is None:
            return None
        task = self.pipeline.process_as.__name__ if self.pipeline.process_as else ""
        return replace(RowState(*found), wanted_by=wanted_by, task=task)

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
        columns = self.table.c
        query = sa.select(db_now(), columns.due_at, columns.attempts).where(self._is_mine(lease))
        found = (await session.execute(query.with_for_update(key_share=True))).one_or_none()
        if found is not None:
            tries.append(found[0])
            return _Guard(*found)
        if tries:
            query = sa.select(columns.last_processed_at).where(self._key == lease.key)
            if await session.scalar(query) in tries:
                return None
        raise Stale

    async def _release_related(self, session: AsyncSession, lease: Lease) -> None:
        for held in lease.related:
            columns = held.table.c
            mine = sa.and_(
                key_of(held.table).in_(held.keys),
                columns.lease_token == held.token,
                columns.lease_owner == held.owner,
            )
            await _update(session, held.table, mine, free(held.table))


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
        await _update(session, table, key.in_([row[0] for row in renewed]), until)
    left = {item for item in items if not renewed.issuperset(_leases(item))}
    if not left:
        return Extended(set(), set())
    query = sa.select(key, token).where(mine)
    alive = {(row[0], row[1]) for row in await session.execute(query)}
    lost = {item for item in left if not alive.issuperset(_leases(item))}
    return Extended(lost, left - lost)


def _leases(item: Held) -> set[tuple[Any, str]]:
    return {(key, item.token) for key in item.keys}


def _unless_touched(due: datetime | None, guard: _Guard, lease: Lease) -> datetime | None:
    """The due time of a row, unless it was touched during the lease: that changed it."""
    return due if guard.due_at == lease.due_at else guard.due_at


async def _update(
    session: AsyncSession, table: sa.Table, where: Any, values: dict[Any, Any]
) -> int:
    """Change rows; return how many matched."""
    changed: Any = await session.execute(sa.update(table).where(where).values(values))
    return int(changed.rowcount)


def _by_token(leases: Sequence[Lease]) -> dict[str, list[Lease]]:
    groups: dict[str, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.token, []).append(lease)
    return groups


def _microseconds(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1e6)
