"""Periodic entries in Redis: fired once, withdrawn when they change, paused, all under a term."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import records

from nonet.base.messages.formats import FORMAT
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.events import Events
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
def periodic(broker: Broker) -> Periodic:
    return Periodic(broker, "test")


def occurrence(number: int, *, due_us: int = 0) -> Submission:
    return Submission(f"p-{number}", "p:Sweep", "normal:small", b"e", due_us=due_us)


def change(
    verb: str, entry: str = "e", prints: tuple[str, ...] = ("s", "a"), **more: datetime
) -> Change:
    last = more.pop("last", NOON)
    return Change(verb, entry, "p:Sweep", last, prints=prints, next=LATER, shown=SHOWN, **more)


async def start(broker: Broker, *, ago: timedelta = timedelta(0), retried: bool = False) -> None:
    """Let a worker have what is queued, as if it had begun some time ago."""
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    if ago:
        since = int(await records.hget(broker.client, f"{{test}}:t:{delivery.id}", "started"))
        since -= ago // timedelta(microseconds=1)
        await records.hset(broker.client, f"{{test}}:t:{delivery.id}", "started", since)
    if retried:
        await broker.settle(delivery, "retry", b"error", delay=timedelta(hours=1))


async def test_the_last_occurrence_is_a_submitted_one(periodic: Periodic, term: str) -> None:
    """An occurrence that is passed over leaves it; before the first there is none."""
    await periodic.plan(term, [change("new", last=NOON - timedelta(days=1))])
    (status,) = await periodic.statuses()
    assert status.last is None
    await periodic.fire(term, "e", NOON, occurrence(1))
    await periodic.pass_over(term, "e", LATER, 1, None)
    (status,) = await periodic.statuses()
    assert (status.last, status.missed) == (NOON, 1)


@pytest.mark.parametrize("what", ["all", "stream:normal:small", "task:p:Sweep", "task:Sweep"])
async def test_status_names_the_pause_of_an_entry(
    broker: Broker, periodic: Periodic, term: str, what: str
) -> None:
    """A pause of everything, of its class, or of its stream."""
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


async def test_one_occurrence_waits(broker: Broker, periodic: Periodic, term: str) -> None:
    """The next one is held back until a delayed or queued one has begun, whatever the overlap."""
    us = round((await broker.now()).timestamp() * 1_000_000) + 60_000_000
    assert await periodic.fire(term, "e", NOON, occurrence(1, due_us=us)) == "FIRED"
    assert await broker.client.zscore("{test}:tasks:delayed", "p-1") == us
    for overlap in ("skip", "queue", "allow"):
        answer = await periodic.fire(term, "e", LATER, occurrence(2), overlap=overlap)
        assert answer == "WAITING"
    await broker.client.zadd("{test}:tasks:delayed", {"p-1": 1})
    await broker.promote(term)
    await start(broker)
    assert await periodic.fire(term, "e", LATER, occurrence(2)) == "FIRED"


@pytest.mark.parametrize("retried", [False, True])
async def test_overlap_decides_beside_a_running_one(
    broker: Broker, periodic: Periodic, term: str, *, retried: bool
) -> None:
    """`skip` counts it, `queue` waits, `allow` submits it; between two attempts, too."""
    now = await broker.now()
    await periodic.fire(term, "e", now - timedelta(seconds=9), occurrence(1))
    await start(broker, ago=timedelta(seconds=8), retried=retried)
    at = [now - timedelta(seconds=seconds) for seconds in (5, 4, 3)]
    assert await periodic.fire(term, "e", at[0], occurrence(2), overlap="skip") == "SKIPPED"
    assert await periodic.fire(term, "e", at[0], occurrence(2), overlap="skip") == "KNOWN"
    assert await periodic.fire(term, "e", at[1], occurrence(3), overlap="queue") == "WAITING"
    assert await periodic.fire(term, "e", at[2], occurrence(4), overlap="allow") == "FIRED"
    await periodic.plan(term, [change("same")])
    (status,) = await periodic.statuses()
    assert (status.fired, status.skipped, status.missed, status.suppressed) == (2, 1, 0, 0)


async def test_late_occurrences_wait_in_turn(broker: Broker, periodic: Periodic, term: str) -> None:
    """After a takeover several are late: none of them is skipped."""
    now = await broker.now()
    await periodic.fire(term, "e", now - timedelta(seconds=9), occurrence(1))
    await start(broker)
    late = now - timedelta(seconds=5)
    assert await periodic.fire(term, "e", late, occurrence(2), overlap="late") == "WAITING"
    assert await periodic.fire(term, "e", late, occurrence(2), overlap="skip") == "SKIPPED"


async def test_a_planned_start_is_kept(broker: Broker, periodic: Periodic, term: str) -> None:
    """Over restarts; status shows what fires next and what was passed over."""
    assert await periodic.plan(term, [change("new"), change("new", "f")]) == []
    assert await periodic.plan(term, [change("new", last=LATER), change("drop", "f")]) == []
    assert {entry: fired.last for entry, fired in (await periodic.fired()).items()} == {"e": NOON}
    assert await periodic.known() == {"e"}
    await periodic.pass_over(term, "e", LATER, 7, None)
    (status,) = await periodic.statuses()
    assert (status.missed, status.next, status.last) == (7, None, None)
    for last in (LATER, NOON):  # the later of what Redis and the leader know
        await periodic.plan(term, [change("same", last=last)])
        assert (await periodic.fired())["e"].last == LATER


async def test_a_changed_entry_withdraws_it(broker: Broker, periodic: Periodic, term: str) -> None:
    """It comes again under its id if it is still on the schedule."""
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


@pytest.mark.parametrize("is_newer", [False, True])
async def test_a_begun_occurrence_remains(
    broker: Broker, periodic: Periodic, term: str, *, is_newer: bool
) -> None:
    """Running, retried or written by newer code, although its entry is gone or changed."""
    await periodic.plan(term, [change("new"), change("new", "f")])
    for number, entry in enumerate("ef"):
        await periodic.fire(term, entry, LATER, occurrence(number))
        if is_newer:
            await records.hset(broker.client, f"{{test}}:t:p-{number}", "v", FORMAT + 1)
        else:
            await start(broker, retried=entry == "f")
    turned = change("turn", "f", prints=("s", "b"), last=LATER, again=NOON)
    assert await periodic.plan(term, [change("drop"), turned]) == []
    assert (await periodic.fired())["f"].last == LATER
    assert await broker.client.exists("{test}:t:p-0", "{test}:t:p-1") == 2


@pytest.mark.parametrize("verb", ["off", "drop"])
async def test_a_removed_entry_leaves_nothing(
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


async def test_a_paused_entry_submits_none(broker: Broker, periodic: Periodic, term: str) -> None:
    """The schedule continues, and suppressed occurrences are counted."""
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


async def test_a_pause_is_shown_in_one_line(broker: Broker, periodic: Periodic, term: str) -> None:
    """Separators and line ends are replaced; a foreign value is shown, too."""
    await periodic.plan(term, [change("new"), change("new", "f")])
    await periodic.pause(["e"], "an|n@host 7\n", "tape |\nlibrary")
    await broker.client.hset("{test}:periodic:paused", "f", "foreign")
    told = [item.paused.partition(" ")[2] for item in await periodic.statuses()]
    assert told == ["by an/n@host 7: tape | library", "by "]
    (event,) = await Events(broker.client, "test").last(10)
    assert (event.who, event.text) == ("an/n@host 7", "e: tape | library")


async def test_an_occurrence_is_fired_once(broker: Broker, periodic: Periodic, term: str) -> None:
    """Firing an occurrence again, or an older one, does nothing, even under another leader."""
    assert await periodic.fire(term, "e", NOON, occurrence(1)) == "FIRED"
    assert await periodic.fire(term, "e", NOON, occurrence(1)) == "KNOWN"
    earlier = NOON - timedelta(seconds=1)
    assert await periodic.fire(term, "e", earlier, occurrence(0)) == "KNOWN"
    assert await periodic.pass_over(term, "e", earlier, 1, None) == "KNOWN"
    assert await broker.client.xlen(STREAM) == 1
    assert (await periodic.fired())["e"].last == NOON
