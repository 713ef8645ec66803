"""Which rows a pipeline may lease, and what a lease protects: D1 to D22 of the requirements."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import PAST, change, count
from row_tables import Event, Fleet, Fleets, Instance, Instances, Job, Jobs, on

from nonet import Size
from nonet.base.errors import ConflictError, LeaseLostError, RowsBusy
from nonet.pipelines import NOW, Changes, RowDatabase, Rows, RowTask
from nonet.pipelines.dispatch import dispatch, take
from nonet.pipelines.lease import ALONE, WITH_OTHERS, Exhausted, Lease, Loaded, RelatedBusy, Stale
from nonet.pipelines.leasing import Leasing

NOTHING = Changes()


class InstanceTask(RowTask):
    size = Size.SMALL


def leasing_of(database: RowDatabase, cls: Any, *others: Any, **attributes: Any) -> Leasing:
    pipelines = on(database, cls, *others, **attributes)
    return pipelines.leasing(pipelines[cls.name])


async def row_of(database: RowDatabase, model: Any, key: Any) -> Any:
    async with database.sessions() as session:
        return await session.get_one(model, key)


async def fetch(leasing: Leasing, limit: int = 100) -> list[Lease]:
    return await leasing.fetch(limit, time.monotonic())


async def loaded(leasing: Leasing) -> Lease:
    """Fetch the only row, and load it."""
    [lease] = await fetch(leasing)
    assert isinstance(await leasing.load(lease), Loaded)
    return lease


async def apply(leasing: Leasing, lease: Lease, changes: Changes = NOTHING, **options: Any) -> None:
    async def nothing(session: Any) -> None:
        pass

    tries = options.pop("tries", [])
    await leasing.apply(lease, None, changes, 60.0, tries, options.pop("within", nothing))


FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


async def test_d01_only_free_or_own_rows_are_taken_the_oldest_first(
    database: RowDatabase, add: Any
) -> None:
    """A fetch takes due rows that are free, or its own with an ended lease, by due time."""
    held = {"lease_token": "t", "lease_owner": "instances"}
    foreign = {"lease_token": "t", "lease_owner": "other"}
    recently = datetime.now(UTC) - timedelta(seconds=60)
    rows = [
        Instance(due_at=PAST + timedelta(days=3)),
        Instance(due_at=PAST),
        Instance(due_at=FUTURE),
        Instance(due_at=None),
        Instance(due_at=PAST, **held, lease_expires_at=FUTURE),
        Instance(due_at=PAST + timedelta(days=1), **held, lease_expires_at=recently),
        Instance(due_at=PAST, **foreign, lease_expires_at=recently),
        Instance(due_at=PAST, status="done"),
    ]
    keys = await add(*rows)

    class Ready(Instances):
        def select(self) -> Any:
            return sa.select(Instance).where(Instance.status == "new")

    leases = await fetch(leasing_of(database, Ready), 10)
    assert [lease.key for lease in leases] == [keys[1], keys[5], keys[0]]


async def test_d01_a_row_is_free_again_when_its_owner_stays_away(
    database: RowDatabase, add: Any
) -> None:
    """After ten minutes any pipeline takes over the row of an owner that is gone."""
    long_ago = datetime.now(UTC) - timedelta(minutes=11)
    [key] = await add(Instance(lease_token="t", lease_owner="gone", lease_expires_at=long_ago))
    assert [lease.key for lease in await fetch(leasing_of(database, Instances))] == [key]


async def test_d02_d03_fetches_at_once_share_no_row_and_each_has_one_token(
    database: RowDatabase, add: Any
) -> None:
    """Concurrent fetches get different rows; the leases are committed, one token a fetch."""
    await add(*(Instance() for _ in range(40)))
    leasing = leasing_of(database, Instances)
    fetched = await asyncio.gather(*(fetch(leasing, 10) for _ in range(4)))
    keys = [lease.key for leases in fetched for lease in leases]
    assert len(keys) == len(set(keys))
    for leases in fetched:
        assert len({lease.token for lease in leases}) <= 1
        for lease in leases:
            row = await row_of(database, Instance, lease.key)
            assert (row.lease_token, row.lease_owner) == (lease.token, "instances")


async def test_d07_d08_due_at_replaces_the_interval_and_the_flag_to_skip_it(
    database: RowDatabase, add: Any
) -> None:
    """A processed row is due after its interval; a touch makes it due at once."""
    [key] = await add(Instance())
    leasing = leasing_of(database, Instances)
    lease = await loaded(leasing)
    await apply(leasing, lease)
    row = await row_of(database, Instance, key)
    assert row.due_at - row.last_processed_at == timedelta(seconds=60)
    assert await fetch(leasing) == []
    async with database.transaction() as session:
        assert await Rows(Instance).touch(session, [key, 4711]) == 1
    assert [lease.key for lease in await fetch(leasing)] == [key]


async def test_d09_another_order_needs_an_index(database: RowDatabase, add: Any) -> None:
    """The author's order is kept; see the refused registrations for one without an index."""
    keys = await add(*(Instance(fleet_id=number) for number in (2, 3, 1)))

    class ByFleet(Instances):
        def select(self) -> Any:
            return sa.select(Instance).order_by(Instance.fleet_id.desc())

    leases = await fetch(leasing_of(database, ByFleet))
    assert [lease.key for lease in leases] == [keys[1], keys[0], keys[2]]


