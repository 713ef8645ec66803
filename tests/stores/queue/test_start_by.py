"""Deadlines for the start: what nobody starts in time ends, wherever it waits, and never runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from stores.namespace.test_cancellation import MUTEX, WHO, left_of
from stores.queue.test_broker import fetch, fetch_one, open_group, record, task
from waits import WAIT_SECONDS

from nonet.messages.message import ResultDocument, encode
from nonet.rules.diagnosis import examine
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.results import Results

HOUR_US = 3_600_000_000
SOON = "start_by|+1|"
SOON_KEPT = "start_by|+1|1"
LATER = f"start_by|+{HOUR_US}|"


async def let_pass(broker: Broker, id: str) -> None:
    """The deadline of a task is over, without anybody having noticed."""
    kept = (await record(broker, id))["start_by"].partition("|")[2]
    await broker.client.hset(f"{{test}}:t:{id}", "start_by", f"1|{kept}")
    await broker.client.zadd("{test}:deadlines", {id: 1})


async def wall_us(broker: Broker) -> int:
    return int((await broker.now()).timestamp() * 1e6)


async def far_away(broker: Broker) -> int:
    return await wall_us(broker) + HOUR_US


class TestExpiry:
    async def test_queued(self, broker: Broker, results: Results) -> None:
        """A queued task ends with the next promotion, also without any worker of its size."""
        await broker.submit([task("a", terms=SOON), task("b")])
        assert (await broker.promote()).allowed
        found = await results.status("a")
        assert found is not None
        assert (found.state, found.attempt, found.reason) == ("expired", 0, "capacity")
        assert found.name == "probe:Task"
        assert found.error == "not started within 0 s (start_by)"
        assert found.finished is not None
        assert await left_of(broker, "a") == []
        assert [item.id for item in await fetch(broker)] == ["b"]
        assert await broker.submit([task("a")]) == [False]

    async def test_waiting(self, broker: Broker, results: Results) -> None:
        """A parked one leaves its queues, and who stood behind it gets the lock."""
        await broker.submit([task("a", locks=MUTEX)])
        await broker.submit([task("b", locks=MUTEX, terms=LATER), task("c", locks=MUTEX)])
        (holder,) = await fetch(broker)
        assert (await record(broker, "b"))["state"] == "waiting"
        await let_pass(broker, "b")
        await broker.promote()
        found = await results.status("b")
        assert found is not None and found.state == "expired"
        assert await left_of(broker, "b") == []
        await broker.settle(holder, "done")
        assert [item.id for item in await fetch(broker)] == ["c"]

    async def test_paused(self, broker: Broker, results: Results) -> None:
        """A pause stops no deadline."""
        await Controls(broker.client, "test").pause(["all"], who=WHO, reason="")
        await broker.submit([task("a", terms=SOON)])
        await broker.promote()
        found = await results.status("a")
        assert found is not None and found.state == "expired"

    async def test_a_fetch_that_comes_first(self, broker: Broker, results: Results) -> None:
        """Nobody has to notice before: what is too late is not handed over."""
        await broker.submit([task("a", terms=SOON), task("b", terms=LATER)])
        assert [item.id for item in await fetch(broker)] == ["b"]
        found = await results.status("a")
        assert found is not None and found.state == "expired"
        assert await left_of(broker, "a") == []

    async def test_only_a_clock_that_can_be_right_decides(self, broker: Broker) -> None:
        """A server's clock that somebody set forward lets a fetch expire nothing."""
        await broker.submit([task("a", terms=SOON)])
        now = await wall_us(broker)
        waits = (1, 1, 1)
        head = ("fetch", broker.keeping, "small-a", "small", 1, 10, 1000, *waits, "0|0", 4096)
        *_, row = await broker.scripts.run(*head, now - HOUR_US)
        assert row[0] == b"a"

    async def test_its_group(self, broker: Broker) -> None:
        """It counts as a child that failed."""
        groups = await open_group(broker, 1)
        await broker.submit([task("a", group="g", terms=SOON)])
        await groups.seal("g", "")
        await broker.promote()
        assert [item.id for item in await fetch(broker)] == ["g.bad"]


