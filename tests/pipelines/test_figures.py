"""The speed of pipelines, in figures: `make soak` runs and prints them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import hosted
from row_tables import Instance, Instances, on

from nonet import Nonet
from nonet.pipelines import Changes, RowDatabase, Rows

pytestmark = [pytest.mark.soak, pytest.mark.server]


def timed(database: RowDatabase, starts: list[float], seconds: float, workers: int) -> Any:
    class Timed(Instances):
        async def process(self, row: Any) -> Changes:
            starts.append(time.monotonic())
            await asyncio.sleep(seconds)
            return Changes(status="done").finish()

    return on(database, Timed, workers=workers)


async def begun(starts: list[float], number: int) -> None:
    while len(starts) < number:  # noqa: ASYNC110  # the pipeline under test has no event for it
        await asyncio.sleep(0.01)


async def connections(database: RowDatabase) -> int:
    """How many connections the server has to this database, but for the one that asks."""
    queries = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database()",
    }
    async with database.engine.connect() as connection:
        name = "postgresql" if connection.dialect.name == "postgresql" else "mysql"
        return int((await connection.execute(sa.text(queries[name]))).scalar_one()) - 1


async def test_many_workers_need_few_connections(
    url: str, database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """40 workers of 1 s reach 40 rows a second on 5 connections; 200 rows on 20 start in 9 s."""
    if url.startswith("sqlite"):
        pytest.skip("a file has no connections to count")
    await add(*(Instance() for _ in range(480)))
    starts: list[float] = []
    few, most = RowDatabase(url, connections=5), 0
    watching = RowDatabase(url, connections=2)
    await database.close()
    async with hosted(nonet, timed(few, starts, 1.0, 40)):
        while len(starts) < 480:
            most = max(most, await connections(watching))
            await asyncio.sleep(0.05)
    rate = 440 / (starts[-1] - starts[39])
    print(f"{url.partition(':')[0]}: 40 workers on 5 connections: {rate:.1f} rows/s, {most} used")
    assert most <= 5
    assert 36 <= rate <= 44
    await add(*(Instance() for _ in range(200)))
    starts.clear()
    async with hosted(nonet, timed(few, starts, 1.0, 20)):
        await begun(starts, 200)
    last = starts[-1] - starts[0]
    print(f"{url.partition(':')[0]}: the last of 200 rows on 20 workers started after {last:.1f} s")
    assert 8 <= last <= 10
    await few.close()
    await watching.close()


async def test_an_idle_pipeline_asks_rarely(url: str, database: RowDatabase, nonet: Nonet) -> None:
    """At most 22 selects in a minute, as the database server sees them."""
    selects: list[float] = []
    async with hosted(nonet, timed(database, [], 0.0, 20)):
        await asyncio.sleep(5)
        engine = database.engine.sync_engine
        sa.event.listen(
            engine,
            "before_cursor_execute",
            lambda c, cursor, statement, *_: (
                selects.append(time.monotonic()) if "due_at <=" in statement else None
            ),
        )
        await asyncio.sleep(60)
    counts = len(selects)
    print(f"{url.partition(':')[0]}: {counts} selects in a minute, those for figures included")
    assert counts <= 22 + 4


async def test_latency_of_hints_and_without_them(
    url: str, database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint starts a row within 0.3 s; if all hints are lost, it starts within 6.5 s."""
    [key] = await add(Instance())
    starts: list[float] = []
    hinted, lost = [], []
    async with hosted(nonet, timed(database, starts, 0.0, 20)):
        for waits, number in ((hinted, 5), (lost, 3)):
            for _ in range(number):
                await asyncio.sleep(12)  # until the pauses are longest
                before = len(starts)
                if waits is lost:
                    monkeypatch.setattr(nonet.client.hints, "send_soon", lambda tables: None)
                async with database.transaction() as session:
                    await Rows(Instance).touch(session, [key])
                touched = time.monotonic()
                await begun(starts, before + 1)
                waits.append(starts[-1] - touched)
    kind = url.partition(":")[0]
    print(f"{kind}: started {max(hinted):.3f} s after a hint, {max(lost):.1f} s without one")
    assert max(hinted) < 0.3
    assert max(lost) <= 6.5


_NUMBERS = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})"
)
_FILL = (
    "INSERT INTO instances (id, status, attempts, due_at) "
    f"{_NUMBERS} SELECT n, 'new', 0, '{{}}' FROM numbers"
)


async def refilled(database: RowDatabase, rows: int, due_at: str) -> None:
    async with database.engine.begin() as connection:
        if database.engine.dialect.name == "mysql":
            await connection.execute(sa.text("SET SESSION max_recursive_iterations = 2000000"))
        await connection.execute(sa.delete(Instance))
        await connection.execute(sa.text(_FILL.format(rows, due_at)))
    analyze = {"mysql": "ANALYZE TABLE instances"}.get(database.engine.dialect.name, "ANALYZE")
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(sa.text(analyze))


async def p95_of_fetches(database: RowDatabase) -> float:
    pipelines = on(database, Instances)
    leasing = pipelines.leasing(pipelines["instances"])
    times = []
    for _ in range(300):
        began = time.perf_counter()
        leases = await leasing.fetch(20, time.monotonic())
        times.append(1000 * (time.perf_counter() - began))
        await leasing.release(leases)
    return sorted(times)[285]


@pytest.mark.parametrize("due_at", ["2000-01-01 00:00:00", "2100-01-01 00:00:00"])
async def test_a_fetch_takes_as_long_from_a_million_rows(
    url: str, database: RowDatabase, due_at: str
) -> None:
    """Its p95 is at most 1.5 times that of 1,000 rows, with all rows due and with none."""
    found = {}
    for rows in (1000, 1_000_000):
        await refilled(database, rows, due_at)
        found[rows] = await p95_of_fetches(database)
    small, large = found.values()
    which = "all" if due_at < "2050" else "none"
    print(
        f"{url.partition(':')[0]}, {which} due: p95 {small:.1f} ms of 1,000, {large:.1f} ms of 10⁶"
    )
    assert large <= 1.5 * small
