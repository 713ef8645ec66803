"""The schedules that programs made, in SQL.

Every change writes a new revision, in the same transaction and before anything else. So the leader
polls one row to see changes, and changes of one namespace happen one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from nonet.rules.periodic import Put, StoredSchedule
from nonet.stores.sql.answers import again_after_deadlock
from nonet.stores.sql.database import (
    LONG_BINARY,
    LONG_TEXT,
    Database,
    UtcDateTime,
    insert_or_update,
)
from nonet.tasks.schedules import TaskScheduleBase
from nonet.tasks.schedules.description import describe, described

_REVISION = ""  # the id of the row that holds the revision; no schedule has it


class ScheduleRows:
    """The schedules of one namespace.

    Every method raises `ServerUnreachableError` when the database does not answer, and
    `ConfigurationError` when its tables are missing.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._own = schedules.c.namespace == namespace

    @staticmethod
    def made(
        id: str, task: str, tenant: str, schedule: TaskScheduleBase, envelope: bytes
    ) -> StoredSchedule | None:
        """Return what `put` stores; None if the schedule is of an author's own class."""
        text = describe(schedule)
        if described(text) != schedule:
            return None
        return StoredSchedule(id, task, tenant, text, datetime.now(UTC), envelope)

    async def revision(self) -> str:
        """Return what changes with every change; empty before the first."""
        query = sa.select(schedules.c.schedule).where(self._is(_REVISION))
        return "".join(row.schedule for row in await self._database.rows(query))

    async def list(self) -> list[StoredSchedule]:
        """Return all schedules, by id."""
        query = _SELECTED.where(self._own, schedules.c.id != _REVISION)
        rows = await self._database.rows(query.order_by(schedules.c.id))
        return [StoredSchedule(*row) for row in rows]

    async def get(self, id: str) -> StoredSchedule | None:
        """Return one schedule, or None."""
        rows = await self._database.rows(_SELECTED.where(self._is(id)))
        return next((StoredSchedule(*row) for row in rows), None)

    async def put(self, wanted: StoredSchedule, is_same: Callable[[StoredSchedule], bool]) -> Put:
        """Write a schedule, unless the one with its id is the same.

        Args:
            is_same: compares one with the wanted one. Their envelopes always differ.
        """
        before = await self.get(wanted.id)
        if before is not None and is_same(before):
            return Put.UNCHANGED
        return await again_after_deadlock(lambda: self._put(wanted, is_same))

    async def _put(self, wanted: StoredSchedule, is_same: Callable[[StoredSchedule], bool]) -> Put:
        async with self._database.transaction() as connection:
            await self._change(connection)
            rows = (await connection.execute(_SELECTED.where(self._is(wanted.id)))).all()
            if rows and is_same(StoredSchedule(*rows[0])):
                return Put.UNCHANGED
            await self._write(
                connection,
                id=wanted.id,
                task_class=wanted.task,
                tenant=wanted.tenant,
                schedule=wanted.schedule,
                changed_at=wanted.changed,
                envelope=wanted.envelope,
                catch_up=wanted.catch_up,
                misfire_grace=wanted.misfire_grace,
            )
        return Put.CHANGED if rows else Put.CREATED

    async def remove(self, id: str) -> bool:
        """Delete a schedule; return whether it existed."""
        if await self.get(id) is None:
            return False
        return await again_after_deadlock(lambda: self._remove(id))

    async def _remove(self, id: str) -> bool:
        async with self._database.transaction() as connection:
            await self._change(connection)
            found = await connection.execute(sa.delete(schedules).where(self._is(id)))
        return found.rowcount > 0

    async def _change(self, connection: AsyncConnection) -> None:
        """Write a new revision; other changes of the namespace wait until this one is committed."""
        await self._write(
            connection,
            id=_REVISION,
            task_class="",
            tenant="",
            schedule=token_hex(8),
            changed_at=datetime.now(UTC),
            envelope=b"",
            catch_up="",
            misfire_grace=None,
        )

    async def _write(self, connection: AsyncConnection, **values: Any) -> None:
        key = ["namespace", "id"]
        statement = insert_or_update(
            connection.dialect, schedules, key, lambda new: {name: new[name] for name in values}
        )
        await connection.execute(statement, [{"namespace": self._namespace, **values}])

    def _is(self, id: str) -> sa.ColumnElement[bool]:
        return self._own & (schedules.c.id == id)


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

schedules = sa.Table(
    "schedules",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("task_class", sa.String(255), nullable=False),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("schedule", LONG_TEXT, nullable=False),
    sa.Column("changed_at", UtcDateTime(), nullable=False),
    sa.Column("envelope", LONG_BINARY, nullable=False),
    sa.Column("catch_up", sa.String(8), nullable=False),
    sa.Column("misfire_grace", sa.Float(), nullable=True),
)
_SELECTED = sa.select(
    schedules.c.id,
    schedules.c.task_class,
    schedules.c.tenant,
    schedules.c.schedule,
    schedules.c.changed_at,
    schedules.c.envelope,
    schedules.c.catch_up,
    schedules.c.misfire_grace,
)
