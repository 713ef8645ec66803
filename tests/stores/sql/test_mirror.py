"""What survives a loss of Redis: texts by kind and name, on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import mysql, postgresql

from nonet import Nonet
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.stores.sql import database as sql
from nonet.stores.sql.mirror import Mirror, _upsert, mirror

KIND = "periodic"


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/made/on/demand/nonet.db"
    url: str = request.getfixturevalue("mariadb_url")
    return url


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[sql.Database]:
    """A database with the tables; of SQLite there is no file yet."""
    if not empty_url.startswith("sqlite"):
        await sql.upgrade(empty_url)
    opened = sql.Database(empty_url)
    yield opened
    await opened.close()


@pytest.fixture
def store(database: sql.Database) -> Mirror:
    return Mirror(database, "test")


async def execute(database: sql.Database, *statements: str) -> None:
    async with database.transaction() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def test_what_was_saved_is_loaded(store: Mirror, database: sql.Database) -> None:
    """Values are added, changed and deleted by name, and another process sees them."""
    assert await store.load(KIND) == {}
    await store.save(KIND, {"a": "1", "b": "2", "c": ""})
    await store.save(KIND, {"a": "3", "b": None, "d": "4", "never": None})
    await store.save(KIND, {})
    assert await Mirror(database, "test").load(KIND) == {"a": "3", "c": "", "d": "4"}


async def test_kinds_and_namespaces_are_apart(store: Mirror, database: sql.Database) -> None:
    """One name has a value per kind and namespace, and is deleted in one of them."""
    other = Mirror(database, "other")
    await store.save(KIND, {"a": "1"})
    await store.save("paused", {"a": "2"})
    await other.save(KIND, {"a": "3"})
    await store.save(KIND, {"a": None})
    assert (await store.load(KIND), await store.load("paused")) == ({}, {"a": "2"})
    assert await other.load(KIND) == {"a": "3"}


async def test_long_and_odd_names_stay_apart(store: Mirror) -> None:
    """Names that differ in one letter, in its case, or in blanks at the end are several names."""
    names = ["n" * 5000 + end for end in ("", "x", "X", " ", "é", "e\u0301", "\U0001f600")]
    values = {name: str(n) for n, name in enumerate(names)}
    await store.save(KIND, values)
    assert await store.load(KIND) == values


async def test_many_values_are_one_transaction(store: Mirror, database: sql.Database) -> None:
    """More than a page of changes and deletions is written as a whole or not at all."""
    many = 2 * sql.PAGE_ROWS + 1
    await store.save(KIND, {f"old-{n}": "x" for n in range(many)})
    before = await store.load(KIND)
    values = {f"new-{n}": "y" * 100_000 if n == many - 1 else "y" for n in range(many)}
    change: dict[str, str | None] = {**values, **{f"old-{n}": None for n in range(many)}}
    if database.engine.dialect.name == "sqlite":
        refuse = "CREATE TRIGGER t BEFORE DELETE ON mirror BEGIN SELECT RAISE(ABORT, 'no'); END"
    else:
        refuse = (
            "CREATE TRIGGER t BEFORE DELETE ON mirror FOR EACH ROW SIGNAL SQLSTATE '45000' "
            "SET MESSAGE_TEXT = 'no'"
        )
    await execute(database, refuse)
    with pytest.raises(ServerUnreachableError):
        await store.save(KIND, change)
    assert await store.load(KIND) == before
    await execute(database, "DROP TRIGGER t")
    await store.save(KIND, change)
    await store.save(KIND, change)
    assert await store.load(KIND) == values


SAVES = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "A", "b", "b ", "ü"]), st.none() | st.text("xyzé'\\%", max_size=5)
    ),
    max_size=6,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(saves=SAVES)
def test_any_saves_end_as_a_dictionary_would(saves: list[dict[str, Any]], tmp_path: Path) -> None:
    """The last value that was saved for a name is the one that is loaded."""

    async def run() -> None:
        database = sql.Database(f"sqlite:///{tmp_path}/nonet.db")
        store = Mirror(database, "test")
        wanted = await store.load(KIND)
        for values in saves:
            await store.save(KIND, values)
            wanted |= values
        assert await store.load(KIND) == {k: v for k, v in wanted.items() if v is not None}
        await database.close()

    asyncio.run(run())


async def test_two_who_write_the_same_names_do_not_fail(store: Mirror) -> None:
    """Concurrent saves of names in opposite orders all succeed; one of them was the last."""
    names = [f"n{n}" for n in range(50)]
    await asyncio.gather(
        *(
            store.save(KIND, {name: str(n) for name in (names if n % 2 else reversed(names))})
            for n in range(8)
        )
    )
    assert set(await store.load(KIND)) == set(names)
    assert len(set((await store.load(KIND)).values())) == 1


async def test_looking_does_not_make_a_sqlite_file(tmp_path: Path) -> None:
    """Neither the file nor its directory appears by reading, or by saving nothing."""
    database = sql.Database(f"sqlite:///{tmp_path}/state/nonet.db")
    store = Mirror(database, "test")
    assert await store.load(KIND) == {}
    await store.save(KIND, {})
    assert os.listdir(tmp_path) == []
    await database.close()


async def test_an_old_schema_says_what_to_run(mariadb_url: str) -> None:
    """A database of the version before this table is not migrated behind its owner's back."""
    await sql.upgrade(mariadb_url)
    database = sql.Database(mariadb_url)
    version = f"UPDATE {sql.VERSION_TABLE} SET version_num = '0002'"
    await execute(database, "DROP TABLE mirror", version)
    assert await sql.check(mariadb_url) is sql.Schema.BEHIND
    for use in (
        Mirror(database, "test").load(KIND),
        Mirror(database, "test").save(KIND, {"a": "1"}),
    ):
        with pytest.raises(ConfigurationError, match="task-run db upgrade"):
            await use
    await sql.upgrade(mariadb_url)
    await Mirror(database, "test").save(KIND, {"a": "1"})
    await database.close()


