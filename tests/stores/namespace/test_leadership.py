"""The scheduler's lease and the firing of occurrences, on a real server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def leadership(broker: Broker) -> Leadership:
    return Leadership(broker, "test")


def occurrence(number: int) -> Submission:
    return Submission(f"p-{number}", "p:Sweep", "normal:small", b"e")


async def test_one_leads_and_terms_grow(leadership: Leadership) -> None:
    """While a lease lasts nobody else gets it; each change of leader raises the term."""
    first = await leadership.lead("a", 30, "{}")
    assert await leadership.lead("b", 30, "{}") is None
    assert await leadership.lead("a", 0.05, "{}") == first
    second = None
    while second is None:
        second = await leadership.lead("b", 30, "{}")
    assert int(second) > int(first or 0)
    leader = await leadership.leader()
    assert leader and (leader.owner, leader.term) == ("b", second)


async def test_resigning_needs_the_own_term(leadership: Leadership) -> None:
    """A clean stop frees the lease at once; a deposed leader cannot free its successor's."""
    term = await leadership.lead("a", 30, "{}") or ""
    await leadership.resign("a", str(int(term) - 1))
    assert await leadership.lead("b", 30, "{}") is None
    await leadership.resign("a", term)
    assert await leadership._client.llen("{test}:wake:scheduler") == 1  # a standby looks at once
    assert await leadership.lead("b", 30, "{}") is not None


async def test_terms_grow_over_a_loss_of_all_data(broker: Broker, leadership: Leadership) -> None:
    """After a flush the next term is larger than every one before."""
    before = await leadership.lead("a", 30, "{}") or ""
    await broker.client.flushall()
    assert int(await leadership.lead("b", 30, "{}") or 0) > int(before)


async def test_who_led_before_a_loss_of_data_goes_first(
    broker: Broker, leadership: Leadership
) -> None:
    """A standby that lived through it too leaves the lease alone once; then it is anybody's."""
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


async def test_a_hook_of_another_epoch_or_term_is_not_remembered(broker: Broker) -> None:
    """What was done for data that are gone, or by who leads no more, is done again."""
    leadership = Leadership(broker, "test")
    term = await leadership.lead("a", 30, "{}") or ""
    since = leadership.epoch.since
    assert not await leadership.hook_ended(term, since - 1, "hook", "me")
    assert not await leadership.hook_ended("7", since, "hook", "me")
    assert await leadership.hooks_done(term, since) == set()
    assert await leadership.hook_ended(term, since, "hook", "me")
    assert await leadership.hooks_done(term, since) == {"hook"}
    assert await leadership.hooks_done("7", since) is None


async def test_failed_hooks_that_nobody_has_are_forgotten(broker: Broker) -> None:
    """A hook of an earlier release that failed is no problem for ever; those that ended stay."""
    leadership = Leadership(broker, "test")
    term = await leadership.lead("a", 30, "{}") or ""
    since = leadership.epoch.since
    for hook, problem in (("old", "it is broken"), ("mine", "it is broken"), ("ended", "")):
        assert await leadership.hook_ended(term, since, hook, "me", problem)
    await leadership.forget_hooks("7", [])
    await leadership.forget_hooks(term, ["mine"])
    left = await leadership._client.hkeys("{test}:startup")
    assert sorted(left) == [b"ended", b"mine"]
