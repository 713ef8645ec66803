"""What workers count over time: minutes that they report, and hours that the leader adds up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from redis import exceptions
from stores.beats import Reports

from nonet.base.errors import ServerUnreachableError
from nonet.rules.figures import DAY, RESOLUTIONS
from nonet.rules.vectors import LOAD, load_vector, vector
from nonet.stores.connection.redis import script
from nonet.stores.namespace.counts import Counts, loads_of
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.slots import Kind
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Counted
from nonet.stores.queue.submissions import Submission

PREFIX = "{test}:"
MINUTES, HOURS = timedelta(hours=3), timedelta(days=14)
FAR = 10**17


@pytest.fixture
def counts(broker: Broker) -> Counts:
    return Counts(broker.client, "test")


def ends(*numbers: int) -> dict[int, int]:
    return vector(numbers, numbers, [1], {})


class Clock:
    """The logical time, which a test moves, and a leader that does its duty."""

    def __init__(self, broker: Broker, counts: Counts) -> None:
        self.leadership = Leadership(broker, "test")
        self.client, self.counts = broker.client, counts
        self.by = 0

    async def pass_(self, **span: float) -> None:
        self.by += timedelta(**span) // timedelta(microseconds=1)
        await self.client.set(f"{PREFIX}clock", self.by)

    async def fold(self, kind: Kind = Kind.CLASS, loads: Any = (), latest: int | str = "") -> None:
        """Add all minutes that have ended."""
        term = await self.leadership.lead("leader", 3600, "{}") or ""
        for _ in range(200):
            found = await self.counts.fold(term, kind, dict(loads), latest)
            assert found is not None
            if not found[0]:
                return
        raise AssertionError("minutes are left after 200 calls")


@pytest.fixture
async def clock(broker: Broker, counts: Counts) -> Clock:
    """It is some seconds into an hour, so that what is reported at once is of one minute."""
    made = Clock(broker, counts)
    now = await broker.logical_now()
    await made.pass_(seconds=3600 - now.timestamp() % 3600 + 5)
    return made


async def read(counts: Counts, since: timedelta, **more: Any) -> dict[str, int]:
    return {item.name: item.total.ended for item in await counts.figures(since=since, **more)}


async def test_reports_of_workers_add_up(counts: Counts, reports: Reports, broker: Broker) -> None:
    """By minutes, also if a leader has added none to the hours; each slot expires."""
    more = {"m:A": vector([1, 1], [], [1], {}), "m:B": vector([0] * 11 + [70_000], [], [], {})}
    reports.add(Counted({"m:A": vector([298, 1], [300], [], {})}), Counted(more))
    for since in (timedelta(minutes=30), timedelta(hours=5)):
        one, other = await counts.figures(since=since)
        assert (one.name, one.total.ended, one.total.failed) == ("m:A", 301, 2)
        assert one.total.ends == {"done": 299, "retries": 2}
        assert one.total.wait.p50 == pytest.approx(0.0005) and one.total.run.p50 is not None
        assert (other.name, other.total.retried, other.total.wait.p50) == ("m:B", 70_000, None)
        for name in ("A", "m:A"):
            (found,) = await counts.figures(since=since, name=name)
            assert found.total == one.total and one.series == ()
            assert sum(item.figures.ended for item in found.series) == 301
    assert reports.offset == 0.0
    left = [await broker.client.ttl(key) for key in await broker.client.keys("{test}:figures:*")]
    assert len(left) == 2 and all(0 < seconds <= 10_860 for seconds in left)


async def test_a_report_counts_once(
    reports: Reports, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat whose reply was lost sends it again; what was counted meanwhile comes after it."""
    client, lost = reports.leases._client, iter([True])
    client.script_load(script("add_figures")[0])
    run = client.evalsha

    def deaf(*args: Any) -> Any:
        answer = run(*args)
        if next(lost, False):
            raise exceptions.ConnectionError("the reply was lost")
        return answer

    monkeypatch.setattr(client, "evalsha", deaf)
    with pytest.raises(ServerUnreachableError):
        reports.add(Counted({"m:A": {0: 5}}))
    reports.add(Counted({"m:A": {0: 2}}))
    assert await read(counts, MINUTES) == {"m:A": 7}


async def test_classes_are_bounded(
    reports: Reports, counts: Counts, clock: Clock, broker: Broker
) -> None:
    """Beyond 200 in a minute they share one name; in the history one that is idle makes room."""
    reports.add(Counted({f"m:C{n}": {0: 1} for n in range(250)}), Counted({"m:New": {0: 1}}))
    found = await read(counts, MINUTES)
    assert len(found) == 201 and (found["m:C1"], found["others"]) == (1, 51)
    await clock.pass_(minutes=1)
    await clock.fold()
    assert await read(counts, MINUTES) == found == await read(counts, HOURS)
    await clock.pass_(hours=26)
    reports.add(Counted({"m:C1": {0: 1}, "m:New": {0: 1}}))
    await clock.pass_(minutes=1)
    await clock.fold()
    found = await read(counts, HOURS)
    assert len(found) == 201 and (found["m:C1"], found["m:New"]) == (2, 1)
    lists = await broker.client.keys(f"{PREFIX}figures:hours:*")
    assert len(lists) == 201


def test_lua_and_python_agree() -> None:
    """Of the length of slots, how long they are kept, and which numbers are not added."""
    (minute, minutes), (hour, hours) = RESOLUTIONS
    assert minute == 60 and f"local KEPT = {minutes}  " in script("add_figures")[0]
    kept = minutes // minute, hours // hour
    assert "KEPT, HOURS, MOST = 60000000, {}, {}, ".format(*kept) in script("fold")[0]
    assert f"LOAD = {LOAD}\n" in script("fold")[0]


