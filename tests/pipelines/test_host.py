"""Pipelines in a process: fetching, renewing, processing and stopping, on real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipelines.hosting import PAST, Note, are_done, count, hosted, set_grace, until
from row_tables import Instance, Instances, on
from waits import WAIT_SECONDS, wait_until

from nonet import ExponentialBackoff, Nonet, StopRetrying
from nonet.base.errors import ConfigurationError
from nonet.daemon.service import ExitCode
from nonet.pipelines import Changes, RowDatabase, Rows
from nonet.pipelines.backoff import Pauses, wanted
from nonet.pipelines.heartbeat import Heartbeat
from nonet.pipelines.lease import Held
from nonet.telemetry import tracing
from nonet.telemetry.spans import SpanMaker

pytestmark = pytest.mark.server


def test_d04_a_fetch_fills_the_queue() -> None:
    assert [wanted(length, 20, None) for length in (0, 9, 10, 40)] == [40, 31, 0, 0]
    assert [wanted(length, 20, 4) for length in (0, 3, 4)] == [4, 1, 0]


def test_d05_empty_fetches_become_rare() -> None:
    """The pause grows to 5 s ± 20 %, drops sometimes, and starts anew after a row."""
    pauses = Pauses()
    first = [pauses.after(0) for _ in range(4)]
    for pause, step in zip(first, (0.5, 1, 2, 5), strict=True):
        assert step * 0.8 <= pause <= step * 1.2
    later = [pauses.after(0) for _ in range(300)]
    assert max(later) <= 6.0
    assert any(pause <= 0.6 for pause in later)
    assert pauses.after(7) == 0.0
    assert pauses.after(0) <= 0.6


def test_idle_pipelines_ask_at_most_22_times_a_minute() -> None:
    pauses = Pauses()
    assert 60 / (sum(pauses.after(0) for _ in range(3000)) / 3000) <= 22


@pytest.mark.usefixtures("only_hints")
async def test_d06_a_hint_wakes_a_sleeping_fetch(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    [key] = await add(Instance())
    async with hosted(nonet, on(database, Instances)) as (host, _, _):
        await until(lambda: host.runners[0].tally.fetches >= 2)  # the last one found nothing
        async with database.transaction() as session:
            await session.execute(sa.update(Instance).values(status="new"))
            await Rows(Instance).touch(session, [key])
        await until(lambda: count(database, Instance, status="done"))
        assert host.runners[0].tally.fetches <= 4


async def test_d10_d11_d12_leases_are_renewed_while_the_loop_is_blocked(
    database: RowDatabase, add: Any
) -> None:
    """The thread renews held rows, drops lost ones, and leaves rows of other processes alone."""
    held = {"lease_token": "mine", "lease_owner": "instances", "lease_expires_at": PAST}
    mine, foreign = await add(Instance(**held), Instance(**held | {"lease_token": "theirs"}))
    heartbeat = Heartbeat(database)
    heartbeat.start()
    lost: list[str] = []
    try:
        table = Instance.__table__
        now = time.monotonic()
        for key in (mine, foreign):
            item = Held(table, (key,), "mine", "instances")
            heartbeat.hold([item], 4.0, now, lambda reason, key=key: lost.append((key, reason)))
        wait_until(lambda: lost, "a row is lost")  # it blocks the event loop meanwhile
        assert lost == [(foreign, "another process has a row of it, or a row was deleted")]
    finally:
        heartbeat.stop()
    async with database.sessions() as session:
        row = await session.get_one(Instance, mine)
        other = await session.get_one(Instance, foreign)
    assert row.lease_expires_at > datetime.now(UTC)
    assert other.lease_expires_at == PAST


async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends(tmp_path: Path) -> None:
    """Without the database the lease counts as lost while no other process can have the row."""
    heartbeat = Heartbeat(RowDatabase(f"sqlite:///{tmp_path}/none/rows.db"))
    heartbeat.start()
    lost = threading.Event()
    try:
        item = Held(Instance.__table__, (1,), "mine", "instances")
        beating = heartbeat.hold([item], 2.0, began := time.monotonic(), lambda reason: lost.set())
        assert beating.deadline < began + 2.0
        assert lost.wait(WAIT_SECONDS)
    finally:
        heartbeat.stop()


async def test_d14_no_connection_is_in_use_while_rows_are_processed(
    url: str, database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    await add(*(Instance() for _ in range(12)))
    few = RowDatabase(url, connections=3)
    together = asyncio.Barrier(12)

    class Slow(Instances):
        workers = 12

        async def process(self, row: Any) -> Changes:
            await together.wait()
            assert few.engine.pool.checkedout() <= 2
            return Changes(status="done").finish()

    async with hosted(nonet, on(few, Slow)):
        await until(lambda: are_done(database, 12))


async def test_d20_a_failure_follows_the_retry_policy_and_the_worker_lives(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """Failed rows are due again after the policy's delay; for good, they become dead letters."""
    again, never, fine = await add(Instance(), Instance(), Instance())
    tries: Counter[int] = Counter()

    class Failing(Instances):
        workers = 1
        retry_policy = ExponentialBackoff(base_delay_seconds=0.1, max_retries=5)

        async def process(self, row: Any) -> Changes:
            tries[row.id] += 1
            if row.id == never:
                raise StopRetrying("no such disk")
            if row.id == again and tries[row.id] < 3:
                raise ValueError("not yet")
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Failing)):
        await until(lambda: tries[again] == 3 and tries[fine] == 1)
        letters = await nonet.stores.dead_letters()
        await until(letters.list)
        await until(lambda: count(database, Instance, id=never, due_at=None))
    [letter] = await letters.list()
    assert (letter.task_class, letter.error_type) == ("pipeline:instances", "StopRetrying")
    assert letter.task_id.startswith(f"row:instances:{never}:")
    assert tries == {again: 3, never: 1, fine: 1}


