"""Databases with the tables of `row_tables`: PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pipelines.hosting import Note
from row_tables import Base

from nonet import Nonet
from nonet.pipelines import RowDatabase
from nonet.pipelines.backoff import Pauses


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Rows are leased in each kind of database; what a process does with them, in one."""
    servers = [pytest.param(kind, marks=pytest.mark.server) for kind in ("postgres", "mariadb")]
    if "url" in metafunc.fixturenames:
        kinds = servers[:1] if "nonet" in metafunc.fixturenames else ["sqlite", *servers]
        metafunc.parametrize("url", kinds, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rows.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
async def database(url: str) -> AsyncIterator[RowDatabase]:
    opened = RowDatabase(url, connections=6)
    async with opened.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield opened
    await opened.close()


@pytest.fixture
def add(database: RowDatabase) -> Any:
    async def adding(*rows: Any) -> list[int]:
        async with database.transaction() as session:
            session.add_all(rows)
            await session.flush()
            return [row.id for row in rows]

    return adding


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    """An open application, with dead letters in a file."""
    settings = {"redis_url": redis_url, "namespace": "test", "state_dir": tmp_path, "grace": 5.0}
    app = Nonet.from_settings(db_url=f"sqlite:///{tmp_path}/letters.db", **settings)
    app.registry.add(Note, "rows")
    async with app:
        yield app


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fetch that found nothing only a hint leads to another one."""
    monkeypatch.setattr(Pauses, "after", lambda self, found: 0.0 if found else 3600.0)
