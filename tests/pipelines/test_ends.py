"""How a lease ends in a process: its row is settled, or it is lost, and never both."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import Note, count, hosted, set_grace, until
from row_tables import Fleet, Fleets, Instance, Instances, on

from nonet import Nonet, StopRetrying
from nonet.base.errors import ServerUnreachableError
from nonet.daemon.service import ExitCode
from nonet.pipelines import Changes, RowDatabase
from nonet.pipelines.burial import Letters
from nonet.pipelines.leasing import Leasing

pytestmark = pytest.mark.server


async def test_an_applied_row_is_never_stale(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks wait for Redis longer than a lease, and the thread finds that the lease is gone."""
    await add(Instance())
    stale: list[int] = []
    submit, ends_at = nonet.client.submit, time.monotonic() + 6

    async def late(*arguments: Any, **options: Any) -> Any:
        if time.monotonic() < ends_at:
            raise ServerUnreachableError("Redis does not answer")
        return await submit(*arguments, **options)

    monkeypatch.setattr(nonet.client, "submit", late)

    class Submitting(Instances):
        lease = 2.0

        async def process(self, row: Instance) -> Changes:
            return Changes(status="done").finish().submit(Note())

        async def on_stale(self, row: Instance, changes: Changes | None) -> None:
            stale.append(row.id)

    async with hosted(nonet, on(database, Submitting)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes["done"])
    assert not stale
    assert len([status async for status in nonet.live(task="Note")]) == 1


async def test_an_invalid_task_fails_before_the_apply(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    [key] = await add(Instance())

    class Unregistered(Note):
        pass

    class Submitting(Instances):
        async def process(self, row: Instance) -> Changes:
            return Changes(status="done").finish().submit(Unregistered())

    async with hosted(nonet, on(database, Submitting)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes["failed"])
    assert await count(database, Instance, id=key, status="new", attempts=1) == 1


async def test_a_slow_dead_letter_costs_no_lease(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The related rows are free meanwhile."""
    [fleet] = await add(Fleet())
    await add(Instance(fleet_id=fleet))
    write = Letters.write

    async def slow(*arguments: Any) -> float | None:
        assert await count(database, Instance, lease_token=None) == 1
        await asyncio.sleep(2)
        return await write(*arguments)

    monkeypatch.setattr(Letters, "write", slow)

    class Failing(Fleets):
        lease = 9.0

        async def process(self, row: Fleet) -> Changes:
            raise StopRetrying("no such fleet")

    async with hosted(nonet, on(database, Failing)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes)
        assert host.runners[0].tally.outcomes == {"dead": 1}


async def test_a_row_that_a_program_locks_costs_no_other_lease(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """A transaction locks one row for longer than its lease; the other leases are renewed."""
    locked, other = await add(Instance(), Instance())
    began, stale = set[int](), list[int]()
    may_end = asyncio.Event()

    class Long(Instances):
        lease = 9.0  # a busy machine may be silent for some seconds

        async def process(self, row: Instance) -> Changes:
            began.add(row.id)
            await may_end.wait()
            return Changes(status="done").finish()

        async def on_stale(self, row: Instance, changes: Changes | None) -> None:
            stale.append(row.id)

    async with hosted(nonet, on(database, Long)):
        await until(lambda: len(began) == 2)
        async with database.sessions.begin() as session:
            lock = sa.select(Instance).where(Instance.id == locked).with_for_update()
            await session.execute(lock)
            await until(lambda: stale)
            await asyncio.sleep(3)  # the other lease, which is as old, would be lost by now
        may_end.set()
        await until(lambda: count(database, Instance, id=other, status="done"))
    assert stale == [locked]


async def test_rows_that_refer_to_a_row_do_not_hold_up_its_renewal(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """PostgreSQL locks a row weakly while a transaction has inserted a reference to it."""
    await add(Instance())
    began, may_end = asyncio.Event(), asyncio.Event()

    class Long(Instances):
        lease = 5.0

        async def process(self, row: Instance) -> Changes:
            began.set()
            await may_end.wait()
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Long)) as (host, _, _):
        await began.wait()
        async with database.sessions.begin() as session:
            await session.execute(sa.select(Instance).with_for_update(read=True, key_share=True))
            await asyncio.sleep(7)  # longer than the lease
            may_end.set()
            await until(lambda: host.runners[0].tally.outcomes)
    assert host.runners[0].tally.outcomes == {"done": 1}


async def test_a_row_that_cannot_be_loaded_has_failed(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """An error of the author's code before process() counts, and becomes a dead letter, too."""
    [key] = await add(Fleet(attempts=1))

    class Odd(Fleets):
        max_attempts = 2

        def needs_related(self, row: Fleet) -> bool:
            raise ValueError("an odd fleet")

    async with hosted(nonet, on(database, Odd)):
        await until(lambda: count(database, Fleet, id=key, due_at=None, attempts=0))
    [letter] = await (await nonet.stores.dead_letters()).list()
    assert (letter.error_type, letter.retry_count) == ("ValueError", 1)


async def test_a_row_that_swallows_its_cancellation_has_failed(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """What it returns after its timeout is not applied."""
    [key] = await add(Instance())

    class Deaf(Instances):
        timeout = 0.1

        async def process(self, row: Instance) -> Changes:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Deaf)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes)
        assert host.runners[0].tally.outcomes == {"failed": 1}
    assert await count(database, Instance, id=key, status="new", attempts=1) == 1


async def test_rows_of_a_fetch_that_was_overtaken_by_a_stop_are_released(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processing does not begin, and no attempt is counted."""
    await add(Instance(), Instance())
    fetch, stopping = Leasing.fetch, list[Any]()

    async def overtaken(self: Leasing, limit: int, since: float) -> Any:
        found = await fetch(self, limit, since)
        stopping[0].request()
        return found

    monkeypatch.setattr(Leasing, "fetch", overtaken)
    pipelines = on(database, Instances)
    async with hosted(nonet, pipelines) as (host, stop, running):
        stopping.append(stop)
        assert await running == ExitCode.OK
        assert not host.runners[0].tally.outcomes
    assert await count(database, Instance, lease_token=None, attempts=0, status="new") == 2


async def test_a_stop_does_not_cut_off_an_apply(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(Instance())
    apply, applying = Leasing.apply, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> None:
        applying.set()
        await asyncio.sleep(0.5)
        await apply(*arguments, **options)

    monkeypatch.setattr(Leasing, "apply", slow)
    set_grace(nonet, monkeypatch, 0.0)
    async with hosted(nonet, on(database, Instances)) as (_, stop, running):
        await applying.wait()
        stop.request()
        await running
    assert await count(database, Instance, status="done") == 1
