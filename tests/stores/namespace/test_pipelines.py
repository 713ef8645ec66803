"""What the processes that run pipelines report, on a real server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from nonet.rules.pipelines import PipelineStatus, Replica, RowFigures
from nonet.stores.namespace.pipelines import REPORT_SECONDS, PipelineReports
from nonet.stores.queue.broker import Broker

ROWS = RowFigures(datetime.now(UTC), due=7, leased=2, stale=1, waiting=1, dying=1, oldest=9.5)
ONE = Replica("7@a", workers=4, running=2, queued=1, rate=30, wait=0.5)
OTHER = Replica("8@b", workers=4, rate=10, wait=2.5, problem="OperationalError: gone")
REPLICAS = "{test}:pipelines:replicas"


@pytest.fixture
def reports(broker: Broker) -> PipelineReports:
    return PipelineReports(broker.client, "test")


async def test_processes_of_a_pipeline_are_added_up(
    broker: Broker, reports: PipelineReports
) -> None:
    """One of them counts the rows at a time; every key expires after the last."""
    await reports.report("a", {"volumes": ONE, "disks": ONE})
    await reports.report("b", {"volumes": OTHER})
    await reports.report_rows("volumes", ROWS)
    disks, volumes = await reports.read()
    assert disks == PipelineStatus("disks", RowFigures(), (ONE,))
    assert (volumes.rows, volumes.replicas) == (ROWS, (ONE, OTHER))
    assert (volumes.rate, volumes.wait) == (40, 1.0)
    assert (volumes.problem, volumes.cause) == ("", "1 row of a dead process is not taken over yet")
    assert [await reports.may_count("volumes") for _ in range(3)] == [True, False, False]
    assert await reports.may_count("disks")
    keys = [key async for key in broker.client.scan_iter("{test}:pipelines*")]
    assert all([await broker.client.ttl(key) > 0 for key in keys])


async def test_an_ended_process_is_not_shown(broker: Broker, reports: PipelineReports) -> None:
    """It leaves, or its report lapses; the next count removes it."""
    await reports.report_rows("volumes", ROWS)
    await reports.report("a", {"volumes": ONE})
    await reports.report("b", {"volumes": OTHER})
    await reports.leave("a")
    [volumes] = await reports.read()
    assert volumes.replicas == (OTHER,)
    killed = json.loads(await broker.client.hget(REPLICAS, "b"))
    killed["until"] -= 2 * REPORT_SECONDS
    await broker.client.hset(REPLICAS, "b", json.dumps(killed))
    [volumes] = await reports.read()
    assert (volumes.replicas, volumes.cause) == ((), "no process runs it")
    await reports.report_rows("volumes", ROWS)
    assert await broker.client.hkeys(REPLICAS) == []


async def test_rows_without_a_process_become_older(reports: PipelineReports) -> None:
    """The overview adds the time since the last count."""
    a_minute_ago = RowFigures(datetime.now(UTC) - timedelta(seconds=60), due=1, oldest=9.0)
    await reports.report_rows("volumes", a_minute_ago)
    [volumes] = await reports.read()
    assert 68 <= volumes.rows.oldest <= 100
    await reports.report("a", {"volumes": ONE})
    [volumes] = await reports.read()
    assert volumes.rows.oldest == 9.0
    await reports.leave("a")
    await reports.report_rows("volumes", RowFigures(a_minute_ago.at))
    [volumes] = await reports.read()
    assert volumes.rows.oldest == 0.0


async def test_a_removed_pipeline_is_forgotten(broker: Broker, reports: PipelineReports) -> None:
    """After a day, although others keep the hash alive."""
    day_before = RowFigures(datetime.now(UTC) - timedelta(hours=25), due=7)
    await reports.report_rows("disks", ROWS)
    await broker.client.hset("{test}:pipelines", "volumes", _encoded(day_before))
    assert [item.name for item in await reports.read()] == ["disks"]
    await reports.report("a", {"volumes": ONE})
    assert [item.name for item in await reports.read()] == ["disks", "volumes"]
    await reports.report_rows("disks", ROWS)
    assert await broker.client.hkeys("{test}:pipelines") == [b"disks"]


async def test_reports_of_newer_code_are_read(broker: Broker, reports: PipelineReports) -> None:
    """Unknown figures are left out."""
    await reports.report_rows("volumes", ROWS)
    await reports.report("a", {"volumes": ONE})
    newer = json.loads(await broker.client.hget(REPLICAS, "a"))
    newer["pipelines"]["volumes"]["colour"] = "blue"
    await broker.client.hset(REPLICAS, "a", json.dumps(newer))
    rows = json.loads(await broker.client.hget("{test}:pipelines", "volumes"))
    await broker.client.hset("{test}:pipelines", "volumes", json.dumps(rows | {"colour": "blue"}))
    [volumes] = await reports.read()
    assert (volumes.rows, volumes.replicas) == (ROWS, (ONE,))


def _encoded(rows: RowFigures) -> str:
    assert rows.at is not None
    return json.dumps({"at": rows.at.timestamp(), "due": rows.due})