async def test_d13_a_stale_result_changes_nothing(database: RowDatabase, add: Any) -> None:
    """With another token, neither load nor apply changes a row, an event or a related row."""
    [fleet] = await add(Fleet())
    [child] = await add(Instance(fleet_id=fleet))
    leasing = leasing_of(database, Fleets)
    lease = await loaded(leasing)
    await change(database, Fleet, fleet, lease_token="other")
    changes = Changes(status="done").update(Instance, child, {"status": "done"})
    changes.insert(Event, {"text": "done"}).touch(Instance, child)

    async def within(session: Any) -> None:
        raise AssertionError("it is stale")

    with pytest.raises(Stale):
        await apply(leasing, lease, changes, within=within)
    with pytest.raises(Stale):
        await leasing.load(lease)
    assert (await row_of(database, Fleet, fleet)).status == "new"
    assert (await row_of(database, Instance, child)).status == "new"
    assert await count(database, Event) == 0


async def test_d15_an_apply_releases_everything_at_one_instant(
    database: RowDatabase, add: Any
) -> None:
    """All times of one apply are the same, and the row and its related rows are free."""
    [fleet] = await add(Fleet())
    children = await add(Instance(fleet_id=fleet), Instance(fleet_id=fleet))
    leasing = leasing_of(database, Fleets)
    lease = await loaded(leasing)
    changes = Changes(status="done").finish()
    changes.update(Instance, children, {"last_processed_at": NOW, "status": "seen"})
    changes.insert(Event, {"text": "done", "at": NOW})  # a column without a time zone
    await apply(leasing, lease, changes)
    row = await row_of(database, Fleet, fleet)
    assert (row.status, row.due_at, row.lease_token, row.lease_owner) == ("done", None, None, None)
    assert (row.attempts, row.lease_expires_at) == (0, None)
    for key in children:
        child = await row_of(database, Instance, key)
        assert (child.lease_token, child.lease_owner, child.status) == (None, None, "seen")
        assert child.last_processed_at == row.last_processed_at
    async with database.sessions() as session:
        at = (await session.scalars(sa.select(Event.at))).one()
    assert abs(at.replace(tzinfo=UTC) - row.last_processed_at) < timedelta(seconds=1)