async def test_an_old_sqlite_file_is_migrated(tmp_path: Path) -> None:
    """The file of the version before this table gets it with the first use."""
    url = f"sqlite:///{tmp_path}/nonet.db"
    await sql.upgrade(url)
    before = sql.Database(url)
    version = f"UPDATE {sql.VERSION_TABLE} SET version_num = '0002'"
    await execute(before, "DROP TABLE mirror", version)
    await before.close()
    database = sql.Database(url)
    await Mirror(database, "test").save(KIND, {"a": "1"})
    assert await Mirror(database, "test").load(KIND) == {"a": "1"}
    await database.close()


async def test_an_unreachable_database_is_no_empty_one() -> None:
    """Nobody may take silence for 'nothing was ever kept'."""
    database = sql.Database("mysql://nonet@127.0.0.1:1/nonet")
    store = Mirror(database, "test")
    with pytest.raises(ServerUnreachableError):
        await store.load(KIND)
    with pytest.raises(ServerUnreachableError):
        await store.save(KIND, {"a": "1"})
    await database.close()


async def test_migrations_build_the_table_that_the_code_uses(database: sql.Database) -> None:
    """The migrated schema and the table in the code do not differ, also after a second upgrade."""

    def differences(connection: sa.Connection) -> list[Any]:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name == "mirror",
        }
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, mirror.metadata))

    for _ in range(2):
        async with database.transaction() as connection:
            assert await connection.run_sync(differences) == []
        await execute(database, f"UPDATE {sql.VERSION_TABLE} SET version_num = '0002'")
        await sql.upgrade(database.url)


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        (postgresql.dialect(), "ON CONFLICT (namespace, kind, name_hash) DO UPDATE SET value"),
        (mysql.dialect(), "ON DUPLICATE KEY UPDATE value"),
    ],
)
def test_other_databases_get_a_statement_of_theirs(dialect: sa.Dialect, words: str) -> None:
    """No PostgreSQL or MySQL is at hand here: their upserts at least are written as theirs."""
    statement = _upsert(dialect).compile(dialect=dialect)
    assert words in str(statement)


async def test_an_application_has_it(redis_url: str, tmp_path: Path) -> None:
    """It is in the same database as durable tasks, and closed with the application."""
    options = {"redis_url": redis_url, "namespace": "test", "state_dir": tmp_path}
    async with Nonet.from_settings(**options) as app:
        await (await app.stores.mirror()).save(KIND, {"a": "1"})
    async with Nonet.from_settings(**options) as app:
        assert await (await app.stores.mirror()).load(KIND) == {"a": "1"}
        assert await (await app.stores.outbox()).count() == 0
