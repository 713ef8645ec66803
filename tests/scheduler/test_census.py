"""What a scheduler tells of its namespace, and for how long it believes it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nonet.rules.tenants import TenantTable
from nonet.scheduler.census import Census
from nonet.scheduler.tenant_metrics import TenantCensus
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.pipelines import PipelineReports
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.dead_letters import DeadLetters


async def no_letters() -> DeadLetters:
    raise AssertionError("there is no SQL")


async def no_tenants() -> TenantCensus:
    return TenantCensus(TenantTable("vo", datetime.now(UTC), 300, ()), {})


@pytest.fixture
def census(broker: Broker) -> Census:
    reports = PipelineReports(broker.client, "test")
    measures = Measures(broker.client, "test", 900)
    return Census(measures, no_letters, reports, lambda: False, ["p:T"], no_tenants)


def values(census: Census) -> dict[tuple[str, ...], float]:
    return {(name, *labels): float(value) for name, labels, value in census.samples()}  # type: ignore[arg-type]  # no histogram


async def test_a_census_knows_nothing_before_its_first_look(census: Census) -> None:
    await census.count_letters()
    assert values(census) == {("nonet_namespace_refreshed_timestamp_seconds",): 0.0}
    assert census.desired() is None


async def test_a_stale_census_reports_only_when_it_was_taken(
    census: Census, broker: Broker
) -> None:
    await broker.submit([Submission("a", "p:T", "normal:small", b"e")])
    await broker.client.hset("{test}:desired", mapping={"small": 1})
    await census.look()
    assert values(census)["nonet_stream_depth", "normal", "small"] == 1
    assert census.desired() == {"small": 1, "medium": 0, "large": 0}
    census._seen_at -= 15  # it was seen earlier
    assert census.desired() is not None
    census._seen_at -= 16
    ((name, *_), seen), *others = values(census).items()
    assert (name, others, seen > 0) == ("nonet_namespace_refreshed_timestamp_seconds", [], True)
    assert census.desired() is None


async def test_accepted_tasks_are_counted_once_from_the_first_look_on(
    census: Census, broker: Broker
) -> None:
    async def submitted(*ids: str) -> float:
        tasks = [Submission(id, "p:T", "normal:small", b"e") for id in ids]
        await broker.submit(tasks)
        await census.look()
        return values(census)["nonet_tasks_submitted_total", "normal", "small"]

    assert await submitted("a") == 0
    assert await submitted("b", "c") == 2
    assert await submitted("b", "d") == 3
    assert await submitted("a") == 3