async def test_each_minute_counts_once_in_its_hour(
    reports: Reports, counts: Counts, clock: Clock
) -> None:
    """Also if two leaders add it; minutes that are not added yet count, too."""
    for number in range(1, 4):
        reports.add(Counted({"m:A": ends(number)}, {"cms": ends(number)}))
        await clock.fold(Kind.TENANT)
        if number < 3:
            await asyncio.gather(*(clock.fold() for _ in range(3)))
        for kind, name in ((Kind.CLASS, "m:A"), (Kind.TENANT, "cms")):
            for since in (MINUTES, HOURS):
                total = sum(range(number + 1))
                assert await read(counts, since, kind=kind) == {name: total}
                assert await read(counts, since, kind=kind, name=name) == {name: total}
        await clock.pass_(minutes=25)
    (found,) = await counts.figures(since=HOURS, name="m:A")
    assert [item.figures.ended for item in found.series] == [6]
    await clock.pass_(hours=1)
    reports.add(Counted({"m:A": ends(4)}))
    await clock.pass_(minutes=30)
    await clock.fold()
    (found,) = await counts.figures(since=HOURS, name="m:A")
    assert [item.figures.ended for item in found.series] == [6, 4]
    (found,) = await counts.figures(since=timedelta(hours=1), name="m:A")
    assert [item.figures.ended for item in found.series] == [4]
    # A reader counts no minute twice that a leader adds meanwhile.
    await clock.client.hset(f"{PREFIX}figures:added", Kind.CLASS, 0)
    assert await read(counts, HOURS, name="m:A") == {"m:A": 10}


async def test_the_day_before_is_compared(reports: Reports, counts: Counts, clock: Clock) -> None:
    """By hours, whatever the time that is compared."""
    reports.add(Counted({"m:A": ends(120)}, streams={"normal:small": ends(120)}))
    await clock.pass_(minutes=1)
    for kind in Kind:
        await clock.fold(kind)
    await clock.pass_(hours=24)
    (found,) = await counts.figures(since=timedelta(minutes=30), name="m:A", compares=True)
    # The time from half past until now overlaps two hours.
    assert (found.total.ended, found.ended_per_minute_before) == (0, 1.0)
    assert [item.figures.ended for item in found.before] == [120]
    of_all = await counts.of_all(since=timedelta(hours=12))
    assert [item.figures.ended for item in of_all.before] == [120]
    (found,) = await counts.figures(since=DAY, name="m:A", compares=True)
    assert (found.total.ended, [item.figures.ended for item in found.before]) == (120, [120])


async def test_the_leader_notes_how_much_there_is(
    broker: Broker, counts: Counts, clock: Clock
) -> None:
    """Of each stream and of all, the most of an hour; submissions only while they are counted."""
    measures = Measures(broker.client, "test", 900)
    await clock.fold(Kind.STREAM, loads=loads_of(await measures.figures()))
    assert await counts.submitted() is None
    await measures.figures(count_accepted=True)
    for number in range(1, 5):
        await clock.pass_(minutes=1)
        await broker.submit(
            [Submission(f"{number}.{n}", "p:T", "normal:small", b"e") for n in range(6)]
        )
        await clock.fold(Kind.STREAM, loads=loads_of(await measures.figures()))
    assert await counts.submitted() == pytest.approx(0.1)
    found = await counts.of_all(since=MINUTES)
    queued = [slot.load.queued for slot in found.series if slot.load]
    assert (queued, found.series[-1].load.submitted_per_minute) == ([0, 6, 12, 18, 24], 6)
    (stream,) = await counts.figures(Kind.STREAM, since=HOURS, name="normal:small")
    assert [slot.load and slot.load.queued for slot in stream.series] == [24]
    assert stream.series[0].load.oldest_seconds >= 0


async def test_nothing_is_added_while_the_clock_is_ahead(
    reports: Reports, counts: Counts, clock: Clock
) -> None:
    """Nor by a scheduler that leads no more."""
    reports.add(Counted({"m:A": ends(7)}))
    now = await clock.client.time()
    await clock.pass_(minutes=10)
    latest = now[0] * 1_000_000
    await clock.fold(latest=latest)
    assert await clock.client.exists(f"{PREFIX}figures:added") == 0
    assert await counts.fold("0", Kind.CLASS, {"x": load_vector(queued=1)}, "") is None
    await clock.fold()
    assert await read(counts, HOURS) == {"m:A": 7}


async def test_a_clock_that_was_set_back_doubles_nothing(
    reports: Reports, counts: Counts, clock: Clock
) -> None:
    """By minutes the history waits; by more than minutes are kept it begins anew."""
    reports.add(Counted({"m:A": ends(7)}))
    await clock.pass_(minutes=30)
    await clock.fold()
    await clock.pass_(minutes=-30)
    await clock.fold()
    await clock.pass_(minutes=40)
    await clock.fold()
    assert await read(counts, HOURS) == {"m:A": 7}
    await clock.pass_(days=-1)
    reports.add(Counted({"m:A": ends(5)}))
    await clock.pass_(minutes=2)
    await clock.fold()
    assert await read(counts, timedelta(hours=5)) == {"m:A": 5}


async def test_history_begins_anew_after_a_flush(
    reports: Reports, counts: Counts, clock: Clock
) -> None:
    """Redis alone keeps it; the leader and workers go on."""
    reports.add(Counted({"m:A": ends(7)}))
    await clock.pass_(minutes=2)
    await clock.fold()
    await clock.client.flushall()
    await clock.pass_()
    assert await read(counts, HOURS) == {}
    reports.add(Counted({"m:A": ends(3)}))
    await clock.pass_(minutes=2)
    await clock.fold()
    assert await read(counts, HOURS) == {"m:A": 3}
