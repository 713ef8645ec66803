"""Rows whose process died: they run alone, and only what dies alone becomes a dead letter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipelines.hosting import PAST, count, hosted, until
from row_tables import Fleet, Fleets, Instance, Instances, on

from nonet import Nonet
from nonet.pipelines import Changes, RowDatabase, room
from nonet.pipelines.lease import WITH_OTHERS

pytestmark = pytest.mark.server
DEAD = {"lease_token": "dead", "lease_expires_at": PAST, "suspect": WITH_OTHERS}


async def test_a_suspect_runs_alone_in_its_process(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """Rows of all pipelines of the process end before it begins, and begin after its end."""
    suspects = await add(
        *(Instance(due_at=PAST, attempts=1, lease_owner="instances", **DEAD) for _ in range(2))
    )
    instances = await add(*(Instance() for _ in range(5)))
    await add(*(Fleet() for _ in range(5)))
    running, beside = set[Any](), list[Any]()

    async def process(self: Any, row: Any) -> Changes:
        running.add(row)
        is_suspect = isinstance(row, Instance) and row.id in suspects
        for _ in range(5):
            beside.extend(running - {row} if is_suspect else ())
            await asyncio.sleep(0.01)
        running.remove(row)
        return Changes(status="done").finish()

    async with hosted(nonet, on(database, Instances, Fleets, process=process)):
        await until(lambda: are_all_done(database, len(suspects + instances)))
    assert not beside
    assert await count(database, Instance, suspect=0, attempts=0) == 7


async def are_all_done(database: RowDatabase, instances: int) -> bool:
    done = [await count(database, model, status="done") for model in (Instance, Fleet)]
    return done == [instances, 5]


async def test_a_suspect_that_cannot_run_alone_holds_up_others_for_a_while_only(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that takes longer than that lets it wait, and other rows begin again."""
    monkeypatch.setattr(room, "ALONE_SECONDS", 0.0)
    [long] = await add(Instance())
    begun, may_end = set[int](), asyncio.Event()

    class Long(Instances):
        async def process(self, row: Instance) -> Changes:
            begun.add(row.id)
            if row.id == long:
                await may_end.wait()
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Long)):
        await until(lambda: begun)
        [suspect] = await add(Instance(due_at=PAST, lease_owner="instances", **DEAD))
        await until(lambda: count(database, Instance, id=suspect, lease_token=None))
        [other] = await add(Instance())
        await until(lambda: other in begun)
        assert suspect not in begun
        may_end.set()


async def test_a_lost_lease_makes_no_suspect(database: RowDatabase, add: Any, nonet: Nonet) -> None:
    """A process that lives says so as soon as the database answers."""
    [key] = await add(Instance())
    tries = 0

    class Lost(Instances):
        async def process(self, row: Instance) -> Changes:
            nonlocal tries
            tries += 1
            if tries == 1:
                [item] = host.runners[0]._running
                item.lose("the database was silent")
                await asyncio.sleep(60)
            assert not item_of(host).lease.suspect
            return Changes(status="done").finish()

    def item_of(host: Any) -> Any:
        [item] = host.runners[0]._running
        return item

    async with hosted(nonet, on(database, Lost)) as (host, _, _):
        await until(lambda: count(database, Instance, id=key, status="done"))
