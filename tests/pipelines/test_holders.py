"""No row has two holders, and no row waits forever: parents, children and shared rows at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from row_tables import Fleet, Fleets, Instance, Instances, Job, Jobs, on
from waits import WAIT_SECONDS

from nonet.pipelines import Changes, RowDatabase
from nonet.pipelines.lease import Lease, Loaded, NotSelected, RelatedBusy, Stale
from nonet.pipelines.leasing import Leasing

pytestmark = pytest.mark.server


class Actors:
    """Workers of several replicas, some of which die with the rows that they have.

    Attributes:
        problems: rows that had two holders.
    """

    def __init__(self, chance: random.Random, chance_of_death: float) -> None:
        self.problems: list[str] = []
        self._chance = chance
        self._chance_of_death = chance_of_death
        self._holders: Counter[tuple[str, int]] = Counter()

    async def work(self, leasing: Leasing, stop: asyncio.Event) -> None:
        """Fetch and process rows until all are done."""
        while not stop.is_set():
            for lease in await leasing.fetch(self._chance.randint(1, 3), time.monotonic()):
                await self._process(leasing, lease)
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _process(self, leasing: Leasing, lease: Lease) -> None:
        try:
            try:
                loaded = await leasing.load(lease)
            except RelatedBusy:
                await leasing.wait(lease)
                return
        except (Stale, NotSelected):
            return
        assert isinstance(loaded, Loaded)
        rows = [(held.table.name, key) for held in leasing.held(lease) for key in held.keys]
        self._holders.update(rows)
        self.problems += [str(row) for row in rows if self._holders[row] > 1]
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        self._holders.subtract(rows)
        if self._chance.random() < self._chance_of_death:
            return  # nothing is released: others wait for the end of the leases
        try:
            await leasing.apply(
                *(lease, loaded.row, Changes(status="done").finish(), 60.0, []), within=_nothing
            )
        except Stale:
            await leasing.give_up(lease)


async def _nothing(session: Any) -> None:
    """Do nothing within the transaction."""


@pytest.mark.parametrize(
    ("rows", "chance_of_death"),
    [
        pytest.param(6, 0.3, id="dying"),
        pytest.param(24, 0.3, id="full-dying", marks=pytest.mark.soak),
    ],
)
async def test_no_row_has_two_holders_and_none_waits_forever(
    database: RowDatabase, add: Any, rows: int, chance_of_death: float
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    fleets = await add(*(Fleet() for _ in range(rows // 3)))
    of_fleets = [*fleets, None]
    instances = await add(*(Instance(fleet_id=chance.choice(of_fleets)) for _ in range(rows)))
    await add(*(Job(instance_id=chance.choice([*instances, None])) for _ in range(rows)))
    # Long enough for the pauses of an actor that was just cut off by a busy machine.
    pipelines = on(database, Fleets, Instances, Jobs, lease=3.0, max_attempts=1000)
    actors, stop = Actors(chance, chance_of_death), asyncio.Event()
    replicas = 1 if database.url.startswith("sqlite") else 3
    async with asyncio.TaskGroup() as working:
        for name in list(pipelines) * replicas:
            working.create_task(actors.work(pipelines.leasing(pipelines[name]), stop))
        ends_at = time.monotonic() + WAIT_SECONDS * rows / 6
        while left := await _left(database):
            assert time.monotonic() < ends_at, f"{left} rows still wait (seed {seed})"
            await asyncio.sleep(0.1)
        stop.set()
    assert not actors.problems, f"seed {seed}"


async def _left(database: RowDatabase) -> int:
    left = 0
    async with database.sessions() as session:
        for model in (Fleet, Instance, Job):
            query = sa.select(sa.func.count()).select_from(model).where(model.status == "new")
            left += int(await session.scalar(query) or 0)
    return left