async def test_d23_each_fetch_and_each_row_is_a_span(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and keys are in the spans, and what a failed row raised; each row is a trace."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_found", SpanMaker(provider.get_tracer("nonet")))
    fine, bad = await add(Instance(), Instance())

    class Failing(Instances):
        async def process(self, row: Any) -> Changes:
            if row.id == bad:
                raise ValueError("no disk at redis://ann:geheim@disks/0")
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Failing)) as (host, _, _):
        await until(lambda: sum(host.runners[0].tally.outcomes.values()) == 2)
    spans = exporter.get_finished_spans()
    fetch = next(span for span in spans if span.name == "fetch instances")
    assert fetch.attributes == {"nonet.pipeline": "instances", "nonet.rows": 2}
    rows = {
        span.attributes["nonet.row"]: span for span in spans if span.name == "process instances"
    }
    assert {key: span.attributes["nonet.outcome"] for key, span in rows.items()} == {
        str(fine): "done",
        str(bad): "failed",
    }
    assert rows[str(bad)].attributes["error.type"] == "ValueError"
    assert "geheim" not in rows[str(bad)].to_json() and "no disk" in rows[str(bad)].to_json()
    assert all(span.parent is None for span in rows.values())


async def test_tasks_of_an_apply_are_submitted_after_its_commit(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """A result that was applied submits its tasks; one that was stale does not."""
    good, bad = await add(Instance(), Instance())
    stale: list[int] = []

    class Submitting(Instances):
        async def process(self, row: Any) -> Changes:
            if row.id == bad:
                async with database.transaction() as session:
                    await session.execute(
                        sa.update(Instance).where(Instance.id == bad).values(lease_token="x")
                    )
            return Changes(status="done").finish().submit(Note())

        async def on_stale(self, row: Any, changes: Any) -> None:
            stale.append(row.id)

    async with hosted(nonet, on(database, Submitting)):
        await until(lambda: count(database, Instance, id=good, status="done"))
        await until(lambda: stale)
    assert stale == [bad]
    assert len([status async for status in nonet.live(task="Note")]) == 1


async def test_a_lost_lease_cancels_the_processing(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    await add(Instance())
    events: list[str] = []

    class Long(Instances):
        lease = 3.0

        async def process(self, row: Any) -> Changes:
            events.append("began")
            try:
                await asyncio.sleep(60)
            finally:
                events.append("ended")
            return Changes()

        async def on_stale(self, row: Any, changes: Any) -> None:
            events.append("stale")

    async with hosted(nonet, on(database, Long)):
        await until(lambda: events == ["began"])
        async with database.transaction() as session:
            await session.execute(sa.update(Instance).values(lease_token="x", due_at=None))
        await until(lambda: events == ["began", "ended", "stale"])


async def test_a_stop_releases_rows_without_using_an_attempt(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the grace the rows in process are released; the queued ones at once."""
    await add(*(Instance() for _ in range(5)))
    begun = asyncio.Event()

    class Long(Instances):
        workers = 2

        async def process(self, row: Any) -> Changes:
            begun.set()
            await asyncio.sleep(60)
            return Changes()

    set_grace(nonet, monkeypatch, 0.3)
    async with hosted(nonet, on(database, Long)) as (_, stop, running):
        await begun.wait()
        stop.request()
        assert await running == ExitCode.FAILED
    assert await count(database, Instance, lease_token=None, lease_owner=None, attempts=0) == 5
    assert await count(database, Instance, due_at=None) == 0


def test_d22_a_second_process_on_a_sqlite_file_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rows.db"
    program = (
        "import sys; from nonet.pipelines import RowDatabase; "
        f"kept = RowDatabase({url!r}).reserve(); print('reserved', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reserved\n"
        with pytest.raises(ConfigurationError, match="another process runs pipelines"):
            RowDatabase(url).reserve()
        other.communicate()
    kept = RowDatabase(url).reserve()
    assert kept is not None
    kept.close()


@pytest.mark.parametrize(
    ("paused", "cause"),
    [("pipeline:instances", "paused by ann"), ("all", "paused with everything else by ann")],
)
async def test_d23_a_paused_pipeline_fetches_nothing_until_it_is_resumed(
    database: RowDatabase, add: Any, nonet: Nonet, paused: str, cause: str
) -> None:
    """A pause holds from the start, its cause is reported, and its end needs no restart."""
    await add(Instance(), Instance())
    await nonet.stores.controls.pause([paused], "ann")

    async def is_counted() -> bool:
        return any(item.rows.due == 2 for item in await nonet.stores.pipelines.read())

    async with hosted(nonet, on(database, Instances)) as (host, _, _):
        await until(lambda: host.report().ready)
        await until(is_counted)
        [status] = await nonet.stores.pipelines.read()
        assert (status.cause, host.runners[0].tally.fetches) == (cause, 0)
        found = {name: value for name, _, value in host.samples()}
        assert found["nonet_pipeline_paused"] == found["nonet_pipeline_database_up"] == 1
        await nonet.stores.controls.resume([paused], "ann")
        await until(lambda: are_done(database, 2))
    [status] = await nonet.stores.pipelines.read()
    assert not status.replicas  # it has left