class TestDeadLetters:
    """One that belongs into SQL is dying until it is there."""

    async def test_a_worker_of_its_size_gets_it(self, broker: Broker, results: Results) -> None:
        """It comes as a dying one with its reason, and its place is that of the next."""
        await broker.submit([task("a", locks=MUTEX)])
        holder = await fetch_one(broker)
        kept = LATER + "1"
        await broker.submit([task("b", locks=MUTEX, terms=kept), task("c", locks=MUTEX)])
        assert await fetch(broker) == []
        await let_pass(broker, "b")
        await broker.promote()
        own = {f"{{test}}:{kind}:b" for kind in "tbl"}
        places = own | {"{test}:burials:normal:small", "{test}:expired"}
        assert set(await left_of(broker, "b")) == places
        (dying,) = await fetch(broker)
        assert (dying.id, dying.state, dying.reason) == ("b", "dying", "capacity")
        assert dying.detail.startswith("not started within ")
        assert dying.died != dying.gen
        assert await broker.settle(dying, "expired", b"") == "OK"
        found = await results.status("b")
        assert found is not None and found.state == "expired"
        assert await left_of(broker, "b") == []
        await broker.settle(holder, "done")
        assert [item.id for item in await fetch(broker)] == ["c"]

    @pytest.mark.parametrize("later", [True, False])
    async def test_it_is_in_one_place(self, broker: Broker, *, later: bool) -> None:
        """What pointed to it before is gone: one entry is left, that of a dying task."""
        due_us = await far_away(broker) if later else 0
        await broker.submit([task("a", due_us=due_us, terms=SOON_KEPT)])
        await broker.promote()
        assert (await record(broker, "a"))["state"] == "dying"
        assert await broker.client.xlen("{test}:tasks:normal:small") == 0
        assert await broker.client.xlen("{test}:burials:normal:small") == 1
        assert await broker.client.zcard("{test}:tasks:delayed") == 0

    async def test_a_fetch_that_comes_first(self, broker: Broker) -> None:
        """The fetch that finds it too late hands it over, as a dying one."""
        await broker.submit([task("a", terms=SOON_KEPT)])
        dying = await fetch_one(broker)
        assert (dying.state, dying.reason) == ("dying", "capacity")

    async def test_while_sql_is_away(self, broker: Broker) -> None:
        """It is handed back and comes again, for the same end."""
        await broker.submit([task("a", terms=SOON_KEPT)])
        await broker.promote()
        first = await fetch_one(broker)
        await broker.settle(first, "back")
        again = await fetch_one(broker)
        assert (again.state, again.reason, again.died) == ("dying", "capacity", first.died)


class TestTheLeader:
    """It ends what is dying because nobody started it, without a worker and without its class."""

    @pytest.fixture
    async def term(self, broker: Broker) -> str:
        term = await Leadership(broker, "test").lead("a", 60, "{}")
        assert term
        return term

    async def test_ends_what_no_worker_has(
        self, broker: Broker, results: Results, term: str
    ) -> None:
        """Its record, pointer and place are gone, its group knows; repeated, nothing ends."""
        groups = await open_group(broker, 1)
        await broker.submit([task("a", group="g", terms=SOON_KEPT), task("b", terms=SOON)])
        await groups.seal("g", "")
        await broker.promote(term)
        (found,) = await broker.expired(term, 10) or []
        assert (found.id, found.envelope, found.reason) == ("a", b"envelope", "capacity")
        assert await broker.end_expired([(found, b"")]) == []
        assert await broker.client.exists("{test}:expired") == 0
        document = encode(ResultDocument("probe:Task", 0, 1.0, error="late", reason="capacity"))
        assert await broker.end_expired([(found, document)]) == ["a"]
        assert await broker.end_expired([(found, document)]) == []
        status = await results.status("a")
        assert status is not None and (status.state, status.reason) == ("expired", "capacity")
        assert await left_of(broker, "a") == []
        assert [item.id for item in await fetch(broker)] == ["g.bad"]

    async def test_leaves_what_a_worker_has(self, broker: Broker, term: str) -> None:
        """A worker that is about to write the row ends it; one that hands it back does not."""
        await broker.submit([task("a", terms=SOON_KEPT)])
        await broker.promote(term)
        (seen,) = await broker.expired(term, 10) or []
        dying = await fetch_one(broker)
        assert await broker.expired(term, 10) == []
        assert await broker.end_expired([(seen, b"document")]) == []
        await broker.settle(dying, "back", delay=timedelta(hours=1))
        (found,) = await broker.expired(term, 10) or []
        assert await broker.end_expired([(found, b"document")]) == ["a"]
        assert await left_of(broker, "a") == []

    async def test_only_while_it_leads(self, broker: Broker, term: str) -> None:
        """Another term gets nothing; what has ended leaves the set."""
        await broker.submit([task("a", terms=SOON_KEPT)])
        await broker.promote(term)
        assert await broker.expired(term + "0", 10) is None
        await broker.settle(await fetch_one(broker), "expired", b"document")
        assert await broker.client.exists("{test}:expired") == 0


