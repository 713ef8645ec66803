"""The tables that the migrations make, on SQLite and MariaDB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import mysql, postgresql

from nonet.base.errors import ConfigurationError, NotFoundError, ServerUnreachableError
from nonet.rules.letters import LetterFilter, Status
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import database as sql
from nonet.stores.sql.audit import audit_log
from nonet.stores.sql.dead_letters import DeadLetters, dlq_tasks
from nonet.stores.sql.migrating import VERSION_TABLE
from nonet.stores.sql.mirror import Mirror, _upsert, mirror
from nonet.stores.sql.outbox import Outbox, _insertion, outbox_tasks
from nonet.stores.sql.schedules import schedules
from nonet.stores.sql.sync_database import SyncDatabase

TABLES = [dlq_tasks, outbox_tasks, mirror, audit_log, schedules]
INDEXES = sorted((i for table in TABLES for i in table.indexes), key=lambda i: str(i.name))


async def execute(database: sql.Database, *statements: str) -> None:
    async with database.transaction() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def differences(database: sql.Database) -> list[Any]:
    def compare(connection: sa.Connection) -> list[Any]:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, [table.metadata for table in TABLES]))

    async with database.transaction() as connection:
        return await connection.run_sync(compare)


async def test_migrations_build_the_tables_that_the_code_uses(database: sql.Database) -> None:
    """The migrated schema and the tables in the code do not differ."""
    assert await differences(database) == []
    assert await sql.check(database.url) is sql.Schema.CURRENT


async def test_a_schema_of_an_earlier_revision_is_behind(
    database: sql.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revision is known, and a later migration is missing."""
    monkeypatch.setattr(ScriptDirectory, "get_current_head", lambda _: "0002")
    assert await sql.check(database.url) is sql.Schema.BEHIND


async def test_a_newer_schema_is_not_changed(database: sql.Database, broker: Broker) -> None:
    """After a roll back: migrations add, and what this release writes leaves that out."""
    await execute(
        database,
        "ALTER TABLE outbox_tasks ADD COLUMN later VARCHAR(9) DEFAULT ''",
        f"UPDATE {VERSION_TABLE} SET version_num = '9999'",
    )
    assert await sql.check(database.url) is sql.Schema.AHEAD
    with pytest.raises(ConfigurationError, match="newer version of Nonet"):
        await sql.upgrade(database.url)
    outbox = Outbox(database, broker, "test")
    await outbox.prepare()
    await outbox.submit([Submission("a", "x:T", "normal:small", b"?")], ids_are_new=True)
    assert await outbox.count() == 1


async def test_an_upgrade_finishes_a_killed_one(database: sql.Database) -> None:
    """A kill on MySQL leaves tables without their indexes and version entries."""
    drops = [f"DROP INDEX {index.name} ON {index.table}" for index in INDEXES]
    if database.engine.dialect.name == "sqlite":
        drops = [drop.partition(" ON ")[0] for drop in drops]
    await execute(database, *drops, f"DELETE FROM {VERSION_TABLE}")
    assert await sql.check(database.url) is sql.Schema.ABSENT
    await sql.upgrade(database.url)
    assert await differences(database) == []


async def test_reading_makes_no_sqlite_file(tmp_path: Path, broker: Broker) -> None:
    """Neither does closing rows or saving nothing; the first write makes it."""
    database = sql.Database(f"sqlite:///{tmp_path}/state/nonet.db")
    letters, outbox = DeadLetters(database, "test"), Outbox(database, broker, "test")
    every, mirrored = LetterFilter(), Mirror(database, "test")
    assert (await letters.list(), await letters.count()) == ([], dict.fromkeys(Status, 0))
    for missing in (letters.get(1), letters.discard(1)):
        with pytest.raises(NotFoundError):
            await missing
    assert [n async for n in letters.purge(every)] == []
    assert (await letters.clusters(every), await letters.measure(every)) == ([], (0, 0))
    assert await mirrored.load("periodic") == {}
    await mirrored.save("periodic", {})
    for again in (False, True):
        assert await outbox.due(1, again=again, skip=0) == []
    assert (await outbox.review(1), await outbox.overdue(0)) == ((0, 0), (0, 0.0))
    assert (await outbox.close(["x"]), await outbox.count(), await outbox.find("x")) == (0, 0, None)
    assert await sql.check(database.url) is sql.Schema.ABSENT
    assert os.listdir(tmp_path) == []
    await mirrored.save("periodic", {"a": "1"})
    assert os.listdir(tmp_path) == ["state"]
    await database.close()


@pytest.mark.parametrize("kind", [sql.Database, SyncDatabase])
async def test_a_sqlite_file_is_private(tmp_path: Path, kind: type[sql.Database]) -> None:
    """Only its user may read the arguments and errors that are in the file and its log."""
    database = kind(f"sqlite:///{tmp_path}/nonet.db")
    await Mirror(database, "test").save("periodic", {"a": "1"})
    files = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}
    assert "nonet.db" in files and set(files.values()) == {0o600}
    await database.close()


async def test_an_unreachable_database_is_not_an_empty_one() -> None:
    """A read, and a save, of the mirror fails."""
    database = sql.Database("mysql://nonet@127.0.0.1:1/nonet")
    for call in (
        Mirror(database, "test").load("a"),
        Mirror(database, "test").save("a", {"b": "1"}),
    ):
        with pytest.raises(ServerUnreachableError):
            await call
    await database.close()


def test_upserts_compile_for_databases_without_a_server_here() -> None:
    """Each statement is what the manual of its database says."""
    postgres, my = postgresql.dialect(), mysql.dialect()
    epoch = "CASE WHEN (outbox_tasks.epoch > 0) THEN NULL ELSE outbox_tasks.epoch END"
    for made, dialect, words in (
        (
            _insertion(postgres),
            postgres,
            f"CONFLICT (namespace, task_id) DO UPDATE SET epoch = {epoch}",
        ),
        (
            _upsert(postgres),
            postgres,
            "ON CONFLICT (namespace, kind, name_hash) DO UPDATE SET value",
        ),
        (_upsert(my), my, "ON DUPLICATE KEY UPDATE value"),
    ):
        assert words in str(made.compile(dialect=dialect))
