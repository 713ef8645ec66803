"""Limits that are published and overridden while tasks run, on a real server."""

from __future__ import annotations

import pytest
import records
from stores.beats import beat, lease_of

from nonet.rules.limit_changes import EffectiveLimit
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.limits import Limits, limits_version
from nonet.stores.namespace.lock_board import LockBoard
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import BaseLock, ConcurrencyLimiter, RateLimiter, encode_locks

KEY = LimitAddress("job", "7")
WHO = "alice@host 1"


@pytest.fixture
def limits(broker: Broker) -> Limits:
    return Limits(broker.client, "test")


async def submit(
    broker: Broker, *ids: str, locks: tuple[BaseLock, ...] = (), vo: str = "", name: str = "p:T"
) -> None:
    lines = encode_locks(locks, task=name.rpartition(":")[2], vo=vo)
    await broker.submit([Submission(id, name, "normal:small", b"e", lines) for id in ids])


async def fetch(broker: Broker) -> list[Delivery]:
    return (await broker.fetch("small-a", "small", 100, burials=100))[0]


async def fetch_ids(broker: Broker) -> list[str]:
    return [item.id for item in await fetch(broker)]


async def used(broker: Broker, address: LimitAddress) -> int | None:
    """How many executions count at a limiter."""
    return (await LockBoard(broker.client, "test").get(address.counter)).used


async def holding(limits: Limits) -> dict[str, str]:
    return {item.address.field: item.limit.encode() for item in await limits.all()}


async def test_a_published_limit_holds(broker: Broker, limits: Limits, term: str) -> None:
    """Until the configuration drops it again."""
    own = ConcurrencyLimiter("job", 7, limit=3)
    assert await limits.publish(term, {KEY: Limit(1)}, WHO)
    await submit(broker, "a", "b", "c", "d", locks=(own,))
    assert await fetch_ids(broker) == ["a"]
    assert await limits.publish(term, {}, WHO)
    await broker.promote(term)
    assert await fetch_ids(broker) == ["b", "c"]
    assert await broker.client.exists("{test}:limits", "{test}:limits:config") == 0
    assert await limits.published() == ""


FITS = [LimitAddress("job", key, action) for key in ("7", "default") for action in ("Act", "")]
OF_VO = LimitAddress("job", "default", vo="lhcb")


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        # Key and action, then key, then default and action, then default.
        (dict(zip(FITS, (1, 2, 3, 4), strict=True)), 1),
        ({LimitAddress("job", "7", "Other"): 1, FITS[1]: 2, FITS[2]: 3, FITS[3]: 4}, 2),
        ({LimitAddress("job", "8"): 2, FITS[2]: 3, FITS[3]: 4}, 3),
        ({FITS[3]: 4, LimitAddress("task", "default"): 9}, 4),
        # The VO's own before the common ones, however well those fit.
        ({FITS[0]: 1, OF_VO: 2, LimitAddress("job", "7", "Act", vo="other"): 3}, 2),
        # A limit of the other kind is none.
        ({LimitAddress("job", "7", "Act", "rate"): 1}, 5),
    ],
)
async def test_the_best_fit_wins(
    broker: Broker, limits: Limits, term: str, configured: dict[LimitAddress, int], expected: int
) -> None:
    """Key and action, then key, then default and action, then default."""
    window = {"rate": 60.0}
    await limits.publish(
        term, {at: Limit(n, window.get(at.limiter)) for at, n in configured.items()}, WHO
    )
    lock = ConcurrencyLimiter("job", 7, "Act", limit=5)
    await submit(broker, *map(str, range(8)), locks=(lock,), vo="lhcb")
    assert len(await fetch(broker)) == expected


async def test_a_vo_is_counted_apart(broker: Broker, limits: Limits, term: str) -> None:
    """Its own limit has a counter of its own; others share the common one."""
    await limits.publish(term, {KEY: Limit(1), LimitAddress("job", "7", vo="lhcb"): Limit(2)}, WHO)
    lock = ConcurrencyLimiter("job", 7)
    await submit(broker, "l1", "l2", "l3", locks=(lock,), vo="lhcb")
    await submit(broker, "g1", locks=(lock,), vo="gridpp")
    await submit(broker, "n1", locks=(lock,))
    assert await fetch_ids(broker) == ["l1", "l2", "g1"]
    lhcb = LimitAddress("job", "7", vo="lhcb")
    assert (await used(broker, lhcb), await used(broker, KEY)) == (2, 1)
    await limits.override(LimitAddress("job", "7", vo="lhcb"), Limit(3), WHO)
    await broker.promote(term)
    assert await fetch_ids(broker) == ["l3"]


