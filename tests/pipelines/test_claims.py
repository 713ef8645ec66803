"""Rows that wait for their related rows: their place, their claims, and what wakes them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pipelines.hosting import PAST, change, count, hosted, until
from pipelines.test_leasing import FUTURE, apply, fetch, leasing_of, row_of
from row_tables import Fleet, Fleets, Instance, Instances, Job, Jobs, on

from nonet import Nonet
from nonet.pipelines import Changes, RowDatabase, Rows, backoff, hints
from nonet.pipelines.lease import Lease, Loaded, RelatedBusy
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.related_leases import RelatedLeases

pytestmark = pytest.mark.server


async def waits(leasing: Leasing, lease: Lease) -> None:
    """Let a row try in vain to lease its related rows."""
    with pytest.raises(RelatedBusy):
        await leasing.load(lease)
    await leasing.wait(lease)


async def test_a_waiting_row_keeps_its_place(database: RowDatabase, add: Any) -> None:
    """It keeps its due time and the time since when it waits, however often it tries."""
    [instance] = await add(Instance())
    await add(Job(instance_id=instance, due_at=PAST), Job(instance_id=instance))
    jobs = leasing_of(database, Jobs)
    [holder] = await fetch(jobs, 1)
    assert isinstance(await jobs.load(holder), Loaded)
    [lease] = await fetch(jobs)
    await waits(jobs, lease)
    first = await row_of(database, Job, lease.key)
    await change(database, Job, lease.key, lease_expires_at=PAST)
    [lease] = await fetch(jobs)
    assert lease.waiting_since == first.waiting_since
    await waits(jobs, lease)
    again = await row_of(database, Job, lease.key)
    assert (again.due_at, again.waiting_since) == (first.due_at, first.waiting_since)
    await apply(jobs, holder)
    [lease] = await fetch(jobs)
    assert isinstance(await jobs.load(lease), Loaded)
    assert (await row_of(database, Job, lease.key)).waiting_since is None


async def test_a_released_row_goes_to_who_waits_longest(database: RowDatabase, add: Any) -> None:
    """A job that begins to wait later, or has not waited yet, does not overtake another one."""
    [instance] = await add(Instance())
    await add(*(Job(instance_id=instance, due_at=PAST + timedelta(days=n)) for n in range(4)))
    jobs = leasing_of(database, Jobs)
    holder, first, second, newest = await fetch(jobs)
    assert isinstance(await jobs.load(holder), Loaded)
    for lease in (first, second):
        await waits(jobs, lease)
    await apply(jobs, holder)
    await waits(jobs, newest)
    [lease] = await fetch(jobs)  # only this one was woken
    assert lease.key == first.key
    assert isinstance(await jobs.load(lease), Loaded)


async def test_a_shared_row_goes_by_age_and_a_child_leaves_itself_to_its_parent(
    database: RowDatabase, add: Any
) -> None:
    """An instance that was due before a job began to wait is processed before the job."""
    instances = leasing_of(database, Instances, Fleets, Jobs)
    waiting = {"waiting_since": datetime.now(UTC), "lease_owner": "any"}
    recently = datetime.now(UTC) - timedelta(minutes=5)
    [old, new] = await add(Instance(due_at=recently), Instance(due_at=datetime.now(UTC)))
    jobs = await add(*(Job(instance_id=key, due_at=FUTURE, **waiting) for key in (old, new)))
    assert [lease.key for lease in await fetch(instances)] == [old]
    [fleet] = await add(Fleet(due_at=FUTURE, **waiting))
    await add(Instance(fleet_id=fleet, due_at=recently))
    assert await fetch(instances) == []
    long_ago = datetime.now(UTC) - timedelta(minutes=11)
    await change(database, Job, jobs[1], waiting_since=long_ago, lease_expires_at=long_ago)
    assert [lease.key for lease in await fetch(instances)] == [new]  # its pipeline is gone


async def test_a_waiting_row_looks_at_its_related_rows_once_more(
    database: RowDatabase, add: Any
) -> None:
    """A release after its try, and before its wait, had no row to wake."""
    [instance] = await add(Instance())
    await add(Job(instance_id=instance, due_at=PAST), Job(instance_id=instance))
    jobs = leasing_of(database, Jobs)
    holder, late = await fetch(jobs)
    assert isinstance(await jobs.load(holder), Loaded)
    with pytest.raises(RelatedBusy):
        await jobs.load(late)
    await apply(jobs, holder, Changes().finish())
    await jobs.wait(late)
    assert [lease.key for lease in await fetch(jobs)] == [late.key]


@pytest.mark.parametrize("end", ["fail", "exhaust", "release", "give_up", "apply, repeated"])
async def test_each_end_of_a_row_wakes_a_row_that_waits(
    database: RowDatabase, add: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It frees the row and hints its table; so does the repetition of an end that was committed."""
    sent: list[set[str]] = []
    monkeypatch.setattr(hints, "send_soon", sent.append)
    [instance] = await add(Instance())
    await add(Job(instance_id=instance, due_at=PAST), Job(instance_id=instance))
    jobs = leasing_of(database, Jobs)
    holder, late = await fetch(jobs)
    assert isinstance(await jobs.load(holder), Loaded)
    await waits(jobs, late)
    if end == "fail":
        await jobs.fail(holder, 60.0, [])
    elif end == "release":
        await change(database, Job, holder.key, due_at=FUTURE)
        await jobs.release([holder])
    elif end == "apply, repeated":
        tries: list[datetime] = []
        await apply(jobs, holder, tries=tries)
        await change(database, Job, late.key, lease_expires_at=FUTURE)
        await apply(jobs, holder, tries=tries)
    else:
        await getattr(jobs, end)(holder)
        await change(database, Job, holder.key, due_at=FUTURE)
    assert "jobs" in set[str]().union(*sent)
    assert [lease.key for lease in await fetch(jobs)] == [late.key]


