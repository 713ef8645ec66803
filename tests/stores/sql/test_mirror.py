"""What survives a loss of Redis: texts by kind and name, on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from nonet.base.errors import ServerUnreachableError
from nonet.stores.sql import database as sql
from nonet.stores.sql.mirror import Mirror, _upsert

KIND = "periodic"


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


async def test_an_unreachable_database_is_no_empty_one() -> None:
    """Nobody may take silence for 'nothing was ever kept'."""
    database = sql.Database("mysql://nonet@127.0.0.1:1/nonet")
    store = Mirror(database, "test")
    with pytest.raises(ServerUnreachableError):
        await store.load(KIND)
    with pytest.raises(ServerUnreachableError):
        await store.save(KIND, {"a": "1"})
    await database.close()


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
