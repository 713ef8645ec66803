"""Several tasks with a real Redis, workers and a scheduler, from the fixture or from `System`."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from nonet.testing import System
from nonet_example.copies import copy_of
from nonet_example.database import FileDB, utc
from nonet_example.files import RemoveFile
from nonet_example.groups import (
    CleanTransformation,
    TransformationCleaned,
    TransformationNotCleaned,
)
from nonet_example.storage import Storage, storage
from nonet_example.sweeps import RemoveOldFiles


async def add(*files: tuple[str, str], transformation: int = 0, days_ago: int = 0) -> None:
    """Register files at elements."""
    async with asynccontextmanager(FileDB.session)() as db:
        for element, lfn in files:
            await db.add(lfn, "lhcb", element, transformation)
        await db.sql.flush()
        registered = datetime.now(UTC) - timedelta(days=days_ago)
        for file in await db.find("lhcb", [lfn for _, lfn in files]):
            file.registered = utc(registered)


async def state_of(*lfns: str) -> list[str]:
    """Return the state of each file that is not removed."""
    async with asynccontextmanager(FileDB.session)() as db:
        return [file.lfn for file in await db.find("lhcb", lfns)]


async def test_a_group_ends_with_one_callback(
    db_url: str, nonet_system: System, elements: Storage
) -> None:
    """The callback receives the results of all children."""
    nonet_system.dependency_overrides[storage] = lambda: elements
    await add(("CERN-DST", "/lhcb/a"), ("CERN-DST", "/lhcb/gone"), transformation=7)
    await nonet_system.submit(CleanTransformation(7))
    await nonet_system.run_until_idle()
    (cleaned,) = nonet_system.assert_submitted(TransformationCleaned, times=1)
    assert await nonet_system.result(cleaned.id) == 3
    assert await state_of("/lhcb/a", "/lhcb/gone") == []


async def test_a_child_that_fails_is_a_dead_letter(
    db_url: str, nonet_system: System, elements: Storage
) -> None:
    """The failure callback receives the error, and an operator can resubmit the child."""
    nonet_system.dependency_overrides[storage] = lambda: elements
    await add(("CERN-DST", "/lhcb/a"), ("NOWHERE", "/lhcb/b"), transformation=7)
    await nonet_system.submit(CleanTransformation(7))
    await nonet_system.run_until_idle()
    nonet_system.assert_not_submitted(TransformationCleaned)
    (told,) = nonet_system.assert_submitted(TransformationNotCleaned, times=1)
    assert await nonet_system.result(told.id) == [
        "LookupError: there is no storage element NOWHERE"
    ]
    (letter,) = await nonet_system.dead_letters()
    assert letter.task_class == "transformations:RemoveOutput"
    assert await state_of("/lhcb/a", "/lhcb/b") == ["/lhcb/b"]


async def test_a_workflow_copies_all_files(
    db_url: str, nonet_system: System, elements: Storage
) -> None:
    """Its last step receives the results of the steps that the first one added."""
    nonet_system.dependency_overrides[storage] = lambda: elements
    (elements.root / "RAL-DST").mkdir()
    await add(("CERN-DST", "/lhcb/a"), transformation=7)
    workflow = copy_of(7, "RAL-DST")
    run = await workflow.submit()
    await nonet_system.run_until_idle()
    assert (await run.status()).state == "done"
    assert await run.result(workflow.steps[1]) == 3
    assert os.listdir(elements.root / "RAL-DST") == ["%2Flhcb%2Fa"]


async def test_a_copy_that_fails_is_taken_over(
    db_url: str, nonet_system: System, elements: Storage
) -> None:
    """The workflow is done, because a step took the failure of an added step over."""
    nonet_system.dependency_overrides[storage] = lambda: elements
    await add(("CERN-DST", "/lhcb/a"), transformation=7)
    workflow = copy_of(7, "NOWHERE")
    run = await workflow.submit()
    await nonet_system.run_until_idle()
    assert [step.state for step in await run.steps()] == ["done", "dead", "cancelled", "done"]
    assert (await run.status()).state == "done"


@pytest.mark.nonet(
    tasks=[
        "nonet_example.sweeps",
        "nonet_example.files",
    ],  # without the pilots, which fire all night
    now=datetime(2030, 1, 1, 1, 59, tzinfo=UTC),
)
async def test_old_files_are_removed_at_night(
    db_url: str, nonet_system: System, elements: Storage
) -> None:
    """The sweep submits the removals after its commit."""
    nonet_system.dependency_overrides[storage] = lambda: elements
    await add(("CERN-DST", "/lhcb/a"), days_ago=31)
    await add(("CERN-DST", "/lhcb/young"), days_ago=29)
    await nonet_system.advance(timedelta(minutes=2))  # until 3 a.m. in Zurich
    await nonet_system.run_until_idle()
    nonet_system.assert_submitted(RemoveOldFiles, times=1)
    nonet_system.assert_submitted(RemoveFile, lfn="/lhcb/a", times=1)
    assert await state_of("/lhcb/a", "/lhcb/young") == ["/lhcb/young"]


async def test_what_is_pending_is_submitted_at_the_start(db_url: str, elements: Storage) -> None:
    """The start-up hook resubmits pending removals to a new Redis."""
    await add(("CERN-DST", "/lhcb/a"))
    async with asynccontextmanager(FileDB.session)() as db:
        db.ask_for_removal(await db.find("lhcb", ["/lhcb/a"]))
    async with System(overrides={storage: lambda: elements}, db_url=db_url) as system:
        await system.run_until_idle()
        (found,) = system.assert_submitted(RemoveFile, lfn="/lhcb/a", times=1)
        assert found.id.startswith("remove-1-")
    assert await state_of("/lhcb/a") == []


@pytest.mark.nonet(sizes=[])
async def test_who_asks_twice_gets_the_same_task(db_url: str, nonet_system: System) -> None:
    """A second request returns the same task while no worker has run it."""
    first = await CleanTransformation(7).schedule()
    again = await CleanTransformation(7).schedule()
    other = await CleanTransformation(8).schedule()
    assert (again, again.created, other.created) == (first, False, True)
