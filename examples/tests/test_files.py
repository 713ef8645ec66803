"""Single tasks, run with `run_inline` and without any server."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from nonet.testing import run_inline
from nonet_example.database import FileDB
from nonet_example.files import CreateFile, RemoveFile
from nonet_example.groups import RemoveOutput
from nonet_example.storage import Storage, StorageUnavailable, storage


async def test_a_file_is_removed(db_url: str, elements: Storage) -> None:
    """Replace the storage, and use a real database. A removed file can be created again."""
    overrides = {storage: lambda: elements}
    make, remove = CreateFile("CERN-DST", "/b", "lhcb", b"12345"), RemoveFile("CERN-DST", "/b")
    for _ in range(2):
        await run_inline(make, overrides=overrides)
        run = await run_inline(remove, overrides=overrides)
        assert run.result == 5
        async with asynccontextmanager(FileDB.session)() as db:
            assert await db.find("lhcb", ["/b"]) == []


async def test_a_second_removal_does_no_harm(db_url: str, elements: Storage) -> None:
    """Execution is at least once, so a second removal must succeed."""
    overrides = {storage: lambda: elements}
    runs = [await run_inline(RemoveFile("CERN-DST", "/lhcb/a"), overrides=overrides) for _ in "12"]
    assert [run.result for run in runs] == [3, 0]


async def test_an_element_out_of_service_is_tried_again(db_url: str, elements: Storage) -> None:
    """The policy retries ten times, every 30 seconds."""
    (elements.root / "CERN-DST" / "DOWN").touch()
    task = RemoveFile("CERN-DST", "/lhcb/a")
    run = await run_inline(task, overrides={storage: lambda: elements}, retry=True, check=False)
    assert isinstance(run.error, StorageUnavailable)
    assert [round(wait.total_seconds()) for wait in run.waits] == [30] * 10


async def test_an_unknown_element_is_not(db_url: str, elements: Storage) -> None:
    """The policy does not retry other exceptions."""
    task = RemoveFile("NOWHERE", "/lhcb/a")
    run = await run_inline(task, overrides={storage: lambda: elements}, retry=True, check=False)
    assert (run.attempts, str(run.error)) == (1, "there is no storage element NOWHERE")


async def test_what_fails_is_rolled_back(db_url: str, elements: Storage) -> None:
    """A row that was inserted before the failure is gone afterwards."""
    (elements.root / "CERN-DST" / "DOWN").touch()
    task = CreateFile("CERN-DST", "/lhcb/b", "lhcb", b"12345")
    with pytest.raises(StorageUnavailable):
        await run_inline(task, overrides={storage: lambda: elements})
    async with asynccontextmanager(FileDB.session)() as db:
        assert await db.find("lhcb", ["/lhcb/b"]) == []


def test_locks() -> None:
    """A removal takes these locks, in addition to the limiters of its class."""
    keys = [lock.redis_key for lock in RemoveOutput("CERN-DST", "/lhcb/a", 7).execution_locks]
    assert keys[2:] == [
        "lock:mutex:lfn:/lhcb/a",
        "limiter:conc:storage_element:CERN-DST:RemoveFile",
        "limiter:conc:transformation:7",
    ]
