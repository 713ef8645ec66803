"""Rows whose process died: they run alone, and only what dies alone becomes a dead letter."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pipelines.hosting import PAST, count, hosted, until
from row_tables import Fleet, Fleets, Instance, Instances, on

from nonet import Nonet
from nonet.pipelines import Changes, RowDatabase, room
from nonet.pipelines.lease import WITH_OTHERS
from nonet.pipelines.leasing import Leasing

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


def test_a_suspect_gets_more_time_after_each_vain_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it runs also where all other rows are long, and most of the time they run."""
    now = 0.0
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now))
    rows: Any = room.RowAdmission()
    long, suspect = "a long row", "a suspect"
    rows.enter(long)
    for patience in (60, 120, 240):
        assert rows.reserve(suspect)
        now += patience - 1
        assert rows.overdue_suspect is None
        now += 1
        assert rows.overdue_suspect == suspect
        rows.give_up_waiting(suspect)
        now += 5 * patience - 1
        assert rows.admits("another row") and not rows.reserve(suspect)
        now += 1
    assert rows.reserve(suspect)
    assert not (rows.admits(suspect) or rows.admits("another row"))
    now += 400
    assert rows.overdue_suspect is None
    rows.leave(long)
    assert rows.admits(suspect)
    rows.enter(suspect)
    rows.leave(suspect)
    rows.enter(long)
    assert rows.reserve(suspect)
    now += 60
    assert rows.overdue_suspect == suspect


def test_pipelines_are_told_of_reservations_only() -> None:
    """They fetch then; the end of any other row costs them nothing."""
    rows: Any = room.RowAdmission()
    told = list[str]()
    rows.watch(lambda: told.append("reserved" if rows.is_reserved else "free"))
    rows.enter("a row")
    rows.leave("a row")
    rows.enter("another row")
    rows.reserve("a suspect")
    rows.leave("another row")
    rows.enter("a suspect")
    rows.leave("a suspect")
    assert told == ["reserved", "reserved", "free"]


@pytest.mark.parametrize("end", ["a lost lease", "an unexpected error"])
async def test_a_process_that_lives_makes_no_suspect(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It records so when it gives up a row, as soon as the database answers."""
    [key] = await add(Instance())

    async def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("a bug")

    async def no_more(*arguments: Any) -> list[Any]:
        return []

    class Lost(Instances):
        async def process(self, row: Instance) -> Changes:
            monkeypatch.setattr(Leasing, "fetch", no_more)
            if end == "an unexpected error":
                raise ValueError(end)
            [item] = host.runners[0]._running
            item.lose(end)
            await asyncio.sleep(60)
            return Changes()

    monkeypatch.setattr(Leasing, "fail", fail)
    async with hosted(nonet, on(database, Lost)) as (host, _, _):
        await until(lambda: host.runners[0].tally.outcomes["lost"])
    assert await count(database, Instance, id=key, attempts=1, suspect=0) == 1
