"""The table of the audit."""

from __future__ import annotations

from datetime import UTC, datetime

from nonet.stores.sql import database as sql
from nonet.stores.sql.audit import Audit, AuditEntry


async def test_entries_are_added_once(database: sql.Database) -> None:
    """A repeated write changes nothing, long texts are cut, and namespaces do not mix."""
    audit = Audit(database, "test")
    entry = AuditEntry(datetime.now(UTC), "a" * 300, "cancel", "x" * 9000, "::1", "ok")
    await audit.add([entry])
    await audit.add([entry])
    (found,) = await audit.list()
    assert (found.id, found.at, found.who) == (entry.id, entry.at, "a" * 255)
    assert len(found.what) == 4000
    assert await Audit(database, "other").list() == []
