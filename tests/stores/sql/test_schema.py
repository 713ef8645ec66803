"""The tables that the migrations make, on SQLite and MariaDB."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from nonet.base.errors import ConfigurationError
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import database as sql
from nonet.stores.sql.audit import audit_log
from nonet.stores.sql.letters import dlq_tasks
from nonet.stores.sql.mirror import mirror
from nonet.stores.sql.outbox import Outbox, outbox_tasks

TABLES = [dlq_tasks, outbox_tasks, mirror, audit_log]
INDEXES = sorted((i for table in TABLES for i in table.indexes), key=lambda i: str(i.name))


async def execute(database: sql.Database, *statements: str) -> None:
    async with database.transaction() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def differences(database: sql.Database) -> list[Any]:
    def compare(connection: sa.Connection) -> list[Any]:
        options = {"compare_type": True, "version_table": sql.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, [table.metadata for table in TABLES]))

    async with database.transaction() as connection:
        return await connection.run_sync(compare)


async def test_migrations_build_the_tables_that_the_code_uses(database: sql.Database) -> None:
    """The migrated schema and the tables in the code do not differ."""
    assert await differences(database) == []
    assert await sql.check(database.url) is sql.Schema.CURRENT


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: index.name)
async def test_upgrade_finishes_what_a_killed_one_began(
    database: sql.Database, index: sa.Index
) -> None:
    """A table without its index and version entry, as a kill leaves it on MySQL, is completed."""
    drop = f"DROP INDEX {index.name}"
    if database.engine.dialect.name != "sqlite":
        drop += f" ON {index.table}"
    await execute(database, drop, f"DELETE FROM {sql.VERSION_TABLE}")
    assert await sql.check(database.url) is sql.Schema.ABSENT
    await sql.upgrade(database.url)
    assert await differences(database) == []


async def test_a_schema_of_an_earlier_revision_is_behind(
    database: sql.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revision is known, and a later migration is missing."""
    monkeypatch.setattr(ScriptDirectory, "get_current_head", lambda _: "0002")
    assert await sql.check(database.url) is sql.Schema.BEHIND


async def test_a_newer_schema_is_used_and_not_touched(
    database: sql.Database, broker: Broker
) -> None:
    """After a roll back: migrations add, and what this release writes leaves that out."""
    await execute(
        database,
        "ALTER TABLE outbox_tasks ADD COLUMN later VARCHAR(9) DEFAULT ''",
        f"UPDATE {sql.VERSION_TABLE} SET version_num = '9999'",
    )
    assert await sql.check(database.url) is sql.Schema.AHEAD
    with pytest.raises(ConfigurationError, match="newer version of Nonet"):
        await sql.upgrade(database.url)
    outbox = Outbox(database, broker, "test")
    await outbox.prepare()
    await outbox.submit([Submission("a", "x:T", "normal:small", b"?")], ids_are_new=True)
    assert await outbox.count() == 1
