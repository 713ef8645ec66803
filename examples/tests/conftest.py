"""Fixtures: a database and storage elements for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from nonet_example.database import create_tables, engine
from nonet_example.storage import Storage

CONFIG = Path(__file__).parents[1] / "nonet.yaml"


@pytest.fixture
async def db_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a database with the tables of this package, and use it for all sessions."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'example.db'}"
    monkeypatch.setenv("NONET_DB_URL", url)
    engine.cache_clear()
    await create_tables()
    return url


@pytest.fixture
def elements(tmp_path: Path) -> Storage:
    """Create a storage with one element, CERN-DST, and one file in it, /lhcb/a, of three bytes."""
    (tmp_path / "CERN-DST").mkdir()
    (tmp_path / "CERN-DST" / "%2Flhcb%2Fa").write_bytes(b"abc")
    return Storage(tmp_path)
