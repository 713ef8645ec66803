"""Clusters of dead letters on real databases: each test runs on SQLite and on MariaDB."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from nonet.stores.sql.database import Database
from nonet.stores.sql.dead_letters import (
    DeadLetters,
    LetterFilter,
    NewDeadLetter,
    Status,
    dlq_tasks,
)

EVERY = LetterFilter()


@pytest.fixture
def letters(database: Database) -> DeadLetters:
    """The letters of the namespace ``test``."""
    return DeadLetters(database, "test")


def letter(
    number: int, *, task: str = "a:A", error: str = "KeyError", line: int = 3
) -> NewDeadLetter:
    """A letter whose error is raised in ``shop.bill:pay``."""
    return NewDeadLetter(
        task_id=f"task-{number}",
        generation=1,
        task_class=task,
        task_args=b"\x90",
        submitted_at=datetime.now(UTC),
        reason="retries",
        error_type=error,
        error_message=f"invoice {number}",
        traceback="Traceback (most recent call last):\n"
        f'  File "/srv/shop/bill.py", line {line}, in pay\n{error}: invoice {number}',
    )


async def change(database: Database, row: int, **values: object) -> None:
    """Change a row behind the store."""
    async with database.transaction() as connection:
        await connection.execute(sa.update(dlq_tasks).where(dlq_tasks.c.id == row).values(values))


async def test_letters_of_one_cause_are_one_cluster(
    letters: DeadLetters, database: Database
) -> None:
    """With counts, ages, statuses and its newest letter; other namespaces are left out."""
    now = datetime.now(UTC)
    rows = [await letters.add(letter(n, line=n)) for n in range(4)]
    for row, hours in zip(rows, (24 * 8, 30, 2, 0), strict=True):
        await change(database, row, created_at=now - timedelta(hours=hours))
    await change(database, rows[0], status="FAILED")
    other = await letters.add(letter(9, task="a:B"))
    await DeadLetters(database, "other").add(letter(10))
    newest, cluster = await letters.clusters(EVERY)
    assert (newest.task_class, newest.newest, newest.count) == ("a:B", other, 1)
    assert (cluster.task_class, cluster.error_type) == ("a:A", "KeyError")
    assert (cluster.place, cluster.newest) == ("shop.bill:pay", rows[-1])
    assert cluster.last_error == "KeyError: invoice 3"
    assert (cluster.count, cluster.last_hour, cluster.last_day, cluster.last_week) == (4, 1, 2, 3)
    assert cluster.statuses == {Status.PENDING: 3, Status.DISPATCHED: 0, Status.FAILED: 1}
    assert cluster.last - cluster.first == timedelta(days=8)


async def test_clusters_and_letters_are_filtered_alike(
    letters: DeadLetters, database: Database
) -> None:
    """By class, error, status, time and row: the number of letters is the same everywhere."""
    for number in range(6):
        task, error = f"a:{'ABC'[number % 3]}", ("KeyError", "TimeoutError")[number % 2]
        row = await letters.add(letter(number, task=task, error=error))
        if number == 1:
            await change(database, row, status="DISPATCHED")
    found = {
        LetterFilter(): 6,
        LetterFilter(task_class="a:A"): 2,
        LetterFilter(task_class="a:Z"): 0,
        LetterFilter(error="timeout"): 3,
        LetterFilter(task_class="a:B", error="key"): 1,
        LetterFilter(error="%"): 0,
        LetterFilter(status="DISPATCHED"): 1,
        LetterFilter(task_id="task-5"): 1,
        LetterFilter(died_after=datetime.now(UTC)): 0,
        LetterFilter(up_to=2): 2,
    }
    for selection, number in found.items():
        clusters = await letters.clusters(selection)
        assert sum(cluster.count for cluster in clusters) == number, selection
        assert (await letters.measure(selection))[0] == number, selection
        narrow = await letters.narrowed(selection)
        pages = [page async for page in letters.pages(narrow)]
        assert sum(map(len, pages)) == number, selection


async def test_letters_are_read_page_by_page(letters: DeadLetters) -> None:
    """A page begins below the last row of the page before it."""
    rows = [await letters.add(letter(number)) for number in range(5)]
    first = await letters.list(limit=3, error="KEY")
    rest = await letters.list(limit=3, error="KEY", before=first[-1].id)
    assert [item.id for item in [*first, *rest]] == rows[::-1]


async def test_a_note_stays_with_its_letter(letters: DeadLetters) -> None:
    """A long note is cut to what the column holds."""
    row = await letters.add(letter(1))
    await letters.annotate(row, "waits for the new printer")
    assert (await letters.get(row)).note == "waits for the new printer"
    await letters.annotate(row, "é" * 2000)
    assert (await letters.get(row)).note == "é" * 1000


async def test_looking_makes_no_database(tmp_path: Path) -> None:
    """A SQLite file that does not exist has no clusters, and is not made."""
    letters = DeadLetters(f"sqlite:///{tmp_path}/nonet.db", "test")
    assert await letters.clusters(EVERY) == []
    assert await letters.measure(EVERY) == (0, 0)
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