@pytest.mark.parametrize("limiter", ["concurrency", "rate"])
@pytest.mark.parametrize("level", ["key", "default", "off", "removed", "vo"])
async def test_a_raised_limit_wakes_waiters(
    broker: Broker, limits: Limits, term: str, limiter: str, level: str
) -> None:
    """A higher limit, none, or one at another level, with the next promotion."""
    window = 60.0 if limiter == "rate" else None
    before = LimitAddress("job", "default" if level == "default" else "7", "", limiter)
    lock = (RateLimiter if limiter == "rate" else ConcurrencyLimiter)("job", 7)
    await limits.publish(term, {before: Limit(1, window)}, WHO)
    await submit(broker, "a", "b", "c", locks=(lock,), vo="lhcb")
    assert await fetch_ids(broker) == ["a"]
    after = {
        "off": {},
        "removed": {},
        "vo": {
            before: Limit(1, window),
            LimitAddress("job", "7", "", limiter, "lhcb"): Limit(3, window),
        },
    }.get(level, {before: Limit(3, window)})
    if level == "off":
        await limits.override(before, Limit(None), WHO)
    else:
        await limits.publish(term, after, WHO)
    assert await broker.client.exists("{test}:wake:promoter") == 1
    await broker.promote(term)
    assert await fetch_ids(broker) == ["b", "c"]
    assert await broker.client.zcard(f"{{test}}:queue:{lock.redis_key}") == 0


async def test_a_change_concerns_its_limiters(broker: Broker, limits: Limits, term: str) -> None:
    """Only limiters that it may concern are checked again."""
    locks = [
        ConcurrencyLimiter("job", 7, "Act", limit=1),
        ConcurrencyLimiter("job", 8, limit=1),
        ConcurrencyLimiter("task", 7, limit=1),
        RateLimiter("job", 7, limit=1, window_seconds=600),
    ]
    for lock in locks:
        await submit(broker, f"{lock}1", f"{lock}2", locks=(lock,))
    assert len(await fetch(broker)) == 4
    before = await broker.client.zrange("{test}:watch", 0, -1, withscores=True)
    await limits.publish(term, {KEY: Limit(1)}, WHO)
    after = dict(await broker.client.zrange("{test}:watch", 0, -1, withscores=True))
    changed = {name for name, at in before if after[name] != at}
    assert len(before) == 4
    assert changed == {b"limiter:conc:job:7:Act"}


async def test_a_waiter_made_impossible_ends(broker: Broker, limits: Limits, term: str) -> None:
    """It has more items than the lowered limit ever allows."""
    rate = LimitAddress("job", "7", "", "rate")
    await broker.client.zadd("{test}:workers", {"small-a": 2**52})  # for whom places are kept
    await limits.publish(term, {rate: Limit(5, 600)}, WHO)
    await submit(broker, "a", "b", locks=(RateLimiter("job", 7, n_items=4),))
    assert await fetch_ids(broker) == ["a"]
    await limits.publish(term, {rate: Limit(3, 600)}, WHO)
    await broker.promote(term)
    assert await broker.fetch("small-a", "small", 9) == ([], False)  # its burial has no room
    assert not await records.hget(broker.client, "{test}:t:b", "places"), "it stands in no queue"
    (delivery,) = await fetch(broker)
    assert (delivery.id, delivery.state, delivery.reason) == ("b", "dying", "limit-impossible")


async def test_a_class_limit_needs_no_limiter(broker: Broker, limits: Limits, term: str) -> None:
    """``Task: <Class>`` and ``Task: default`` hold for every class, each by itself."""
    at = {LimitAddress("task", "T"): Limit(2), LimitAddress("task", "default"): Limit(1)}
    await limits.publish(term, at, WHO)
    await submit(broker, *"abc")
    await submit(broker, *"xy", name="p:Other")
    assert await fetch_ids(broker) == ["a", "b", "x"]


async def test_a_new_limit_counts_the_running(
    broker: Broker, limits: Limits, redis_url: str
) -> None:
    """From their next beat on."""
    await submit(broker, *"abc", locks=(ConcurrencyLimiter("job", 7),))
    first, *_ = await fetch(broker)
    await limits.override(KEY, Limit(1), WHO)
    assert await used(broker, KEY) == 0
    assert beat(redis_url, lease_of(first)) == set()
    assert await used(broker, KEY) == 1
    await submit(broker, "d", locks=(ConcurrencyLimiter("job", 7),))
    assert await fetch_ids(broker) == []
    assert await broker.settle(first, "done", b"") == "OK"
    assert await used(broker, KEY) == 0
    assert await fetch_ids(broker) == ["d"]


async def test_published_limits_have_a_version(limits: Limits, term: str) -> None:
    """It follows the meaning, not the order."""
    one, other = {KEY: Limit(1)}, {LimitAddress("job", "8"): Limit(1)}
    assert limits_version({**one, **other}) == limits_version({**other, **one})
    assert limits_version(one) != limits_version(other) != limits_version({KEY: Limit(2)})
    await limits.publish(term, one, WHO)
    assert await limits.published() == limits_version(one)


