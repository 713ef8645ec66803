"""The figures of tenants in Redis: what they have, what workers report, and their bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta

import pytest
from stores.beats import Reports, beat

from nonet.rules.fairness import OTHERS
from nonet.rules.tenants import TenantFigures
from nonet.rules.vectors import started_in, vector
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.fairness import Fairness
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.tenants import Tenants
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Counted
from nonet.stores.queue.submissions import Submission
from nonet.testing.running import MovedClock

PREFIX = "{test}:"
STREAMS = ("normal:small", "realtime:large")


@pytest.fixture
def tenants(broker: Broker) -> Tenants:
    return Tenants(broker.client, "test")


async def share(broker: Broker, weights: Mapping[str, float]) -> None:
    term = await Leadership(broker, "test").lead("leader", 3600, "{}") or ""
    assert await Fairness(broker.client, "test").publish(term, STREAMS, weights, "a test") == 0


def starts(tenants: Mapping[str, int], named: int = 0) -> Counted:
    """So many starts of each tenant."""
    vectors = {name: vector([n], [n], [], {}, (n,)) for name, n in tenants.items()}
    return Counted({}, vectors, named)


async def submit(broker: Broker, tenant: str, number: int, stream: str = STREAMS[0]) -> None:
    ids = [f"{tenant}.{stream}.{n}" for n in range(number)]
    await broker.submit([Submission(i, "p:T", stream, b"e", terms=f"tenant|{tenant}") for i in ids])


async def table(tenants: Tenants, *named: str, most: int = 100) -> dict[str, TenantFigures]:
    found = await tenants.table("vo", named, most=most)
    return {item.name: item for item in found.items}


async def test_tenants_have_figures(broker: Broker, tenants: Tenants) -> None:
    """What waits and since when, and what runs; also of tasks without a tenant."""
    await share(broker, {"a": 3, "default": 2})
    await submit(broker, "a", 5)
    await broker.client.set(f"{PREFIX}clock", 50_000)  # µs later
    await submit(broker, "a", 2, "realtime:large")
    await submit(broker, "", 4)
    beat(broker.url, info='{"size": "small", "concurrency": 4, "tenants": {"a": 2, "z": 1}}')
    (first, *_), _ = await broker.fetch("small-a", "small", 1)
    found = await table(tenants, "idle")
    assert list(found) == ["idle", "a", "z", ""]
    assert (found["a"].live, found["a"].waiting, found["a"].weight) == (7, 7, 3)
    assert (first.tenant, found["a"].running, found["z"].running) == ("", 2, 1)
    assert (found[""].live, found[""].waiting, found[""].weight) == (4, 3, 2)
    assert (found["idle"].live, found["idle"].oldest_seconds) == (0, None)
    assert 0.05 <= (found["a"].oldest_seconds or 0) < 60


async def test_without_shares_no_task_waits_for_a_turn(
    broker: Broker, tenants: Tenants, reports: Reports
) -> None:
    """Tenants have figures by their ceilings; tasks without one are shown, however few."""
    await submit(broker, "a", 2)
    reports.add(starts({"a": 3}))
    assert list(await table(tenants)) == ["a"]
    await submit(broker, "", 1)
    found = await table(tenants, most=1)
    assert (list(found), found[""].live) == (["a", ""], 1)
    assert (found["a"].live, found["a"].waiting, found["a"].started) == (2, None, 3)
    assert (found["a"].weight, found["a"].share_used, found["a"].share_due) == (None, None, None)


async def test_the_rest_is_added_up(broker: Broker, tenants: Tenants, reports: Reports) -> None:
    """Beyond a number of tenants; named ones, and the largest, have their own rows.

    Their part is as large as they are many, whatever the weight of a tenant of their name.
    """
    await share(broker, {"default": 2, OTHERS: 0.1})
    for tenant, number in (("a", 1), ("b", 9), ("c", 2), ("d", 3)):
        await submit(broker, tenant, number)
    beat(broker.url, info=json.dumps({"tenants": {"c": 1, OTHERS: 2}}))
    reports.add(starts({"b": 10, "c": 3, "d": 4, OTHERS: 5}))
    found = await table(tenants, "a", most=2)
    assert list(found) == ["a", "b", OTHERS]
    rest = found[OTHERS]
    assert (rest.live, rest.started, rest.running, rest.waiting) == (5, 12, 3, None)
    assert (rest.weight, found["b"].share_used) == (None, 10 / 22)
    assert (rest.share_due, found["b"].share_due) == pytest.approx((12 / 22, 9 / 22))


async def test_shares_are_of_minutes(broker: Broker, tenants: Tenants, reports: Reports) -> None:
    """Also if the figures are of a shorter time."""
    await share(broker, {})
    reports.add(starts({"gone": 30, "a": 10}))
    (key,) = await broker.client.keys(f"{PREFIX}figures:tenants:60:*")
    head, _, minute = key.rpartition(b":")
    await broker.client.rename(key, head + b":%d" % (int(minute) - 3))
    found = await tenants.table("vo", (), since=timedelta(minutes=1), most=1)
    by_name = {item.name: item for item in found.items}
    assert {item.started for item in found.items} == {0}
    assert sum(item.share_used or 0 for item in by_name.values()) == 1


async def test_tenants_are_bounded(broker: Broker, tenants: Tenants, reports: Reports) -> None:
    """200 in each slot and in the totals, and always the named ones; no start is lost."""
    for start in range(0, 600, 100):
        reports.add(starts({f"t{n}": 1 for n in range(start, start + 100)}))
    reports.add(starts({"named": 1, "late": 1}, named=1))
    reports.add(starts({"named": 1, "t0": 1, "late": 1}, named=1))
    keys = await broker.client.keys(f"{PREFIX}figures:tenants:*")
    assert len(keys) == 2
    assert all([await broker.client.ttl(key) > 0 for key in keys])
    assert max([await broker.client.hlen(key) for key in keys]) == 202
    totals = await tenants.totals()
    assert {name: started_in(totals[name]) for name in ("named", "t0")} == {"named": 2, "t0": 2}
    assert sum(map(started_in, totals.values())) == 605
    assert "late" not in totals and started_in(totals[OTHERS]) == 402


async def test_thousands_of_tenants_cost_little(broker: Broker) -> None:
    """No script walks all their lists, and the sums are exact."""
    await share(broker, {})
    many = 2000
    await broker.submit(
        [Submission(f"{n}", "p:T", STREAMS[0], b"e", terms=f"tenant|t{n}") for n in range(many)]
    )
    measures, demands = Measures(broker.client, "test", 900), Demands(broker.client, "test", 1000)
    await broker.client.config_resetstat()
    figures, demand = await measures.figures(), await demands.look("small")
    stats = await broker.client.info("commandstats")
    assert (figures.streams["normal", "small"].depth, demand.runnable) == (many, many)
    walked = sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("llen", "lindex", "lrange")
    )
    assert walked <= 3 * 64
    fetched, _ = await broker.fetch("small-a", "small", 50)
    await asyncio.gather(*(broker.settle(item, "done") for item in fetched))
    assert (await measures.figures()).streams["normal", "small"].depth == many - 50


async def test_counts_of_lists_are_corrected(broker: Broker) -> None:
    """When all lists are empty: a cut script may have counted what it did not add."""
    await share(broker, {})
    await submit(broker, "a", 3)
    await broker.client.hincrby(f"{PREFIX}pace", f"{STREAMS[0]} tasks", 7)
    await broker.fetch("small-a", "small", 10)
    await submit(broker, "b", 1)
    measures = Measures(broker.client, "test", 900)
    assert (await measures.figures()).streams["normal", "small"].depth == 4
    await broker.fetch("small-a", "small", 10)
    await broker.client.hincrby(f"{PREFIX}pace", f"{STREAMS[0]} tasks", 7)
    assert (await measures.figures()).streams["normal", "small"].depth == 4
    assert (await Demands(broker.client, "test", 1000).look("small")).runnable == 0


async def test_the_time_in_a_list_is_a_wait(broker: Broker) -> None:
    """A retry waits from the moment at which it is due."""
    await share(broker, {})
    broker.epoch.clock = MovedClock()
    before = await broker.logical_now()
    await submit(broker, "a", 1)
    await broker.client.set(f"{PREFIX}clock", 50_000)  # µs later
    ((delivery,), _) = await broker.fetch("small-a", "small", 10)
    assert delivery.tenant == "a"
    since = before.timestamp() * 1e6
    assert since - 1 <= delivery.runnable_since < int(delivery.fence) - 50_000
    await broker.settle(delivery, "retry", b"{}", delay=timedelta(seconds=100))
    await broker.client.set(f"{PREFIX}clock", 150_000_000)
    await broker.promote()
    ((again,), _) = await broker.fetch("small-a", "small", 10)
    assert again.runnable_since >= int(delivery.fence) + 100_000_000
