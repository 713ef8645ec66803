"""The audit in SQL: who changed what in the dashboard and the API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_hex

import sqlalchemy as sa

from nonet.stores.sql.database import (
    LONG_TEXT,
    PAGE_ROWS,
    Database,
    UtcDateTime,
    insert_or_update,
    pages,
)

_TEXT = 4000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, reveal or login.

    Attributes:
        id: unique, and ordered by time; it begins with the milliseconds since 1970.
        at: when it ended.
        who: the principal, e.g. ``alice`` or ``token:ci``.
        action: a `nonet.rules.permissions.Action`, ``login`` or ``logout``.
        what: the object and its new value.
        address: of the browser or program.
        outcome: ``ok``, or the error.
    """

    at: datetime
    who: str
    action: str
    what: str
    address: str
    outcome: str
    id: str = field(default_factory=lambda: f"{time.time_ns() // 1_000_000:013d}-{token_hex(6)}")


class Audit:
    """The audit of one namespace.

    Every method raises `ServerUnreachableError` when the database does not answer, and
    `ConfigurationError` when its table is missing.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._own = audit_log.c.namespace == namespace

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """Write entries in one transaction; safe to repeat."""
        rows = [
            {
                "namespace": self._namespace,
                "id": entry.id,
                "at": entry.at,
                "who": entry.who[:255],
                "action": entry.action[:32],
                "what": entry.what[:_TEXT],
                "address": entry.address[:64],
                "outcome": entry.outcome[:_TEXT],
            }
            for entry in entries
        ]
        key = ["namespace", "id"]
        async with self._database.transaction() as connection:
            statement = insert_or_update(
                connection.dialect, audit_log, key, lambda new: {"id": new.id}
            )
            for page in pages(rows):
                await connection.execute(statement, page)

    async def list(
        self,
        *,
        who: str = "",
        action: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        before: str = "",
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Return the newest entries that fit all filters, newest first.

        Args:
            since: not older than this.
            until: not younger.
            before: only entries before the one with this id.
        """
        row = audit_log.c
        query = sa.select(row.at, row.who, row.action, row.what, row.address, row.outcome, row.id)
        query = query.where(self._own)
        for column, value in ((row.who, who), (row.action, action)):
            if value:
                query = query.where(column == value)
        if since is not None:
            query = query.where(row.id >= _first(since))
        if until is not None:
            query = query.where(row.id < _first(until + timedelta(milliseconds=1)))
        if before:
            query = query.where(row.id < before)
        rows = await self._database.rows(query.order_by(row.id.desc()).limit(limit))
        return [AuditEntry(*found) for found in rows]

    async def purge(self, age: timedelta) -> int:
        """Delete entries that are older than `age`, some hundred at a time."""
        if self._database.is_missing:
            return 0
        end, purged = _first(datetime.now(UTC) - age), 0
        while True:
            async with self._database.transaction() as connection:
                query = sa.select(audit_log.c.id).where(self._own, audit_log.c.id < end)
                ids = (await connection.scalars(query.limit(PAGE_ROWS))).all()
                some = audit_log.c.id.in_(ids)
                await connection.execute(sa.delete(audit_log).where(self._own, some))
            purged += len(ids)
            if len(ids) < PAGE_ROWS:
                return purged


def _first(at: datetime) -> str:
    """The smallest id of an entry of that millisecond; a time without a zone is in UTC."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return f"{int(at.timestamp() * 1000):013d}"


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

audit_log = sa.Table(
    "audit_log",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("at", UtcDateTime(), nullable=False),
    sa.Column("who", sa.String(255), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("what", LONG_TEXT, nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("outcome", LONG_TEXT, nullable=False),
    sa.Index("ix_audit_log_who", "namespace", "who", "id"),
)
