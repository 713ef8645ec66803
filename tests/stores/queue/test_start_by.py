"""Deadlines for the start: a task that no worker starts in time ends and never runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import records
from stores.namespace.test_cancellation import MUTEX, WHO, left_of
from stores.queue.test_broker import fetch, fetch_one, in_an_hour, lapse, open_group, record, task
from waits import WAIT_SECONDS

from nonet.base.messages.message import ResultDocument, encode
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.results import Results

HOUR_US = 3_600_000_000
SOON = "start_by|+1|"
SOON_KEPT = "start_by|+1|1"
LATER = f"start_by|+{HOUR_US}|"


async def let_pass(broker: Broker, id: str) -> None:
    """Let the deadline of a task be over, before any script has noticed."""
    kept = (await record(broker, id))["start_by"].partition("|")[2]
    await records.hset(broker.client, f"{{test}}:t:{id}", "start_by", f"1|{kept}")
    await broker.client.zadd("{test}:deadlines", {id: 1})


class TestExpiry:
    async def test_a_waiting_task_ends(self, broker: Broker, results: Results) -> None:
        """It leaves its queues, and the task behind it gets the lock."""
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

    async def test_a_clock_set_forward_expires_nothing(self, broker: Broker) -> None:
        """A fetch that knows a later bound of the time does not believe the server."""
        await broker.submit([task("a", terms=SOON)])
        an_hour_ago = await in_an_hour(broker) - 2 * HOUR_US
        waits = (1, 1, 1)
        head = ("fetch", broker.keeping, "small-a", "small", 1, 10, 1000, *waits)
        *_, row = await broker.scripts.run(*head, f"0|0|{an_hour_ago}", 4096)
        assert row[0] == b"a"

    async def test_the_group_counts_it_as_failed(self, broker: Broker) -> None:
        """An expired child is one that failed."""
        groups = await open_group(broker, 1)
        await broker.submit([task("a", group="g", terms=SOON)])
        await groups.seal("g", "")
        await broker.promote()
        assert [item.id for item in await fetch(broker)] == ["g.bad"]

    @pytest.mark.parametrize("where", ["queued", "paused", "fetched"])
    async def test_a_late_task_ends(self, broker: Broker, results: Results, where: str) -> None:
        """With the next promotion, even while paused, or with a fetch that comes first."""
        await broker.submit([task("a", terms=SOON), task("b", terms=LATER)])
        if where == "paused":
            await Controls(broker.client, "test").pause(["stream:normal:small"], WHO)
        if where != "fetched":
            assert (await broker.promote()).allowed
        assert [item.id for item in await fetch(broker)] == ["b"] * (where != "paused")
        found = await results.status("a")
        assert found is not None
        assert (found.state, found.attempt, found.reason) == ("expired", 0, "capacity")
        assert found.name == "probe:Task"
        assert found.error == "not started within 0 s (start_by)"
        assert found.finished is not None
        assert await left_of(broker, "a") == []
        assert await broker.submit([task("a")]) == [False]


class TestDeadLetters:
    """An expired task that is kept as a dead letter is dying until SQL has it."""

    async def test_a_worker_of_its_size_gets_it(self, broker: Broker, results: Results) -> None:
        """As a dying task with its reason; the task behind it gets its place."""
        await broker.submit([task("a", locks=MUTEX)])
        holder = await fetch_one(broker)
        kept = LATER + "1"
        await broker.submit([task("b", locks=MUTEX, terms=kept), task("c", locks=MUTEX)])
        assert await fetch(broker) == []
        await let_pass(broker, "b")
        await broker.promote()
        places = {"{test}:t:b", "{test}:burials:normal:small", "{test}:expired"}
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

    @pytest.mark.parametrize("where", ["queued", "delayed", "fetched"])
    async def test_a_late_task_is_in_one_place(self, broker: Broker, where: str) -> None:
        """As a dying task, also if a fetch finds it first; it comes again after a hand-back."""
        due_us = await in_an_hour(broker) if where == "delayed" else 0
        await broker.submit([task("a", due_us=due_us, terms=SOON_KEPT)])
        if where != "fetched":
            await broker.promote()
            assert (await record(broker, "a"))["state"] == "dying"
            assert await broker.client.xlen("{test}:tasks:normal:small") == 0
            assert await broker.client.xlen("{test}:burials:normal:small") == 1
            assert await broker.client.zcard("{test}:tasks:delayed") == 0
        first = await fetch_one(broker)
        await broker.settle(first, "back")
        again = await fetch_one(broker)
        assert (again.state, again.reason, again.died) == ("dying", "capacity", first.died)


class TestTheLeader:
    """It ends dying tasks that expired, without a worker and without their class."""

    async def test_ends_a_dying_task(self, broker: Broker, results: Results, term: str) -> None:
        """Record, pointer and place are gone, its group knows; repeated, nothing ends."""
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

    async def test_leaves_a_delivered_task(self, broker: Broker, term: str) -> None:
        """A worker that is about to write the row ends it, unless it hands the task back."""
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


class TestStarted:
    async def test_the_first_delivery_ends_the_deadline(self, broker: Broker) -> None:
        """Neither a retry nor a hand-back brings it back."""
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
    async def test_a_delivery_without_a_start_keeps_it(self, broker: Broker, outcome: str) -> None:
        """A worker that could not run the task, or lost the reply, uses no deadline."""
        await broker.submit([task("a", terms=LATER)])
        deadline = await broker.client.zscore("{test}:deadlines", "a")
        for _ in range(2):
            delivery = await fetch_one(broker)
            if outcome == "lost reply":
                assert len(await broker.disown("small-a", "small", [])) == 1
            else:
                assert await broker.settle(delivery, outcome, started=False) == "OK"
            assert await broker.client.zscore("{test}:deadlines", "a") == deadline
        await let_pass(broker, "a")
        await broker.promote()
        assert await left_of(broker, "a") == []

    async def test_the_death_of_its_worker_counts_as_a_start(self, broker: Broker) -> None:
        """The task is executed again, however late."""
        await broker.submit([task("a", terms=LATER)])
        delivery = await fetch_one(broker)
        await let_pass(broker, "a")
        await lapse(broker, delivery)
        taken, _ = await broker.reclaim("small-b", "small", new_cursors())
        assert taken == 1
        assert "start_by" not in await record(broker, "a")
        assert (await fetch_one(broker)).deaths == 1

    async def test_the_first_submission_sets_it(self, broker: Broker) -> None:
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
        instant = await in_an_hour(broker)
        await broker.submit([task("a", terms=f"start_by|{instant}|")])
        assert await broker.client.zscore("{test}:deadlines", "a") == instant - HOUR_US
        facts = await TaskFacts(broker.client, "test").read("a")
        assert facts.start_by == instant / 1e6

    async def test_promotion_comes_in_time(self, broker: Broker) -> None:
        """A promoter knows when the next task expires, and a near deadline wakes it."""
        promoted = await broker.promote()
        assert promoted.next_in is None
        await broker.submit([task("a", terms=f"start_by|+{60_000_000}|")])
        promoted = await broker.promote()
        assert promoted.next_in is not None and 50 < promoted.next_in <= 60
        assert await broker.client.exists("{test}:wake:promoter") == 0
        await broker.submit([task("b", terms="start_by|+1000000|")])
        assert await broker.client.exists("{test}:wake:promoter") == 1

    @pytest.mark.parametrize("how", ["deleted", "started"])
    async def test_a_left_over_entry_ends_nothing(self, broker: Broker, how: str) -> None:
        """The deadline of a task that is gone, or runs, is dropped."""
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
        """A set that was deleted is made again from the records."""
        await broker.submit([task("a", terms=LATER)])
        deadline = await broker.client.zscore("{test}:deadlines", "a")
        await broker.client.delete("{test}:deadlines")
        await broker.mend(timedelta(0))
        assert await broker.client.zscore("{test}:deadlines", "a") == deadline

    async def test_many_expire_in_batches(self, broker: Broker, results: Results) -> None:
        """A promotion expires a batch and reports that there are more."""
        await broker.submit([task(f"a{n}", terms=SOON) for n in range(25)])
        assert (await broker.promote(batch=10)).next_in == 0
        async with asyncio.timeout(WAIT_SECONDS):
            while (await broker.promote(batch=10)).next_in == 0:
                pass
        assert await left_of(broker, *(f"a{n}" for n in range(25))) == []
