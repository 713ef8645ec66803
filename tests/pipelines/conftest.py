"""Databases with the tables of `row_tables`: each test runs on PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from row_tables import Base

from nonet.pipelines import RowDatabase


@pytest.fixture(
    params=[
        "sqlite",
        *(pytest.param(kind, marks=pytest.mark.server) for kind in ("postgres", "mariadb")),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rows.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
async def database(url: str) -> AsyncIterator[RowDatabase]:
    """A database with the tables."""
    opened = RowDatabase(url, connections=6)
    async with opened.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield opened
    await opened.close()


@pytest.fixture
def add(database: RowDatabase) -> Any:
    """Adds rows, and returns their keys."""

    async def adding(*rows: Any) -> list[int]:
        async with database.transaction() as session:
            session.add_all(rows)
            await session.flush()
            return [row.id for row in rows]

    return adding
