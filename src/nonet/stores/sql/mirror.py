"""A copy in SQL of what must survive a loss of Redis: last occurrences of entries, pauses.

Redis is authoritative while it has its data. A process that changes a value there copies it here a
moment later, and restores it from here after Redis has lost it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from nonet.stores.sql.answers import again_after_deadlock
from nonet.stores.sql.database import LONG_TEXT, Database, UtcDateTime, insert_or_update, pages


class Mirror:
    """The copied values of one namespace, by kind and name.

    Every method raises `ServerUnreachableError` when the database does not answer, and
    `ConfigurationError` when its tables are missing or of an older version.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    async def load(self, kind: str) -> dict[str, str]:
        """All values of a kind, by name."""
        query = sa.select(mirror.c.name, mirror.c.value).where(*self._of(kind))
        return {row.name: row.value for row in await self._database.rows(query)}

    async def save(self, kind: str, values: Mapping[str, str | None]) -> None:
        """Write values in one transaction; safe to repeat.

        Args:
            kind: 32 characters at most.
            values: new value of each name; None deletes it.
        """
        # Sorted, because transactions that lock the same rows in different orders deadlock.
        changed = sorted(
            (_hash(name), name, value) for name, value in values.items() if value is not None
        )
        gone = sorted(_hash(name) for name, value in values.items() if value is None)
        if changed or gone:
            await again_after_deadlock(lambda: self._save(kind, changed, gone))

    async def _save(self, kind: str, changed: list[tuple[str, str, str]], gone: list[str]) -> None:
        now = datetime.now(UTC)
        same = {"namespace": self._namespace, "kind": kind, "updated": now}
        rows = [
            {**same, "name_hash": id, "name": name, "value": text} for id, name, text in changed
        ]
        async with self._database.transaction() as connection:
            for page in pages(rows):
                await connection.execute(_upsert(connection.dialect), page)
            for hashes in pages(gone):
                some = mirror.c.name_hash.in_(hashes)
                await connection.execute(sa.delete(mirror).where(*self._of(kind), some))

    def _of(self, kind: str) -> list[sa.ColumnElement[bool]]:
        return [mirror.c.namespace == self._namespace, mirror.c.kind == kind]


def _hash(name: str) -> str:
    """A key for a name, which may be too long for a primary key of MySQL."""
    return hashlib.sha256(name.encode()).hexdigest()


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

mirror = sa.Table(
    "mirror",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("name_hash", sa.String(64), primary_key=True),
    sa.Column("name", LONG_TEXT, nullable=False),
    sa.Column("value", LONG_TEXT, nullable=False),
    sa.Column("updated", UtcDateTime(), nullable=False),
)


def _upsert(dialect: sa.Dialect) -> sa.Insert:
    key = ["namespace", "kind", "name_hash"]
    return insert_or_update(
        dialect, mirror, key, lambda new: {"value": new.value, "updated": new.updated}
    )
