"""Databases of the tests of SQL: each test runs on SQLite and on MariaDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nonet.stores.sql import database as sql


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/made/on/demand/nonet.db"
    url: str = request.getfixturevalue("mariadb_url")
    return url


@pytest.fixture
async def url(empty_url: str) -> str:
    """A database of its own with the tables."""
    await sql.upgrade(empty_url)
    return empty_url


@pytest.fixture
async def database(url: str) -> AsyncIterator[sql.Database]:
    """A database with the tables."""
    opened = sql.Database(url)
    yield opened
    await opened.close()
