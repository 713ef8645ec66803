"""Several real processes that run the same pipelines, some of which are killed: `make soak`."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from daemons import Daemon
from row_tables import Fleet, Instance, Job
from waits import until

from nonet.pipelines import RowDatabase

pytestmark = [pytest.mark.soak, pytest.mark.server]
_TESTS = Path(__file__).parents[1]
_MINUTES = float(os.environ.get("REPLICA_MINUTES", "10"))


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


def doubly_held(
    notes: list[Note], killed: dict[int, float], related: dict[tuple[str, int], list[Any]]
) -> list[str]:
    """Rows that two processes held at a time.

    Args:
        killed: when processes were killed.
        related: the rows that a main row holds as well.
    """
    spans: defaultdict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    began: dict[tuple[int, str, int], float] = {}

    def held(table: str, key: int, begin: float, end: float, pid: int) -> None:
        for row in [(table, key), *related.get((table, key), ())]:
            spans[row].append((begin, end, pid))

    for note in notes:
        if note.event == "try":
            continue
        if note.event == "begin":
            began[note.pid, note.table, note.key] = note.at
        else:
            begin = began.pop((note.pid, note.table, note.key))
            held(note.table, note.key, begin, note.at, note.pid)
    for (pid, table, key), begin in began.items():
        held(table, key, begin, killed[pid], pid)
    found = []
    for row, times in spans.items():
        times.sort()
        for one, other in pairwise(times):
            if other[0] < one[1]:
                found.append(f"{row}: {one} and {other}")
    return found


async def fill(database: RowDatabase) -> dict[tuple[str, int], list[Any]]:
    """Add rows; return the related rows of each main row."""
    chance = random.Random(7)
    async with database.transaction() as session:
        session.add_all(Fleet(id=key) for key in range(1, 5))
        fleets = {key: chance.choice([1, 2, 3, 4, None]) for key in range(1, 21)}
        session.add_all(Instance(id=key, fleet_id=fleet) for key, fleet in fleets.items())
        instances = {key: chance.choice([*fleets, None]) for key in range(1, 21)}
        session.add_all(Job(id=key, instance_id=of) for key, of in instances.items())
    related: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for key, fleet in fleets.items():
        related["fleets", fleet or 0].append(("instances", key))
    for key, instance in instances.items():
        if instance is not None:
            related["jobs", key].append(("instances", instance))
    return related


async def test_a_row_never_has_two_holders(
    url: str, database: RowDatabase, redis_url: str, tmp_path: Path
) -> None:
    """8 processes for 10 minutes, one killed every 10 s; on SQLite one, killed every 30 s."""
    related = await fill(database)
    await database.close()
    crew, killed = Crew(url, redis_url, tmp_path), dict[int, float]()
    with ExitStack() as closing:
        number = 1 if url.startswith("sqlite") else 8
        replicas = [closing.enter_context(crew.start()) for _ in range(number)]
        ends_at = time.monotonic() + 60 * _MINUTES
        while time.monotonic() < ends_at:
            await asyncio.sleep(30 if number == 1 else 10)
            victim = replicas.pop(random.randrange(number))
            await asyncio.to_thread(victim.kill)
            killed[victim.pid] = time.monotonic()
            replicas.append(closing.enter_context(crew.start()))
        for replica in replicas:
            replica.wait_ready().terminate()
        assert [await asyncio.to_thread(replica.wait) for replica in replicas] == [0] * number
    notes = crew.notes()
    assert doubly_held(notes, killed, related) == []
    rounds = Counter((note.table, note.key) for note in notes if note.event == "end")
    print(
        f"{url.partition(':')[0]}: {sum(rounds.values())} rows, {len(killed)} processes killed, "
        f"no row held twice; rarest: {rounds.most_common()[:-4:-1]}"
    )
    assert len(rounds) == 44
    async with database.sessions() as session:
        for model in (Fleet, Instance, Job):
            leased = sa.select(model.id).where(model.lease_token.is_not(None))
            # Those of the last victim may have no new holder yet.
            assert len((await session.scalars(leased)).all()) <= 25


@pytest.fixture
def pair(url: str, redis_url: str, tmp_path: Path) -> Iterator[tuple[Crew, list[Daemon]]]:
    """Two processes that each run the pipeline of instances, whose rows take a minute."""
    if url.startswith("sqlite"):
        pytest.skip("one process only")
    variables = {"ROWS_SECONDS": "60", "ROWS_LEASE": "10", "NONET_GRACE": "0"}
    crew = Crew(url, redis_url, tmp_path, **variables)
    with ExitStack() as closing:
        yield crew, [closing.enter_context(crew.start("instances")) for _ in range(2)]


async def taken_over(crew: Crew, old: Daemon, rows: int) -> float:
    """When a row of a process that ended was the last to begin elsewhere."""

    def begun() -> bool:
        lost = {note.key for note in crew.notes() if note.pid == old.pid}
        found = {note.key for note in crew.notes() if note.pid != old.pid}
        return len(lost & found) == rows

    await until(begun, "its rows have begun elsewhere", seconds=60)
    return max(note.at for note in crew.notes() if note.event == "begin")


@pytest.mark.parametrize("way", ["killed", "stopped"])
async def test_the_rows_of_a_process_that_ended_begin_elsewhere(
    url: str, database: RowDatabase, pair: tuple[Crew, list[Daemon]], way: str
) -> None:
    """After a kill within the lease and 6.5 s; after a stop within a second."""
    crew, replicas = pair
    for replica in replicas:
        await asyncio.to_thread(replica.wait_ready)
    async with database.transaction() as session:
        session.add_all(Instance() for _ in range(3))
    await until(lambda: len(crew.notes()) == 3, "they have begun", seconds=30)
    old = next(replica for replica in replicas if replica.pid == crew.notes()[0].pid)
    rows = sum(note.pid == old.pid for note in crew.notes())
    ended = time.monotonic()
    if way == "killed":
        await asyncio.to_thread(old.kill)
    else:
        old.terminate()
    seconds = await taken_over(crew, old, rows) - ended
    print(f"{url.partition(':')[0]}: {rows} rows of a {way} process began after {seconds:.1f} s")
    assert seconds <= (10 + 6.5 if way == "killed" else 1)