class TestStarted:
    async def test_from_the_first_delivery_on_there_is_no_deadline(self, broker: Broker) -> None:
        """Neither a retry, nor a hand-back, nor the death of its worker brings it back."""
        await broker.submit([task("a", terms=LATER)])
        delivery = await fetch_one(broker)
        assert await broker.client.exists("{test}:deadlines") == 0
        await broker.mend(timedelta(0))
        assert await broker.client.exists("{test}:deadlines") == 0
        assert (await TaskFacts(broker.client, "test").read("a")).start_by is None
        await broker.settle(delivery, "retry", b"error")
        assert "start_by" not in await record(broker, "a")
        await broker.settle(await fetch_one(broker), "back")
        assert (await fetch_one(broker)).attempt == 2

    @pytest.mark.parametrize("outcome", ["back", "on", "lost reply"])
    async def test_a_delivery_that_did_not_start_it(self, broker: Broker, outcome: str) -> None:
        """Who could not run it, or never heard of it, has used no deadline: it expires in time."""
        await broker.submit([task("a", terms=LATER)])
        deadline = await broker.client.zscore("{test}:deadlines", "a")
        for _ in range(2):
            delivery = await fetch_one(broker)
            if outcome == "lost reply":
                assert await broker.disown("small-a", "small", []) == 1
            else:
                assert await broker.settle(delivery, outcome, started=False) == "OK"
            assert await broker.client.zscore("{test}:deadlines", "a") == deadline
        await let_pass(broker, "a")
        await broker.promote()
        assert await left_of(broker, "a") == []

    async def test_the_death_of_its_worker_counts_as_a_start(self, broker: Broker) -> None:
        """Nobody can tell whether it was: it is executed again, however late."""
        await broker.submit([task("a", terms=LATER)])
        delivery = await fetch_one(broker)
        await let_pass(broker, "a")
        await broker.client.xclaim(
            f"{{test}}:{delivery.stream_key}", "workers", "small-a", 0, [delivery.entry], idle=10**8
        )
        taken, _ = await broker.reclaim("small-b", "small", new_cursors())
        assert taken == 1
        assert "start_by" not in await record(broker, "a")
        assert (await fetch_one(broker)).deaths == 1

    async def test_it_counts_from_the_first_submission(self, broker: Broker) -> None:
        """Submitting the id again, with another deadline or none, changes nothing."""
        await broker.submit([task("a", terms=LATER)])
        before = await record(broker, "a")
        deadline = int(before["start_by"].partition("|")[0])
        assert abs(deadline - int(before["gen"]) - HOUR_US) < 1000
        assert await broker.submit([task("a", terms=SOON), task("a")]) == [False, False]
        assert await record(broker, "a") == before
        assert await broker.client.zscore("{test}:deadlines", "a") == deadline

    async def test_an_instant_is_by_the_wall(self, broker: Broker) -> None:
        """It holds although logical time differs from that of the wall."""
        await broker.client.set("{test}:clock", -HOUR_US)
        instant = await far_away(broker)
        await broker.submit([task("a", terms=f"start_by|{instant}|")])
        assert await broker.client.zscore("{test}:deadlines", "a") == instant - HOUR_US
        facts = await TaskFacts(broker.client, "test").read("a")
        assert facts.start_by == instant / 1e6

    async def test_promotion_comes_in_time(self, broker: Broker) -> None:
        """Who promotes knows when the next one expires, and is told of a near one."""
        promoted = await broker.promote()
        assert promoted.next_in is None
        await broker.submit([task("a", terms=f"start_by|+{60_000_000}|")])
        promoted = await broker.promote()
        assert promoted.next_in is not None and 50 < promoted.next_in <= 60
        assert await broker.client.exists("{test}:wake:promoter") == 0
        await broker.submit([task("b", terms="start_by|+1000000|")])
        assert await broker.client.exists("{test}:wake:promoter") == 1

    @pytest.mark.parametrize("how", ["deleted", "started"])
    async def test_an_entry_that_is_left_over_ends_nothing(self, broker: Broker, how: str) -> None:
        """Of a task that is gone, or runs, the deadline is dropped."""
        await broker.submit([task("a")])
        delivery = await fetch_one(broker)
        if how == "deleted":
            await broker.settle(delivery, "done")
        await broker.client.zadd("{test}:deadlines", {"a": 1})
        await broker.promote()
        assert await broker.client.exists("{test}:deadlines") == 0
        assert await broker.client.exists("{test}:t:a") == (how == "started")


class TestUpkeep:
    async def test_the_walk_puts_back_a_deadline(self, broker: Broker) -> None:
        """The record has the truth; a set that somebody deleted is made again."""
        await broker.submit([task("a", terms=LATER)])
        deadline = await broker.client.zscore("{test}:deadlines", "a")
        await broker.client.delete("{test}:deadlines")
        await broker.mend(timedelta(0))
        assert await broker.client.zscore("{test}:deadlines", "a") == deadline

    async def test_the_doctor_finds_one_without_a_record(self, broker: Broker) -> None:
        """A deadline of no task is a finding; one of a task is none."""
        await broker.submit([task("a", terms=LATER)])
        await broker.client.zadd("{test}:deadlines", {"gone": 9e15})
        rows = [row async for row in Inspection(broker, "test").rows()]
        found = [finding for row in rows if (finding := examine(row, lease=1.0))]
        assert [(finding.kind, finding.what) for finding in found] == [("task", "gone")]

    async def test_many_expire_in_several_looks(self, broker: Broker, results: Results) -> None:
        """A promotion looks at so many; it says that there are more."""
        await broker.submit([task(f"a{n}", terms=SOON) for n in range(25)])
        assert (await broker.promote(batch=10)).next_in == 0
        async with asyncio.timeout(WAIT_SECONDS):
            while (await broker.promote(batch=10)).next_in == 0:
                pass
        assert await left_of(broker, *(f"a{n}" for n in range(25))) == []
