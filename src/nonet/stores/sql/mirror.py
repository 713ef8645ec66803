"""The table of what must survive a loss of Redis: last occurrences of entries, pauses.

Redis is the truth while it has its data. Whoever changes something there writes it here a moment
later, and reads it back when Redis has forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from nonet.stores.sql.database import Database, UtcDateTime, again_after_deadlock

_PAGE_ROWS = 200


class Mirror:
    """Texts by kind and name, of one namespace.

    Every method raises `ServerUnreachableError` when the database does not answer, and
    `ConfigurationError` when its tables are missing or of an older version.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    async def load(self, kind: str) -> dict[str, str]:
        """All values of a kind, by their names."""
        if self._database.is_missing:
            return {}
        column = mirror.c
        query = sa.select(column.name, column.value).where(*self._of(kind))
        async with self._database.transaction() as connection:
            return {row.name: row.value for row in await connection.execute(query)}

    async def save(self, kind: str, values: Mapping[str, str | None]) -> None:
        """Write values in one transaction: all or none; safe to repeat.

        Args:
            kind: 32 characters at most.
            values: None deletes the name.
        """
        # In one order: transactions that change rows in different orders wait for each other.
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
            for start in range(0, len(rows), _PAGE_ROWS):
                page = rows[start : start + _PAGE_ROWS]
                await connection.execute(_upsert(connection.dialect), page)
            for start in range(0, len(gone), _PAGE_ROWS):
                some = mirror.c.name_hash.in_(gone[start : start + _PAGE_ROWS])
                await connection.execute(sa.delete(mirror).where(*self._of(kind), some))

    def _of(self, kind: str) -> list[sa.ColumnElement[bool]]:
        return [mirror.c.namespace == self._namespace, mirror.c.kind == kind]


def _hash(name: str) -> str:
    """Names may be longer than what a primary key of MySQL takes."""
    return hashlib.sha256(name.encode()).hexdigest()


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

mirror = sa.Table(
    "mirror",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("name_hash", sa.String(64), primary_key=True),
    sa.Column("name", _LONG_TEXT, nullable=False),
    sa.Column("value", _LONG_TEXT, nullable=False),
    sa.Column("updated", UtcDateTime(), nullable=False),
)


def _upsert(dialect: sa.Dialect) -> Any:
    """Insert rows; of one that is there already the value changes."""
    if dialect.name in ("mysql", "mariadb"):
        made = mysql.insert(mirror)
        return made.on_duplicate_key_update(
            value=made.inserted.value, updated=made.inserted.updated
        )
    insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    row = insert(mirror)
    return row.on_conflict_do_update(
        index_elements=["namespace", "kind", "name_hash"],
        set_={"value": row.excluded.value, "updated": row.excluded.updated},
    )
