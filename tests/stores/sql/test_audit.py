"""The table of the audit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from nonet.stores.sql import database as sql
from nonet.stores.sql.audit import Audit, AuditEntry, audit_log


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[sql.Database]:
    """A database with the tables."""
    url = f"sqlite:///{tmp_path}/nonet.db"
    if request.param == "mariadb":
        url = request.getfixturevalue("mariadb_url")
    await sql.upgrade(url)
    opened = sql.Database(url)
    yield opened
    await opened.close()


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


async def test_migrations_build_the_table_that_the_code_uses(database: sql.Database) -> None:
    """The migrated schema and the table in the code do not differ, also after a second upgrade."""

    def differences(connection: sa.Connection) -> list[Any]:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name == "audit_log",
        }
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, audit_log.metadata))

    for _ in range(2):
        async with database.transaction() as connection:
            assert await connection.run_sync(differences) == []
            version = f"UPDATE {sql.VERSION_TABLE} SET version_num = '0006'"
            await connection.exec_driver_sql(version)
        await sql.upgrade(database.url)
