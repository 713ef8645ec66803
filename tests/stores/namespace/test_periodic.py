"""Periodic entries in Redis: fired once, withdrawn when they change, paused, all under a term."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.messages.formats import FORMAT
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.periodic import Change, Periodic
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
STREAM = "{test}:tasks:normal:small"
SHOWN = {
    "task": "p:Sweep",
    "vo": "",
    "name": "default",
    "schedule": "s",
    "origin": "class",
    "enabled": True,
    "overlap": "",
    "catch_up": "one",
    "jitter": 0,
    "args": {},
}


@pytest.fixture
def leadership(broker: Broker) -> Leadership:
    return Leadership(broker, "test")


@pytest.fixture
def periodic(broker: Broker) -> Periodic:
    return Periodic(broker, "test")


@pytest.fixture
async def term(leadership: Leadership) -> str:
    return await leadership.lead("a", 30, "{}") or ""


def occurrence(number: int, *, due_us: int = 0) -> Submission:
    return Submission(f"p-{number}", "p:Sweep", "normal:small", b"e", due_us=due_us)


def change(
    verb: str, entry: str = "e", prints: tuple[str, ...] = ("s", "a"), **more: datetime
) -> Change:
    last = more.pop("last", NOON)
    return Change(verb, entry, "p:Sweep", last, prints=prints, next=LATER, shown=SHOWN, **more)


async def start(broker: Broker, *, ago: timedelta = timedelta(0)) -> None:
    """Let a worker have what is queued, as if it had begun some time ago."""
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    if ago:
        since = int(await broker.client.hget(f"{{test}}:t:{delivery.id}", "started"))
        since -= ago // timedelta(microseconds=1)
        await broker.client.hset(f"{{test}}:t:{delivery.id}", "started", since)


async def counts(periodic: Periodic, term: str) -> tuple[int, int, int, int]:
    await periodic.plan(term, [change("same")])
    (status,) = await periodic.statuses()
    return status.fired, status.skipped, status.missed, status.suppressed


async def test_an_occurrence_is_fired_once(broker: Broker, periodic: Periodic, term: str) -> None:
    """Firing an occurrence again, or an older one, does nothing, whoever leads."""
    assert await periodic.fire(term, "e", NOON, occurrence(1)) == "FIRED"
    assert await periodic.fire(term, "e", NOON, occurrence(1)) == "KNOWN"
    earlier = NOON - timedelta(seconds=1)
    assert await periodic.fire(term, "e", earlier, occurrence(0)) == "KNOWN"
    assert await periodic.pass_over(term, "e", earlier, 1, None) == "KNOWN"
    assert await broker.client.xlen(STREAM) == 1
    assert (await periodic.fired())["e"].last == NOON


async def test_a_deposed_leader_changes_nothing(
    broker: Broker, periodic: Periodic, leadership: Leadership, term: str
) -> None:
    """The scripts refuse a term that is not, or no longer, the leader's."""
    await leadership.resign("a", term)
    for _ in range(2):
        assert await periodic.fire(term, "e", NOON, occurrence(1)) == "DEPOSED"
        assert await periodic.pass_over(term, "e", NOON, 1, None) == "DEPOSED"
        assert await periodic.plan(term, [change("new")]) is None
        await leadership.lead("b", 30, "{}")
    assert await broker.client.exists("{test}:t:p-1", "{test}:periodic") == 0


