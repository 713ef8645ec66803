"""What survives a loss of Redis, and the audit, on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from nonet.base.errors import ServerUnreachableError
from nonet.stores.sql import database as sql
from nonet.stores.sql.audit import Audit, AuditEntry
from nonet.stores.sql.mirror import Mirror

KIND = "periodic"


@pytest.fixture
def store(database: sql.Database) -> Mirror:
    return Mirror(database, "test")


async def execute(database: sql.Database, *statements: str) -> None:
    async with database.transaction() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def test_saved_values_are_loaded(store: Mirror, database: sql.Database) -> None:
    """Values are added, changed and deleted by name."""
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
    """Names that differ in one letter, in its case, or in blanks at the end."""
    names = ["n" * 5000 + end for end in ("", "x", "X", " ", "é", "e\u0301", "\U0001f600")]
    values = {name: str(n) for n, name in enumerate(names)}
    await store.save(KIND, values)
    assert await store.load(KIND) == values


async def test_many_values_are_one_transaction(store: Mirror, database: sql.Database) -> None:
    """More than a page of changes is written as a whole or not at all."""
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


async def test_concurrent_saves_of_the_same_names_succeed(store: Mirror) -> None:
    """In opposite orders; one of them is the last."""
    names = [f"n{n}" for n in range(50)]
    await asyncio.gather(
        *(
            store.save(KIND, {name: str(n) for name in (names if n % 2 else reversed(names))})
            for n in range(8)
        )
    )
    assert set(await store.load(KIND)) == set(names)
    assert len(set((await store.load(KIND)).values())) == 1


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
