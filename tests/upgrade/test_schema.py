"""Tables of each older revision are migrated with the rows that are in them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import database as sql
from nonet.stores.sql.database import VERSION_TABLE, Database, Schema
from nonet.stores.sql.dead_letters import DeadLetters, LetterFilter
from nonet.stores.sql.outbox import Outbox

Rows = dict[str, dict[str, Any]]
VALUES = {
    bool: True,
    bytes: b"\x99\x01\xa1x",
    datetime: datetime(2026, 1, 2, 3, 4, 5),
    object: [],  # JSON, where it is a type
    int: 7,
    str: "[]",  # MariaDB keeps JSON in a column of text, and looks whether it is some
}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "nonet.stores.sql:migrations")
    config.attributes["version_table"] = VERSION_TABLE
    return config


REVISIONS = [step.revision for step in ScriptDirectory.from_config(_config()).walk_revisions()]


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def a_row(table: sa.Table) -> dict[str, Any]:
    """A value for each column, of its type."""
    return {column.name: VALUES[column.type.python_type] for column in table.columns}


def migrate_and_fill(connection: sa.Connection, revision: str) -> Rows:
    """What stands in each table of a revision."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    tables = sa.MetaData()
    tables.reflect(connection)
    for table in tables.sorted_tables:
        if table.name != VERSION_TABLE:
            connection.execute(table.insert().values(a_row(table)))
    return read(connection)


def read(connection: sa.Connection) -> Rows:
    """The row of each table that has one."""
    tables = sa.MetaData()
    tables.reflect(connection)
    found = {table.name: connection.execute(table.select()) for table in tables.sorted_tables}
    rows = {name: result.mappings().first() for name, result in found.items()}
    return {name: dict(row) for name, row in rows.items() if row and name != VERSION_TABLE}


@pytest.mark.parametrize("revision", sorted(REVISIONS)[:-1])
async def test_rows_of_an_older_revision_are_kept(url: str, revision: str) -> None:
    """With each value; and of a column that came later there is one, too."""
    before = await within(url, lambda connection: migrate_and_fill(connection, revision))
    assert before
    assert await sql.check(url) is Schema.BEHIND
    await sql.upgrade(url)
    assert await sql.check(url) is Schema.CURRENT
    after = await within(url, read)
    for name, row in before.items():
        assert {column: after[name][column] for column in row} == row


async def test_a_worker_of_the_version_before_writes_its_row(url: str) -> None:
    """Without the columns that it does not know; it is adopted, and sorted into a cluster."""

    tables = sa.MetaData()

    def of_the_version_before(connection: sa.Connection) -> Rows:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        tables.reflect(connection)
        return {}

    await within(url, of_the_version_before)
    await sql.upgrade(url)
    known = tables.tables["dlq_tasks"]
    row = {**a_row(known), "status": "PENDING"}

    def written(connection: sa.Connection) -> Rows:
        connection.execute(known.insert().values(row))
        return {}

    await within(url, written)
    letters = DeadLetters(url, "test")
    assert await letters.list(every_namespace=True) != [] == await letters.list()
    await letters.adopt(row["id"])
    assert [letter.id for letter in await letters.list()] == [row["id"]]
    assert [number async for number in letters.add_fingerprints()] == [1]
    (cluster,) = await letters.clusters(LetterFilter())
    assert cluster.fingerprint and cluster.newest == row["id"]
    await letters.close()


async def test_an_older_release_goes_on_with_newer_tables(url: str, broker: Broker) -> None:
    """After a roll back: migrations add, and what an older release writes leaves that out."""
    await sql.upgrade(url)

    def migrate_on(connection: sa.Connection) -> Rows:
        connection.exec_driver_sql(
            "ALTER TABLE outbox_tasks ADD COLUMN later VARCHAR(9) DEFAULT ''"
        )
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        return {}

    await within(url, migrate_on)
    database = Database(url)
    outbox = Outbox(database, broker, "test")
    await outbox.prepare()
    await outbox.submit([Submission("a", "x:T", "normal:small", b"?")], ids_are_new=True)
    assert await outbox.count() == 1
    await database.close()
    assert await sql.check(url) is Schema.AHEAD


async def within(url: str, step: Callable[[sa.Connection], Rows]) -> Rows:
    """Do something in a transaction."""
    engine = sql.open_engine(url)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(step)
    finally:
        await engine.dispose()
