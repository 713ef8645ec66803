"""Real processes that die, over random graphs of related rows: who is buried, and who waits."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from daemons import Daemon
from row_tables import Base, Fleet, Instance, Job
from waits import WAIT_SECONDS

from nonet.pipelines import RowDatabase

pytestmark = [pytest.mark.server, pytest.mark.long]
_MODELS = {"fleets": Fleet, "instances": Instance, "jobs": Job}
_TESTS = Path(__file__).parents[1]
_SECONDS, _ROUNDS = 1.5, 3
# An instance is taken by its own row, its job and its fleet. While one of them waits, each of the
# other two takes it once at most, and one of them perhaps before it could see the wait.
_OVERTAKEN = 3

Row = tuple[str, int]


class Note(NamedTuple):
    at: float
    pid: int
    event: str
    table: str
    key: int


class Crew:
    def __init__(self, url: str, redis_url: str, home: Path, **variables: str) -> None:
        self._home = home
        self.notes_file = home / "notes"
        self._number = 0
        self.environment = {
            "ROWS_DB_URL": url,
            "ROWS_NOTES": str(self.notes_file),
            "NONET_REDIS_URL": redis_url,
            "NONET_NAMESPACE": "test",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_TASKS": "row_replicas",
            "PYTHONPATH": str(_TESTS),
            **variables,
        }

    def start(self, pipelines: str = "fleets,instances,jobs") -> Daemon:
        self._number += 1
        log = self._home / f"{self._number}.log"
        command = ("task-worker", "--pipelines", pipelines)
        return Daemon(*command, environment=self.environment, log=log)

    def notes(self) -> list[Note]:
        if not self.notes_file.exists():
            return []
        found = (line.split() for line in self.notes_file.read_text().splitlines())
        return [Note(float(at), int(pid), *rest, int(key)) for at, pid, *rest, key in found]


def most_overtaken(notes: list[Note], holds: Mapping[Row, set[int]]) -> int:
    """How often one instance was taken by others, at most, while a row waited for it.

    A row that begins again after its process died has held its instances all the time.

    Args:
        holds: the instances that each row needs while it is processed.
    """
    taken, held, most = dict[Row, Counter[int]](), set[Row](), 0
    for note in sorted(notes):
        row = (note.table, note.key)
        if note.event == "try":
            taken.setdefault(row, Counter())
        elif note.event == "end":
            held.discard(row)
        elif row not in held:
            held.add(row)
            taken.pop(row, None)
            for other, counts in taken.items():
                counts.update(holds[row] & holds[other])
                most = max(most, *counts.values(), 0)
        else:
            taken.pop(row, None)
    return most


async def fill(database: RowDatabase, chance: random.Random) -> dict[Row, set[int]]:
    """Add fleets with instances, and at most one job for each instance.

    Returns:
        The rows, each with the instances that it needs while it is processed.
    """
    fleets, instances = chance.randint(1, 3), chance.randint(3, 8)
    rows: list[Fleet | Instance | Job] = [Fleet(id=key) for key in range(1, fleets + 1)]
    for key in range(1, instances + 1):
        rows.append(Instance(id=key, fleet_id=chance.choice([*range(1, fleets + 1), None])))
        if chance.random() < 0.7:
            rows.append(Job(id=key, instance_id=key))
    async with database.transaction() as session:
        session.add_all(rows)
        return {
            (row.__tablename__, row.id): {
                other.id
                for other in rows
                if isinstance(other, Instance)
                and row.id == (other.fleet_id if isinstance(row, Fleet) else other.id)
            }
            for row in rows
        }


async def buried(database: RowDatabase) -> set[Row]:
    found = set[Row]()
    async with database.sessions() as session:
        for table, model in _MODELS.items():
            keys = await session.scalars(sa.select(model.id).where(model.due_at.is_(None)))
            found |= {(table, key) for key in keys}
    return found


def rounds(notes: list[Note]) -> defaultdict[Row, int]:
    ended = defaultdict[Row, int](int)
    for note in notes:
        ended[note.table, note.key] += note.event == "end"
    return ended


@pytest.mark.parametrize(
    ("kind", "poisons", "kills"),
    [
        ("postgres", 1, 0),
        pytest.param("mariadb", 1, 0, marks=pytest.mark.soak),
        *(
            pytest.param(kind, *pair, marks=pytest.mark.soak)
            for pair in [(0, 0), (1, 1), (2, 1)] * 5
            for kind in ("postgres", "mariadb")
        ),
    ],
)
async def test_only_poison_is_buried_and_no_main_row_waits_long(
    kind: str,
    poisons: int,
    kills: int,
    request: pytest.FixtureRequest,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """No innocent row becomes a dead letter; others overtake a waiting row at most three times."""
    url, seed = request.getfixturevalue(f"{kind}_url"), random.randrange(10**6)
    chance, database = random.Random(seed), RowDatabase(url)
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    rows = await fill(database, chance)
    poison = set(chance.sample(list(rows), poisons))
    crew = Crew(
        *(url, redis_url, tmp_path),
        ROWS_POISON=",".join(f"{table}:{key}" for table, key in poison),
        ROWS_ATTEMPTS="3",
        ROWS_LEASE="3",
        ROWS_SECONDS=str(_SECONDS),
    )
    kills_at = [time.monotonic() + chance.uniform(3, 10) for _ in range(kills)]
    # A row that was there when a process died is put off for a minute, perhaps more than once.
    ends_at = time.monotonic() + WAIT_SECONDS * (1 + 4 * poisons)

    def is_over(gone: set[Row]) -> bool:
        done = rounds(crew.notes())
        return gone >= poison and all(done[row] >= _ROUNDS for row in set(rows) - poison)

    with ExitStack() as closing:
        replicas: list[Daemon] = []
        while not is_over(gone := await buried(database)):
            assert time.monotonic() < ends_at, f"seed {seed}: {rounds(crew.notes())}, {gone}"
            if kills_at and time.monotonic() > kills_at[0]:
                del kills_at[0]
                await asyncio.to_thread(chance.choice(replicas).kill)
            replicas = [replica for replica in replicas if replica.alive]
            replicas += [closing.enter_context(crew.start()) for _ in range(2 - len(replicas))]
            await asyncio.sleep(0.1)
        for replica in replicas:
            replica.terminate()
        for replica in replicas:
            await asyncio.to_thread(replica.wait)
    assert await buried(database) == poison, f"seed {seed}"
    await database.close()
    overtaken = most_overtaken(crew.notes(), rows)
    print(f"{kind}, {len(rows)} rows: overtaken {overtaken} times at most")
    assert overtaken <= _OVERTAKEN, f"seed {seed}"
