"""What leases survive: lost replies, dead processes, cancellations, and keys of any type."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import change
from pipelines.test_leasing import fetch, leasing_of, row_of
from row_tables import Base, Fleet, Fleets, Instance, Instances, Job, Jobs, on
from sqlalchemy.ext.asyncio import AsyncSessionTransaction
from sqlalchemy.orm import Mapped, mapped_column

from nonet.base.errors import LeaseLostError
from nonet.pipelines import Changes, Children, LeaseMixin, Pipeline, RowDatabase, Rows
from nonet.pipelines.lease import Exhausted, Loaded
from nonet.pipelines.table_keys import key_from_text, text_of_key

pytestmark = pytest.mark.server


class Folder(LeaseMixin, Base):
    __tablename__ = "folders"
    path: Mapped[str] = mapped_column(sa.String(400), primary_key=True)


class File(LeaseMixin, Base):
    __tablename__ = "files"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(sa.String(400), index=True)


class Folders(Pipeline[Folder]):
    name = "folders"
    model = Folder
    related = (Children(File, File.folder),)

    async def process(self, row: Folder) -> Changes:
        return Changes().finish()


@pytest.mark.parametrize("max_attempts", [1, 10])
async def test_a_load_whose_commit_was_confirmed_too_late_is_repeated(
    database: RowDatabase, add: Any, max_attempts: int
) -> None:
    """The repetition counts no further attempt, and gets the related rows that it leased."""
    [fleet] = await add(Fleet())
    [child] = await add(Instance(fleet_id=fleet))
    leasing = leasing_of(database, Fleets, max_attempts=max_attempts)
    [lease] = await fetch(leasing)
    for _ in range(2):
        loaded = await leasing.load(lease)
        assert isinstance(loaded, Loaded)
        assert (loaded.row.attempts, lease.attempt) == (1, 1)
    assert [held.keys for held in lease.related] == [(child,)]


async def test_a_new_attempt_gets_the_related_rows_of_a_dead_one(
    database: RowDatabase, add: Any
) -> None:
    """It does not wait for the end of their leases, which may be later than that of the row."""
    [instance] = await add(Instance())
    [job, other] = await add(Job(instance_id=instance), Job(instance_id=instance))
    jobs = leasing_of(database, Jobs)
    [lease] = await fetch(jobs, 1)
    await jobs.load(lease)
    ended = datetime.now(UTC) - timedelta(seconds=1)
    await change(database, Job, job, lease_expires_at=ended)
    [again] = [each for each in await fetch(jobs) if each.key == job]
    assert isinstance(await jobs.load(again), Loaded)
    assert (await row_of(database, Instance, instance)).lease_token == again.token
    await jobs.give_up(lease)  # the dead one was only frozen
    assert (await row_of(database, Instance, instance)).lease_token == again.token
    assert other != job


async def test_an_exhausted_row_frees_the_related_rows_of_its_attempts(
    database: RowDatabase, add: Any
) -> None:
    """Also those that another transaction has locked: no later attempt would free them."""
    [fleet] = await add(Fleet())
    [child] = await add(Instance(fleet_id=fleet))
    leasing = leasing_of(database, Fleets, max_attempts=1)
    [lease] = await fetch(leasing)
    assert isinstance(await leasing.load(lease, alone=True), Loaded)
    ended = datetime.now(UTC) - timedelta(seconds=1)
    await change(database, Fleet, fleet, lease_expires_at=ended)
    [lease] = await fetch(leasing)
    locked = sa.select(Instance.id).where(Instance.id == child).with_for_update()
    async with database.engine.begin() as scan:  # as a fetch has its rows, for a moment
        await scan.execute(locked)
        loading = asyncio.create_task(leasing.load(lease))
        await asyncio.wait({loading}, timeout=0.5)
    assert isinstance(await loading, Exhausted)
    assert [each.key for each in await fetch(leasing_of(database, Instances))] == [child]


async def test_a_touch_during_the_burial_survives(database: RowDatabase, add: Any) -> None:
    """So does a resubmission of the letter, which may be quicker than the end of the burial."""
    [key] = await add(Instance(attempts=-2))
    leasing = leasing_of(database, Instances)
    [lease] = await fetch(leasing)
    assert isinstance(await leasing.load(lease), Exhausted)
    async with database.transaction() as session:
        await Rows(Instance).resume(session, [key])
    await leasing.bury(lease)
    row = await row_of(database, Instance, key)
    assert (row.due_at is not None, row.attempts, row.lease_token) == (True, 0, None)


async def test_a_resubmission_during_an_attempt_takes_nothing_back_twice(
    database: RowDatabase, add: Any
) -> None:
    """Attempts that were set to 0 meanwhile stay 0: below that a row counts as exhausted."""
    [key] = await add(Instance())
    leasing = leasing_of(database, Instances)
    for hand_back in ("fail", "release"):
        await change(database, Instance, key, attempts=3)
        [lease] = await fetch(leasing)
        await leasing.load(lease)
        async with database.transaction() as session:
            await Rows(Instance).resume(session, [key])
        if hand_back == "fail":
            await leasing.fail(lease, 0.0, [], counts=False)
        else:
            await leasing.release([lease])
        assert (await row_of(database, Instance, key)).attempts == 0


async def test_a_wait_is_measured_by_the_clock_of_the_database(
    database: RowDatabase, add: Any
) -> None:
    await add(Instance(due_at=datetime.now(UTC) - timedelta(seconds=100)))
    [lease] = await fetch(leasing_of(database, Instances))
    assert 100 <= lease.waited < 3600


async def test_a_cancelled_hold_leaves_no_lease(
    database: RowDatabase, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the caller gives up right after the rows were leased."""
    [key] = await add(Instance())
    leave = AsyncSessionTransaction.__aexit__

    async def cancelled(self: Any, *error: Any) -> None:
        await leave(self, *error)
        monkeypatch.undo()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with database.sessions() as session:

        async def holding() -> None:
            async with Rows(Instance).hold(session, [key]):
                raise AssertionError("the block must not begin")

        monkeypatch.setattr(AsyncSessionTransaction, "__aexit__", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(holding())
    assert (await row_of(database, Instance, key)).lease_token is None


async def test_a_hold_that_lost_one_row_releases_the_others(
    database: RowDatabase, add: Any
) -> None:
    lost, other = await add(Instance(), Instance())
    async with database.sessions() as session:
        with pytest.raises(LeaseLostError):
            async with Rows(Instance).hold(session, [lost, other]):
                await change(database, Instance, lost, lease_token="taken")
    assert (await row_of(database, Instance, other)).lease_token is None
    assert (await row_of(database, Instance, lost)).lease_token == "taken"


async def test_rows_with_long_keys_have_related_rows(database: RowDatabase) -> None:
    """The owner of the related rows fits its column, whatever the key is."""
    path = "/".join(["folder"] * 50)
    async with database.transaction() as session:
        session.add_all([Folder(path=path), File(id=uuid.uuid4(), folder=path)])
    pipelines = on(database, Folders)
    leasing = pipelines.leasing(pipelines["folders"])
    [lease] = await fetch(leasing)
    assert isinstance(await leasing.load(lease), Loaded)
    [held] = lease.related
    async with database.sessions() as session:
        owner = await session.scalar(sa.select(File.lease_owner))
    assert owner == held.owner
    assert owner.startswith("folders:")


@pytest.mark.parametrize(
    "key",
    [
        *(17, "a:b c", uuid.UUID(int=7), b"\x00\xff", Decimal("1.50"), date(2026, 1, 2)),
        datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    ],
    ids=lambda key: type(key).__name__,
)
def test_keys_are_written_as_text_and_read_again(key: Any) -> None:
    types = {
        int: sa.Integer(),
        str: sa.String(9),
        uuid.UUID: sa.Uuid(),
        bytes: sa.LargeBinary(),
        Decimal: sa.Numeric(),
        date: sa.Date(),
        datetime: sa.DateTime(timezone=True),
    }
    table = sa.Table("t", sa.MetaData(), sa.Column("id", types[type(key)], primary_key=True))
    assert key_from_text(table, text_of_key(key)) == key
