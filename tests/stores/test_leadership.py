"""The scheduler's lease and the firing of occurrences, on a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.stores.broker import Broker, Submission
from nonet.stores.leadership import Leadership

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
    assert await leadership.lead("b", 30, "{}") is not None


async def test_terms_grow_over_a_loss_of_all_data(broker: Broker, leadership: Leadership) -> None:
    """After a flush the next term is larger than every one before."""
    before = await leadership.lead("a", 30, "{}") or ""
    await broker.client.flushall()
    assert int(await leadership.lead("b", 30, "{}") or 0) > int(before)


async def test_an_occurrence_is_fired_once(broker: Broker, leadership: Leadership) -> None:
    """Firing an occurrence again, or an older one, does nothing, whoever leads."""
    term = await leadership.lead("a", 30, "{}") or ""
    assert await leadership.fire(term, "e", NOON, occurrence(1)) == "FIRED"
    assert await leadership.fire(term, "e", NOON, occurrence(1)) == "KNOWN"
    earlier = NOON - timedelta(seconds=1)
    assert await leadership.fire(term, "e", earlier, occurrence(0)) == "KNOWN"
    assert await broker.client.xlen("{test}:tasks:normal:small") == 1
    assert (await leadership.last_fired())["e"] == NOON


async def test_a_deposed_leader_fires_nothing(broker: Broker, leadership: Leadership) -> None:
    """The script refuses a term that is not, or no longer, the leader's."""
    term = await leadership.lead("a", 30, "{}") or ""
    await leadership.resign("a", term)
    assert await leadership.fire(term, "e", NOON, occurrence(1)) == "DEPOSED"
    await leadership.lead("b", 30, "{}")
    assert await leadership.fire(term, "e", NOON, occurrence(1)) == "DEPOSED"
    assert await broker.client.exists("{test}:t:p-1") == 0


async def test_one_occurrence_waits_at_a_time(broker: Broker, leadership: Leadership) -> None:
    """The next occurrence is held back until the one before has started."""
    term = await leadership.lead("a", 30, "{}") or ""
    later = NOON + timedelta(seconds=1)
    await leadership.fire(term, "e", NOON, occurrence(1))
    assert await leadership.fire(term, "e", later, occurrence(2)) == "WAITING"
    await broker.fetch("small-a", "small", 1)
    assert await leadership.fire(term, "e", later, occurrence(2)) == "FIRED"


async def test_planning_is_remembered_and_never_overwritten(leadership: Leadership) -> None:
    """An entry's start is kept over restarts, and a later plan does not move it."""
    term = await leadership.lead("a", 30, "{}") or ""
    later = NOON + timedelta(hours=1)
    assert await leadership.plan(term, ["e", "f"], [], NOON)
    assert await leadership.plan(term, ["e"], ["f"], later)
    assert await leadership.last_fired() == {"e": NOON}
    assert await leadership.store_next(term, "e", later)
    assert await leadership.next_of("e") == later
    assert await leadership.plan(term, [], ["e"], later)
    assert await leadership.last_fired() == {}
    assert await leadership.next_of("e") is None


async def test_a_deposed_leader_plans_nothing(leadership: Leadership) -> None:
    """What is remembered of entries changes under the leader's own term only."""
    old = await leadership.lead("a", 30, "{}") or ""
    await leadership.resign("a", old)
    term = await leadership.lead("b", 30, "{}") or ""
    await leadership.plan(term, ["e"], [], NOON)
    assert not await leadership.plan(old, ["x"], ["e"], NOON)
    assert not await leadership.store_next(old, "e", NOON)
    assert await leadership.last_fired() == {"e": NOON}
    assert await leadership.next_of("e") is None


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
