"""The scheduler's lease, and what may be done only while it lasts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest

from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.ceilings import Ceilings
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.counts import Counts
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.fairness import Fairness
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.limits import Limits
from nonet.stores.namespace.periodic import Change, Periodic
from nonet.stores.namespace.publication import Publication
from nonet.stores.namespace.slots import Kind
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

STREAM = "normal:small"
AT = LimitAddress("job", "7")


@pytest.fixture
def leadership(broker: Broker) -> Leadership:
    return Leadership(broker, "test")


@pytest.mark.parametrize("end", ["resigned", "expired"])
async def test_a_deposed_leader_is_refused(
    broker: Broker, leadership: Leadership, end: str
) -> None:
    """Every script that acts for the leader refuses a term that is over."""
    term = await leadership.lead("a", 30, "{}") or ""
    since, clock, client = leadership.epoch.since, leadership.clock, broker.client
    assert clock and await leadership.hook_ended(term, since, "broken", "a", "it is broken")
    if end == "resigned":
        await leadership.resign("a", term)
        assert await leadership.lead("b", 30, "{}")
    else:
        await client.hset("{test}:leader", "expiry", 1)
    before = {key: await client.dump(key) for key in await client.keys("*")}
    at, item = datetime(2026, 1, 1, 12, tzinfo=UTC), Submission("p-1", "p:Sweep", STREAM, b"e")
    entry = Change("new", "e", "p:Sweep", at, prints=("s", "a"), next=at, shown={})
    periodic, publication = Periodic(broker, "test"), Publication(client, "test")
    document = {"source": "c.yaml", "revision": "", "who": "a"}
    step = timedelta(hours=1)
    refused = {
        "advance": await periodic.pass_over(term, "e", at, 1, None) == "DEPOSED",
        "expired": await broker.expired(term, 10) is None,
        "fire": await periodic.fire(term, "e", at, item) == "DEPOSED",
        "fold": await Counts(client, "test").fold(term, Kind.CLASS, {}, "") is None,
        "forget_hooks": await leadership.forget_hooks(term, []) is None,
        "forget_workers": await broker.forget_workers(term) is None,
        "hook_ended": not await leadership.hook_ended(term, since, "hook", "a"),
        "plan": await periodic.plan(term, [entry]) is None,
        "promote": not (await broker.promote(term)).allowed,
        "publish_ceilings": not await Ceilings(client, "test").publish(term, {"namespace": 1}, "a"),
        "publish_config": not await publication.publish(term, "v1", "{}", **document),
        "publish_demand": not await Demands(client, "test", 1000).publish(term, {"small": 1}),
        "publish_fairness": await Fairness(client, "test").publish(term, [STREAM], {}, "a") is None,
        "publish_limits": not await Limits(client, "test").publish(term, {AT: Limit(1)}, "a"),
        "report_config": not await publication.report(term, "is wrong"),
        "restore_pauses": await Controls(client, "test").restore(term, since, 0, {}) is None,
        "set_clock": not await leadership.set_clock(term, clock.offset, step, clock.now, "a"),
    }
    assert [name for name, is_refused in refused.items() if not is_refused] == []
    assert {key: await client.dump(key) for key in await client.keys("*")} == before
    scripts = (files("nonet.stores") / "scripts").iterdir()
    guarded = {path.name for path in scripts if path.is_file() and "leads(" in path.read_text()}
    assert guarded <= {f"{name}.lua" for name in refused}


async def test_only_the_leader_can_resign(leadership: Leadership) -> None:
    """The lease is free at once, and a standby is woken."""
    term = await leadership.lead("a", 30, "{}") or ""
    await leadership.resign("a", str(int(term) - 1))
    assert await leadership.lead("b", 30, "{}") is None
    await leadership.resign("a", term)
    assert await leadership._client.llen("{test}:wake:scheduler") == 1  # a standby looks at once
    assert await leadership.lead("b", 30, "{}") is not None


async def test_after_a_loss_the_last_leader_goes_first(
    broker: Broker, leadership: Leadership
) -> None:
    """A standby that saw the loss leaves the lease alone once."""
    other = Leadership(broker, "test")
    other.epoch = EpochSeen()
    await leadership.lead("a", 30, "{}")
    assert await other.lead("b", 30, "{}", has_led=False) is None
    await leadership._client.flushall()
    assert await other.lead("b", 30, "{}", has_led=False) is None
    assert await leadership.lead("a", 30, "{}") is not None
    await leadership._client.flushall()
    assert await other.lead("b", 30, "{}", has_led=False) is None
    assert await other.lead("b", 30, "{}", has_led=False) is not None


async def test_an_ended_hook_is_remembered(leadership: Leadership) -> None:
    """For its epoch and term; failed hooks of earlier releases are forgotten."""
    term = await leadership.lead("a", 30, "{}") or ""
    since = leadership.epoch.since
    assert not await leadership.hook_ended(term, since - 1, "hook", "me")
    assert await leadership.hooks_done(term, since) == set()
    assert await leadership.hook_ended(term, since, "hook", "me")
    assert await leadership.hooks_done(term, since) == {"hook"}
    assert await leadership.hooks_done("7", since) is None
    for hook in ("old", "mine"):
        assert await leadership.hook_ended(term, since, hook, "me", "it is broken")
    await leadership.forget_hooks(term, ["mine"])
    left = await leadership._client.hkeys("{test}:startup")
    assert sorted(left) == [b"hook", b"mine"]
