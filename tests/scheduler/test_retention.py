"""How long dead letters are kept, on a real MariaDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from nonet.rules.letters import NewDeadLetter
from nonet.scheduler.retention import Retention
from nonet.stores.sql import database as sql
from nonet.stores.sql.dead_letters import DeadLetters
from nonet.stores.sql.letters import dlq_tasks

DAY = 86_400.0


@pytest.fixture
async def letters(mariadb_url: str) -> AsyncIterator[DeadLetters]:
    await sql.upgrade(mariadb_url)
    store = DeadLetters(mariadb_url, "test")
    yield store
    await store.close()


async def add(letters: DeadLetters, url: str, *days: float) -> None:
    """Letters that died so many days ago."""
    engine = sql.open_engine(url)
    for age in days:
        row = await letters.add(
            NewDeadLetter(
                task_id=f"{age}",
                generation=1,
                task_class="a:A",
                task_args=b"",
                submitted_at=datetime.now(UTC),
                reason="retries",
            )
        )
        died = datetime.now(UTC) - timedelta(days=age)
        async with engine.begin() as connection:
            await connection.execute(
                update(dlq_tasks).where(dlq_tasks.c.id == row).values(created_at=died)
            )
    await engine.dispose()


async def left(letters: DeadLetters) -> set[str]:
    return {letter.task_id for letter in await letters.list()}


def retention(letters: DeadLetters, keep_seconds: float) -> Retention:
    async def opened() -> DeadLetters:
        return letters

    return Retention(opened, keep_seconds)


async def test_old_letters_are_purged_every_hour(letters: DeadLetters, mariadb_url: str) -> None:
    await add(letters, mariadb_url, 8, 6)
    chore = retention(letters, 7 * DAY)
    assert await chore.tick("1") == 3600
    assert await left(letters) == {"6"}
    await add(letters, mariadb_url, 9)
    await chore.tick("1")
    assert await left(letters) == {"6"}


async def test_without_a_retention_no_database_is_opened() -> None:
    async def opened() -> DeadLetters:
        raise AssertionError("SQL was opened")

    assert await Retention(opened, 0).tick("1") > 0


async def test_no_sqlite_file_is_created_to_purge_it(sqlite_url: str) -> None:
    letters = DeadLetters(sqlite_url, "test")
    await retention(letters, DAY).tick("1")
    await letters.close()
    assert sql.is_missing(sqlite_url)