async def test_d16_all_children_or_none_and_the_parent_wins(
    database: RowDatabase, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent that misses one child holds none, keeps its owner, and is served before others."""
    monkeypatch.setattr("nonet.pipelines.leasing.again_after", lambda _: 600.0)
    [fleet] = await add(Fleet())
    free, busy = await add(Instance(fleet_id=fleet), Instance(fleet_id=fleet))
    parent = leasing_of(database, Fleets, Instances)
    child = leasing_of(database, Instances, Fleets)
    await change(database, Fleet, fleet, due_at=PAST)
    await change(database, Instance, free, due_at=FUTURE)
    [leased] = await fetch(child)
    await child.load(leased)
    [lease] = await fetch(parent)
    with pytest.raises(RelatedBusy):
        await parent.load(lease)
    await parent.wait(lease)
    row = await row_of(database, Fleet, fleet)
    assert (row.lease_owner, row.lease_token, row.attempts) == ("fleets", None, 0)
    assert (await row_of(database, Instance, free)).lease_token is None
    await change(database, Instance, free, due_at=PAST)
    assert await fetch(child) == []  # left to the parent, however long it has been due
    assert await fetch(parent) == []
    await apply(child, leased, Changes().again(0))
    assert await fetch(child) == []
    [lease] = await fetch(parent)  # the release has woken it
    assert isinstance(await parent.load(lease), Loaded)
    await apply(parent, lease, Changes().finish())
    assert {each.key for each in await fetch(child)} == {free, busy}


async def test_d17_one_main_row_at_a_time_has_a_shared_row(database: RowDatabase, add: Any) -> None:
    """Of two jobs that need one instance, exactly one leases it."""
    [instance] = await add(Instance())
    await add(Job(instance_id=instance), Job(instance_id=instance), Job())
    jobs = leasing_of(database, Jobs)
    first, second, alone = await fetch(jobs)
    assert isinstance(await jobs.load(first), Loaded)
    assert (await row_of(database, Instance, instance)).lease_owner == f"jobs:{first.key}"
    with pytest.raises(RelatedBusy):
        await jobs.load(second)
    assert isinstance(await jobs.load(alone), Loaded)
    await apply(jobs, first)
    assert isinstance(await jobs.load(second), Loaded)


async def test_d18_a_child_takes_over_its_own_stale_row_while_the_parent_waits(
    database: RowDatabase, add: Any
) -> None:
    """Only its own pipeline may end what it began, so it does not wait for the parent."""
    [fleet] = await add(Fleet())
    [stale] = await add(Instance(fleet_id=fleet))
    parent = leasing_of(database, Fleets, Instances)
    child = leasing_of(database, Instances, Fleets)
    await fetch(child)
    [lease] = await fetch(parent)
    with pytest.raises(RelatedBusy):
        await parent.load(lease)
    await parent.wait(lease)
    assert await fetch(child) == []
    recently = datetime.now(UTC) - timedelta(seconds=30)
    await change(database, Instance, stale, lease_expires_at=recently)
    assert [each.key for each in await fetch(child)] == [stale]


async def test_d19_a_lost_lease_frees_its_related_rows(database: RowDatabase, add: Any) -> None:
    """Related rows with the token and owner of a stale result are released, others are not."""
    [fleet] = await add(Fleet())
    mine, taken = await add(Instance(fleet_id=fleet), Instance(fleet_id=fleet))
    leasing = leasing_of(database, Fleets)
    lease = await loaded(leasing)
    await change(database, Fleet, fleet, lease_token="other")
    await change(database, Instance, taken, lease_token="other")
    await leasing.give_up(lease)
    assert (await row_of(database, Instance, mine)).lease_token is None
    assert (await row_of(database, Instance, taken)).lease_token == "other"


async def test_a_touch_during_a_lease_survives_the_result(database: RowDatabase, add: Any) -> None:
    """The row is due at once after the apply, also if the result would have finished it."""
    [key] = await add(Instance())
    leasing = leasing_of(database, Instances)
    lease = await loaded(leasing)
    async with database.transaction() as session:
        await Rows(Instance).touch(session, [key])
    await apply(leasing, lease, Changes().finish())
    assert [each.key for each in await fetch(leasing)] == [key]


async def test_a_result_whose_commit_was_confirmed_too_late_is_recognised(
    database: RowDatabase, add: Any
) -> None:
    """A repeated apply finds that the earlier try was committed, and writes nothing twice."""
    await add(Instance())
    leasing = leasing_of(database, Instances)
    lease = await loaded(leasing)
    tries: list[datetime] = []
    changes = Changes().insert(Event, {"text": "done"})
    await apply(leasing, lease, changes, tries=tries)
    await apply(leasing, lease, changes, tries=tries)
    assert await count(database, Event) == 1
    with pytest.raises(Stale):
        await apply(leasing, lease, changes)


async def test_only_deaths_alone_are_counted(database: RowDatabase, add: Any) -> None:
    """A row that died alone max_attempts times is exhausted; a death among others is no attempt."""
    [key] = await add(Instance())
    leasing = leasing_of(database, Instances, max_attempts=2)
    for attempt, suspect in ((1, 0), (1, WITH_OTHERS), (2, ALONE)):
        [lease] = await fetch(leasing)
        assert lease.suspect == suspect
        loaded = await leasing.load(lease, alone=suspect > 0)
        assert isinstance(loaded, Loaded)
        assert loaded.row.attempts == attempt
        await change(database, Instance, key, lease_expires_at=PAST)
    [lease] = await fetch(leasing)
    found = await leasing.load(lease)
    assert isinstance(found, Exhausted)
    assert found.attempts == 2
    await leasing.put_off(lease, 0)
    [lease] = await fetch(leasing)
    assert await leasing.load(lease) == found  # the same series, so the same letter
    await leasing.bury(lease)
    row = await row_of(database, Instance, key)
    assert (row.due_at, row.attempts, row.lease_token) == (None, 0, None)


async def test_a_failed_row_waits_and_keeps_its_attempts(database: RowDatabase, add: Any) -> None:
    """After a failure the row is due again after the delay; handing back uses no attempt."""
    [key] = await add(Instance())
    leasing = leasing_of(database, Instances)
    lease = await loaded(leasing)
    await leasing.fail(lease, 30.0, [])
    row = await row_of(database, Instance, key)
    assert (row.attempts, row.lease_token) == (1, None)
    assert row.due_at - row.last_processed_at == timedelta(seconds=30)
    await change(database, Instance, key, due_at=PAST)
    lease = await loaded(leasing)
    await leasing.release([lease])
    row = await row_of(database, Instance, key)
    assert (row.attempts, row.suspect, row.lease_token, row.due_at) == (1, 0, None, PAST)


async def test_d21_a_program_holds_rows_or_learns_that_they_are_busy(
    database: RowDatabase, add: Any
) -> None:
    """A hold leases all rows or none, excludes pipelines, and commits with its release."""
    one, two = await add(Instance(), Instance())
    leasing = leasing_of(database, Instances)
    rows = Rows(Instance)
    async with database.sessions() as session:
        async with rows.hold(session, [two, one]):
            assert await fetch(leasing) == []
            await session.execute(sa.update(Instance).values(status="held"))
        assert not session.in_transaction()
        [first, _] = await fetch(leasing, 2)
        with pytest.raises(RowsBusy, match="in use"):
            async with rows.hold(session, [one, two], wait=0):
                pass
        with pytest.raises(ConflictError, match="no row 4711"):
            async with rows.hold(session, [4711], wait=0):
                pass
    assert first.key == one
    assert (await row_of(database, Instance, one)).status == "held"


async def test_a_hold_that_took_too_long_changes_nothing(database: RowDatabase, add: Any) -> None:
    """The end of the block checks the lease in the same transaction; an error releases it."""
    [key] = await add(Instance())
    rows = Rows(Instance)
    async with database.sessions() as session:
        with pytest.raises(LeaseLostError):
            async with rows.hold(session, [key]):
                async with database.sessions.begin() as other:
                    await other.execute(sa.update(Instance).values(lease_token="taken"))
                await session.execute(sa.update(Instance).values(status="late"))
        await change(database, Instance, key, lease_token=None)
        with pytest.raises(ZeroDivisionError):
            async with rows.hold(session, [key]):
                raise ZeroDivisionError
        await session.execute(sa.select(1))
        with pytest.raises(ConflictError, match="open transaction"):
            async with rows.hold(session, [key]):
                pass
    row = await row_of(database, Instance, key)
    assert (row.status, row.lease_token) == ("new", None)


async def test_a_row_is_dispatched_again_if_its_task_is_lost(
    database: RowDatabase, add: Any
) -> None:
    """A task that never came, as after a flush of Redis, in a minute; one that died, sooner."""
    (key,) = await add(Instance())
    leasing = leasing_of(database, Instances, process_as=InstanceTask)
    [dispatched] = await dispatch(leasing, 10)
    assert dispatched.key == key and await dispatch(leasing, 10) == []
    await change(database, Instance, key, due_at=PAST)  # a minute later
    assert await dispatch(leasing, 10) == [dispatched]
    assert await take(leasing, key, dispatched.series, time.monotonic()) is not None
    assert await take(leasing, key, dispatched.series, time.monotonic()) is None
    row = await row_of(database, Instance, key)
    assert row.due_at == row.lease_expires_at
    await change(database, Instance, key, due_at=PAST, lease_expires_at=PAST)  # its worker died
    assert await dispatch(leasing, 10) == [dispatched]
