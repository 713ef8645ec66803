"""The figures of tenants in Redis: what they have, what workers report, and their bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta

import pytest
from servers import RedisServer

from nonet.rules.fairness import OTHERS
from nonet.rules.figures import started_in, vector
from nonet.rules.tenants import TenantFigures
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.fairness import Fairness
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.tenants import Tenants
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Counted, Leases, Said
from nonet.stores.queue.submissions import Submission

PREFIX = "{test}:"
STREAMS = ("normal:small", "realtime:large")


class Reports:
    """A worker that reports what a test wants."""

    def __init__(self, url: str) -> None:
        self.leases = Leases(url, "test", "small-a", "{}", **TIMES)
        self.next = Counted()
        self.leases.count(lambda: self.next, lambda _: None)

    def add(self, tenants: Mapping[str, int], named: int = 0) -> None:
        """Report so many starts of each."""
        vectors = {name: vector([n], [n], [], {}, (n,)) for name, n in tenants.items()}
        self.next = Counted({}, vectors, named)
        self.leases.add_figures()

    def beat(self, **info: object) -> None:
        self.leases.ask(lambda: Said(json.dumps(info)))
        self.leases.renew([])


TIMES = {"worker_ttl": 30, "lock_ttl": 30, "timeout_seconds": 5}


@pytest.fixture
def reports(redis_url: str) -> Iterator[Reports]:
    made = Reports(redis_url)
    yield made
    made.leases.close()


@pytest.fixture
async def tenants(broker: Broker) -> AsyncIterator[Tenants]:
    yield Tenants(broker.client, "test")


async def share(broker: Broker, weights: Mapping[str, float]) -> None:
    term = await Leadership(broker, "test").lead("leader", 3600, "{}") or ""
    assert await Fairness(broker.client, "test").publish(term, STREAMS, weights, "a test") == 0


async def submit(broker: Broker, tenant: str, number: int, stream: str = STREAMS[0]) -> None:
    ids = [f"{tenant}.{stream}.{n}" for n in range(number)]
    await broker.submit([Submission(i, "p:T", stream, b"e", terms=f"tenant|{tenant}") for i in ids])


async def table(tenants: Tenants, *named: str, most: int = 100) -> dict[str, TenantFigures]:
    found = await tenants.table("vo", named, most=most)
    return {item.name: item for item in found.items}


async def test_what_tenants_have_now(broker: Broker, tenants: Tenants, reports: Reports) -> None:
    """In all streams: what waits and since when, what runs, and what has no tenant."""
    await share(broker, {"a": 3, "default": 2})
    await submit(broker, "a", 5)
    await asyncio.sleep(0.05)
    await submit(broker, "a", 2, "realtime:large")
    await submit(broker, "", 4)
    reports.beat(size="small", concurrency=4, tenants={"a": 2, "z": 1})
    (first, *_), _ = await broker.fetch("small-a", "small", 1)
    found = await table(tenants, "idle")
    assert list(found) == ["idle", "a", "", "z"]
    assert (found["a"].live, found["a"].waiting, found["a"].weight) == (7, 7, 3)
    assert (first.tenant, found["a"].running, found["z"].running) == ("", 2, 1)
    assert (found[""].live, found[""].waiting, found[""].weight) == (None, 3, 2)
    assert (found["idle"].live, found["idle"].oldest_seconds) == (0, None)
    assert 0.05 <= (found["a"].oldest_seconds or 0) < 60


async def test_without_shares_nothing_waits_for_turns(
    broker: Broker, tenants: Tenants, reports: Reports
) -> None:
    """Ceilings tell tenants apart, too; tasks without a tenant are not shown then."""
    await submit(broker, "a", 2)
    reports.add({"a": 3})
    found = await table(tenants)
    assert list(found) == ["a"]
    assert (found["a"].live, found["a"].waiting, found["a"].started) == (2, None, 3)
    assert (found["a"].weight, found["a"].share_used, found["a"].share_due) == (None, None, None)


async def test_the_rest_is_added_up(broker: Broker, tenants: Tenants, reports: Reports) -> None:
    """Beyond a number of tenants; those that are named, and the largest, are told apart."""
    await share(broker, {})
    for tenant, number in (("a", 1), ("b", 9), ("c", 2), ("d", 3)):
        await submit(broker, tenant, number)
    reports.beat(tenants={"c": 1, OTHERS: 2})
    reports.add({"b": 10, "c": 3, "d": 4, OTHERS: 5})
    found = await table(tenants, "a", most=2)
    assert list(found) == ["a", "b", OTHERS]
    rest = found[OTHERS]
    assert (rest.live, rest.started, rest.running, rest.waiting) == (5, 12, 3, None)
    assert (rest.weight, found["b"].share_used) == (None, 10 / 22)


async def test_shares_are_of_minutes_however_short_the_time_is(
    broker: Broker, tenants: Tenants, reports: Reports, redis_server: RedisServer
) -> None:
    """What was started before the time of the figures counts, too."""
    await share(broker, {})
    reports.add({"gone": 30, "a": 10})
    with redis_server.client(decode_responses=True) as client:
        (key,) = client.scan_iter(f"{PREFIX}figures:tenants:60:*")
        head, _, minute = key.rpartition(":")
        client.rename(key, f"{head}:{int(minute) - 3}")
    found = await tenants.table("vo", (), since=timedelta(minutes=1), most=1)
    by_name = {item.name: item for item in found.items}
    assert {item.started for item in found.items} == {0}
    assert sum(item.share_used or 0 for item in by_name.values()) == 1


async def test_redis_keeps_a_bounded_number(
    tenants: Tenants, reports: Reports, redis_server: RedisServer
) -> None:
    """200 tenants in each slot and in the totals, and always those that are named; none is lost."""
    for start in range(0, 600, 100):
        reports.add({f"t{n}": 1 for n in range(start, start + 100)})
    reports.add({"named": 1, "late": 1}, named=1)
    reports.add({"named": 1, "t0": 1, "late": 1}, named=1)
    with redis_server.client() as client:
        keys = list(client.scan_iter(f"{PREFIX}figures:tenants:*"))
        assert len(keys) >= 3
        assert all(client.ttl(key) > 0 for key in keys)
        assert max(client.hlen(key) for key in keys) == 202
    totals = await tenants.totals()
    assert {name: started_in(totals[name]) for name in ("named", "t0")} == {"named": 2, "t0": 2}
    assert sum(map(started_in, totals.values())) == 605
    assert "late" not in totals and started_in(totals[OTHERS]) == 402


async def test_a_report_without_a_reply_counts_once(tenants: Tenants, reports: Reports) -> None:
    """Its repetition is known by its number."""
    reports.add({"a": 2})
    reports.leases._report -= 1
    reports.add({"a": 2})
    assert started_in((await tenants.totals())["a"]) == 2


async def test_thousands_of_tenants_cost_a_call_little(
    broker: Broker, redis_server: RedisServer
) -> None:
    """No script walks all their lists, and the sums are exact."""
    await share(broker, {})
    many = 2000
    await broker.submit(
        [Submission(f"{n}", "p:T", STREAMS[0], b"e", terms=f"tenant|t{n}") for n in range(many)]
    )
    measures, demands = Measures(broker.client, "test", 900), Demands(broker.client, "test", 1000)
    with redis_server.client() as client:
        client.config_resetstat()
        figures, demand = await measures.figures(), await demands.look("small")
        stats = client.info("commandstats")
    assert (figures.streams["normal", "small"].depth, demand.runnable) == (many, many)
    walked = sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("llen", "lindex", "lrange")
    )
    assert walked <= 3 * 64
    fetched, _ = await broker.fetch("small-a", "small", 50)
    await asyncio.gather(*(broker.settle(item, "done") for item in fetched))
    assert (await measures.figures()).streams["normal", "small"].depth == many - 50


async def test_counts_of_lists_are_corrected_when_all_are_empty(
    broker: Broker, redis_server: RedisServer
) -> None:
    """A script that was cut may have counted what it did not add."""
    await share(broker, {})
    await submit(broker, "a", 3)
    with redis_server.client() as client:
        client.hincrby(f"{PREFIX}pace", f"{STREAMS[0]} tasks", 7)
    await broker.fetch("small-a", "small", 10)
    await submit(broker, "b", 1)
    measures = Measures(broker.client, "test", 900)
    assert (await measures.figures()).streams["normal", "small"].depth == 4
    await broker.fetch("small-a", "small", 10)
    with redis_server.client() as client:
        client.hincrby(f"{PREFIX}pace", f"{STREAMS[0]} tasks", 7)
    assert (await measures.figures()).streams["normal", "small"].depth == 4
    assert (await Demands(broker.client, "test", 1000).look("small")).runnable == 0


async def test_the_time_in_a_list_is_a_wait(broker: Broker) -> None:
    """Its entry is made when it is its turn; a retry was runnable when it became due."""
    await share(broker, {})
    before = await broker.logical_now()
    await submit(broker, "a", 1)
    await asyncio.sleep(0.05)
    ((delivery,), _) = await broker.fetch("small-a", "small", 10)
    assert delivery.tenant == "a"
    since = before.timestamp() * 1e6
    assert since - 1 <= delivery.runnable_since < int(delivery.fence) - 50_000
    await broker.settle(delivery, "retry", b"{}", delay=timedelta(milliseconds=100))
    await asyncio.sleep(0.15)
    await broker.promote()
    ((again,), _) = await broker.fetch("small-a", "small", 10)
    assert again.runnable_since >= int(delivery.fence) + 100_000