async def test_rows_that_wait_are_found_though_no_release_wakes_them(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process looks when a row tries again by itself, however rarely it polls."""
    monkeypatch.setattr(backoff, "_STEPS", (3600.0,))
    monkeypatch.setattr(RelatedLeases, "wake", nothing)
    [instance] = await add(Instance(due_at=FUTURE))
    await add(*(Job(instance_id=instance) for _ in range(2)))
    may_end, runs = asyncio.Event(), list[int]()

    class Waiting(Jobs):
        async def process(self, row: Job) -> Changes:
            runs.append(row.id)
            await may_end.wait()
            return Changes().finish()

    async with hosted(nonet, on(database, Waiting)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes["waiting"])
        may_end.set()
        await until(lambda: len(runs) == 2)


async def nothing(*arguments: Any) -> None:
    """Do nothing."""


async def test_a_hint_is_followed_by_more_than_one_fetch(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch skips a row that is locked in this moment, and the next one finds it."""
    monkeypatch.setattr(backoff, "_STEPS", (0.05, 3600.0))
    fetch, are_locked = Leasing.fetch, list[bool]()

    async def skipping(self: Leasing, limit: int, since: float) -> list[Lease]:
        return [] if are_locked and are_locked.pop() else await fetch(self, limit, since)

    monkeypatch.setattr(Leasing, "fetch", skipping)
    async with hosted(nonet, on(database, Instances)) as (host, _, _):
        await until(lambda: host.runners[0].tally.fetches == 2)  # the next one is in an hour
        [key] = await add(Instance())
        are_locked.append(True)
        host.runners[0].hinted.set()
        await until(lambda: count(database, Instance, id=key, status="done"))


@pytest.mark.usefixtures("only_hints")
async def test_a_row_that_is_touched_while_it_runs_is_due_at_once_after_it(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """The touch was skipped, as the row was leased; its release hints the pipeline again."""
    [key] = await add(Instance())
    runs = 0

    class Touched(Instances):
        async def process(self, row: Instance) -> Changes:
            nonlocal runs
            runs += 1
            if runs == 1:
                fetches = host.runners[0].tally.fetches
                async with database.transaction() as session:
                    await rows.touch(session, [key])
                await until(lambda: host.runners[0].tally.fetches > fetches)
            return Changes().finish()

    rows = Rows(Instance)
    async with hosted(nonet, on(database, Touched)) as (host, _, _):
        await until(lambda: runs == 2)