async def test_an_override_outlives_publications(broker: Broker, limits: Limits, term: str) -> None:
    """It names its author, and the configuration holds after it."""
    other = LimitAddress("job", "8")
    await limits.publish(term, {KEY: Limit(1), other: Limit(1)}, WHO)
    await limits.override(KEY, Limit(5), WHO)
    assert await holding(limits) == {"C||job|7|": "5", "C||job|8|": "1"}
    await limits.publish(term, {KEY: Limit(2)}, WHO)
    assert await holding(limits) == {"C||job|7|": "5"}
    (item,) = await limits.all()
    now = await broker.now()
    assert item == EffectiveLimit(KEY, Limit(5), "override", WHO, item.since, Limit(2))
    assert item.since and abs((now - item.since).total_seconds()) < 60
    assert await limits.go_back(KEY, WHO)
    assert await limits.all() == [EffectiveLimit(KEY, Limit(2))]
    assert not await limits.go_back(KEY, WHO)
    await limits.override(other, Limit(None), WHO)
    await limits.publish(term, {}, WHO)
    assert await holding(limits) == {"C||job|8|": "off"}
    assert await limits.go_back(other, WHO)
    assert await broker.client.keys("{test}:limits*") == []


async def test_every_change_is_an_event(broker: Broker, limits: Limits, term: str) -> None:
    """Overrides and configured changes, with their author; repetitions are none."""
    rate = LimitAddress("job", "a b", "Act", "rate", "lhcb")
    await limits.publish(term, {KEY: Limit(1), rate: Limit(10, 0.5)}, "scheduler@host 2")
    await limits.publish(term, {KEY: Limit(1), rate: Limit(10, 0.5)}, "scheduler@host 2")
    for _ in range(2):
        await limits.override(KEY, Limit(5), WHO)
    await limits.go_back(KEY, WHO)
    await limits.publish(term, {KEY: Limit(2)}, "scheduler@host 2")
    found = await Events(broker.client, "test").last(100)
    assert [(item.kind, item.who, item.text) for item in found] == [
        (
            "limits-published",
            "scheduler@host 2",
            "concurrency job 7: not set -> 1; rate job a%20b Act of VO lhcb: not set -> 10 per"
            " 0.5 s",
        ),
        ("limit-set", WHO, "concurrency job 7: 1 -> 5"),
        ("limit-unset", WHO, "concurrency job 7: 5 -> 1"),
        (
            "limits-published",
            "scheduler@host 2",
            "concurrency job 7: 1 -> 2; rate job a%20b Act of VO lhcb: 10 per 0.5 s -> not set",
        ),
    ]
    assert [item.at for item in found] == sorted(item.at for item in found)


async def test_events_are_bounded(broker: Broker, limits: Limits) -> None:
    """The stream is capped, and a change of very many limits is one short event."""
    async with broker.client.pipeline(transaction=False) as pipe:
        for n in range(11_000):
            pipe.xadd("{test}:events", {"kind": "k", "at": n, "who": WHO, "text": "t"})
        await pipe.execute()
    term = await Leadership(broker, "test").lead("a", 30, "{}") or ""
    many = {LimitAddress("job", str(n)): Limit(1) for n in range(3000)}
    await limits.publish(term, many, WHO)
    assert await broker.client.xlen("{test}:events") < 10_200
    (last,) = await Events(broker.client, "test").last(1)
    assert last.text.endswith("; and 2980 more") and len(last.text) < 1000


class TestTenants:
    """Each task counts at the limiters of its tenant, whatever its class declares."""

    NAME = "lhc-b:é/x y"  # some of its characters are escaped in names of locks
    AT_MOST_2 = LimitAddress("tenant", NAME)

    @staticmethod
    async def submit(broker: Broker, tenant: str, *ids: str, locks: str = "") -> None:
        about = {"locks": locks, "terms": f"tenant|{tenant}" if tenant else ""}
        await broker.submit(
            [Submission(id, f"p:{id}", "normal:small", b"e", **about) for id in ids]
        )

    @pytest.mark.parametrize("locks", ["", encode_locks([ConcurrencyLimiter("job", 7)])])
    async def test_a_tenant_runs_a_number_at_a_time(
        self, broker: Broker, limits: Limits, term: str, locks: str
    ) -> None:
        """The others wait for that limiter, until one ends or the limit is raised."""
        await limits.publish(term, {self.AT_MOST_2: Limit(2)}, WHO)
        await self.submit(broker, self.NAME, *"abcde", locks=locks)
        await self.submit(broker, "cms", *"pqr")
        await self.submit(broker, "", "z")
        first, *others = await fetch(broker)
        assert [first.id, *(item.id for item in others)] == ["a", "b", "p", "q", "r", "z"]
        assert await used(broker, self.AT_MOST_2) == 2
        assert await broker.settle(first, "done", b"") == "OK"
        assert await fetch_ids(broker) == ["c"]
        await limits.override(self.AT_MOST_2, Limit(3), WHO)
        await broker.promote(term)
        assert await fetch_ids(broker) == ["d"]

    async def test_default_limits_each_tenant_by_itself(
        self, broker: Broker, limits: Limits, term: str
    ) -> None:
        """A rate limits starts."""
        at = LimitAddress("tenant", "default", limiter="rate")
        await limits.publish(term, {at: Limit(1, 60)}, WHO)
        await self.submit(broker, "a", "a1", "a2")
        await self.submit(broker, "b", "b1", "b2")
        assert await fetch_ids(broker) == ["a1", "b1"]