async def test_a_lease_that_ran_out_is_no_lease(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """Nobody leads now, and whoever did must not act any more: another one may be about to."""
    await broker.client.hset("{test}:leader", "expiry", 1)
    assert await periodic.fire(term, "e", NOON, occurrence(1)) == "DEPOSED"
    assert await periodic.plan(term, [change("new")]) is None
    assert await broker.client.exists("{test}:t:p-1", "{test}:periodic") == 0


async def test_the_last_one_is_the_last_that_was_submitted(periodic: Periodic, term: str) -> None:
    """An occurrence that is passed over leaves it; before the first there is none."""
    await periodic.plan(term, [change("new", last=NOON - timedelta(days=1))])
    (status,) = await periodic.statuses()
    assert status.last is None
    await periodic.fire(term, "e", NOON, occurrence(1))
    await periodic.pass_over(term, "e", LATER, 1, None)
    (status,) = await periodic.statuses()
    assert (status.last, status.missed) == (NOON, 1)


@pytest.mark.parametrize("what", ["all", "stream:normal:small", "task:p:Sweep", "task:Sweep"])
async def test_what_holds_an_entry_back_is_told(
    broker: Broker, periodic: Periodic, term: str, what: str
) -> None:
    """A pause of everything, of its class, or of the stream that its occurrence waits in."""
    await periodic.fire(term, "e", NOON, occurrence(1))
    await periodic.plan(term, [change("same")])
    controls = Controls(broker.client, "test")
    await controls.pause(["stream:realtime:small", "task:p:Other"], "me", "")
    (status,) = await periodic.statuses()
    assert status.held_back is None
    await controls.pause([what], "ann@host 7", "tape is down")
    (status,) = await periodic.statuses()
    assert status.held_back is not None
    assert (status.held_back.what, status.held_back.reason) == (what, "tape is down")


async def test_one_occurrence_waits_at_a_time(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """The next one is held back until the one before has begun, whatever the overlap."""
    await periodic.fire(term, "e", NOON, occurrence(1))
    for overlap in ("skip", "queue", "allow"):
        answer = await periodic.fire(term, "e", LATER, occurrence(2), overlap=overlap)
        assert answer == "WAITING"
    await start(broker)
    assert await periodic.fire(term, "e", LATER, occurrence(2)) == "FIRED"


async def test_a_running_one_is_skipped_waited_for_or_overlapped(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """`skip` records it and goes on, `queue` waits for the end, `allow` submits it."""
    now = await broker.now()
    await periodic.fire(term, "e", now - timedelta(seconds=9), occurrence(1))
    await start(broker, ago=timedelta(seconds=8))
    at = [now - timedelta(seconds=seconds) for seconds in (5, 4, 3)]
    assert await periodic.fire(term, "e", at[0], occurrence(2), overlap="skip") == "SKIPPED"
    assert await periodic.fire(term, "e", at[0], occurrence(2), overlap="skip") == "KNOWN"
    assert await periodic.fire(term, "e", at[1], occurrence(3), overlap="queue") == "WAITING"
    assert await periodic.fire(term, "e", at[2], occurrence(4), overlap="allow") == "FIRED"
    assert await counts(periodic, term) == (2, 1, 0, 0)


async def test_one_that_began_late_does_not_skip_those_that_were_missed_with_it(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """After a takeover several are late: each waits for the one before, none is skipped."""
    now = await broker.now()
    await periodic.fire(term, "e", now - timedelta(seconds=9), occurrence(1))
    await start(broker)
    late = now - timedelta(seconds=5)
    assert await periodic.fire(term, "e", late, occurrence(2), overlap="late") == "WAITING"
    assert await periodic.fire(term, "e", late, occurrence(2), overlap="skip") == "SKIPPED"


async def test_one_that_is_retried_counts_as_running(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """Between two attempts an occurrence has begun and not ended."""
    await periodic.fire(term, "e", NOON, occurrence(1))
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, "retry", b"error", delay=timedelta(hours=1))
    assert await periodic.fire(term, "e", LATER, occurrence(2), overlap="skip") == "SKIPPED"
    later = LATER + timedelta(hours=1)
    assert await periodic.fire(term, "e", later, occurrence(3), overlap="allow") == "FIRED"


async def test_jitter_is_a_delay(broker: Broker, periodic: Periodic, term: str) -> None:
    """An occurrence with a time of its own is delayed until then, and waits meanwhile."""
    due = await broker.now() + timedelta(seconds=60)
    us = round(due.timestamp() * 1_000_000)
    assert await periodic.fire(term, "e", NOON, occurrence(1, due_us=us)) == "FIRED"
    assert await broker.client.zscore("{test}:tasks:delayed", "p-1") == us
    assert await periodic.fire(term, "e", LATER, occurrence(2)) == "WAITING"


async def test_a_plan_is_remembered_and_never_moved(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """A start is kept over restarts; what fires next and what was passed over is shown."""
    assert await periodic.plan(term, [change("new"), change("new", "f")]) == []
    assert await periodic.plan(term, [change("new", last=LATER), change("drop", "f")]) == []
    assert {entry: fired.last for entry, fired in (await periodic.fired()).items()} == {"e": NOON}
    assert await periodic.known() == {"e"}
    await periodic.pass_over(term, "e", LATER, 7, None)
    (status,) = await periodic.statuses()
    assert (status.missed, status.next, status.last) == (7, None, None)


async def test_older_data_are_brought_up_to_what_is_remembered(
    periodic: Periodic, term: str
) -> None:
    """The same entry goes on from the later of what Redis and the leader know."""
    await periodic.plan(term, [change("new")])
    await periodic.plan(term, [change("same", last=LATER)])
    assert (await periodic.fired())["e"].last == LATER
    await periodic.plan(term, [change("same", last=NOON)])
    assert (await periodic.fired())["e"].last == LATER


async def test_an_entry_that_changes_withdraws_what_has_not_begun(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """The waiting one is gone, and comes again under its id if it is still on the schedule."""
    await periodic.plan(term, [change("new")])
    await periodic.fire(term, "e", LATER, occurrence(1))
    before = LATER - timedelta(microseconds=1)
    turned = change("turn", prints=("s", "b"), last=LATER, again=before)
    for _ in range(2):  # its answer may be lost
        assert await periodic.plan(term, [turned]) == ["e"]
    assert await broker.client.xlen(STREAM) == 0
    assert (await periodic.fired())["e"].last == before
    assert await periodic.fire(term, "e", LATER, occurrence(1)) == "FIRED"
    assert await periodic.plan(term, [change("turn", last=LATER)]) == ["e"]
    assert (await periodic.fired())["e"].last == LATER
    assert (await broker.client.get("{test}:r:p-1")).startswith(b"cancelled|")


async def test_what_has_begun_is_not_withdrawn(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """A running occurrence, or one that is retried, goes on though its entry is gone."""
    await periodic.plan(term, [change("new"), change("new", "f")])
    await periodic.fire(term, "e", LATER, occurrence(1))
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await periodic.fire(term, "f", LATER, occurrence(2))
    (other,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(other, "retry", b"error", delay=timedelta(hours=1))
    turned = change("turn", "f", last=LATER, again=NOON)
    assert await periodic.plan(term, [change("drop"), turned]) == []
    assert (await periodic.fired())["f"].last == LATER
    assert await broker.settle(delivery, "done", b"document") == "OK"


async def test_what_newer_code_has_written_is_not_withdrawn(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """Only that knows what belongs to it: it runs, as one that has begun."""
    await periodic.plan(term, [change("new")])
    await periodic.fire(term, "e", LATER, occurrence(1))
    (key,) = await broker.client.keys(f"{broker.prefix}t:*")
    await broker.client.hset(key, "v", FORMAT + 1)
    assert await periodic.plan(term, [change("drop")]) == []
    assert await broker.client.exists(key)


@pytest.mark.parametrize("verb", ["off", "drop"])
async def test_who_is_planned_no_more_leaves_nothing(
    broker: Broker, periodic: Periodic, term: str, verb: str
) -> None:
    """Its waiting occurrence is cancelled; a disabled entry is still shown."""
    await periodic.plan(term, [change("new")])
    await periodic.fire(term, "e", LATER, occurrence(1))
    await periodic.pause(["e"], "me", "why")
    assert await periodic.plan(term, [change(verb)]) == ["e"]
    assert await periodic.fired() == {}
    assert await periodic.known() == ({"e"} if verb == "off" else set())
    left = {key async for key in broker.client.scan_iter("{test}:periodic*")}
    assert left == ({b"{test}:periodic:" + x for x in (b"entries", b"counts", b"paused")}
                    if verb == "off" else set())  # fmt: skip
    assert (await broker.client.get("{test}:r:p-1")).startswith(b"cancelled|")


async def test_a_paused_entry_passes_over_its_occurrences(
    broker: Broker, periodic: Periodic, term: str
) -> None:
    """Nothing is submitted, the grid goes on, and what was suppressed is counted."""
    await periodic.plan(term, [change("new"), change("new", "f")])
    assert await periodic.pause(["e"], "me", "tape library is down") == ["e"]
    assert await periodic.pause(["e", "f"], "you", "") == ["f"]
    assert await periodic.fire(term, "e", LATER, occurrence(1), missed=2) == "PAUSED"
    assert await broker.client.xlen(STREAM) == 0
    status = next(item for item in await periodic.statuses() if item.entry == "e")
    assert status.suppressed == 3 and "by me: tape library is down" in status.paused
    assert await periodic.resume(["e", "x"], "me") == ["e"]
    assert await periodic.fire(term, "e", LATER, occurrence(1)) == "KNOWN"
    told = [fields[b"text"].decode() for _, fields in await broker.client.xrange("{test}:events")]
    assert told == ["e: tape library is down", "f", "e"]


async def test_who_and_why_stand_in_one_line(broker: Broker, periodic: Periodic, term: str) -> None:
    """Separators and line ends are taken out; what nobody of us wrote is shown nevertheless."""
    await periodic.plan(term, [change("new"), change("new", "f")])
    await periodic.pause(["e"], "an|n@host 7\n", "tape |\nlibrary")
    await broker.client.hset("{test}:periodic:paused", "f", "foreign")
    told = [item.paused.partition(" ")[2] for item in await periodic.statuses()]
    assert told == ["by an/n@host 7: tape | library", "by "]
    (event,) = await Events(broker.client, "test").last(10)
    assert (event.who, event.text) == ("an/n@host 7", "e: tape | library")
