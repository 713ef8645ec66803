"""Pausing and resuming on a real server: what starts, what waits, and what it costs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest
from stores.queue.test_broker import fetch, record, task, until_due
from waits import WAIT_SECONDS

from nonet.rules import pauses
from nonet.rules.diagnosis import examine
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.events import Event, Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import ConcurrencyLimiter, MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
WHO = "ann@host 7"
ALL = "all"
STREAM = "stream:normal:small"


@pytest.fixture
def controls(broker: Broker) -> Controls:
    return Controls(broker.client, "test")


def of(name: str, id: str, stream: str = "normal:small", locks: str = "") -> Submission:
    return Submission(id, name, stream, b"envelope", locks)


async def ids(broker: Broker, free: int = 10) -> list[str]:
    return [item.id for item in await fetch(broker, free)]


async def register(broker: Broker, worker: str = "small-a") -> None:
    """A worker that lives: places are kept for the tasks that are woken."""
    now = int((await broker.now()).timestamp() * 1e6)
    await broker.client.zadd("{test}:workers", {worker: now + 60_000_000})


async def all_of(broker: Broker) -> list[str]:
    """Fetch and settle until nothing is left, promoting between; ids in the order of delivery."""
    found: list[str] = []
    for _ in range(100):
        while await broker.client.zcount("{test}:watch", 0, "+inf"):
            promoted = await broker.promote()
            if promoted.next_in != 0:
                break
        got = await fetch(broker, 50)
        if not got:
            return found
        found += [item.id for item in got]
        for item in got:
            assert await broker.settle(item, "done") == "OK"
    raise AssertionError(f"there is no end: {found[-10:]}")


async def calls(broker: Broker) -> int:
    stats = await broker.client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


EVERY_PAUSE = ["all", "stream:normal:small", "task:Task", "task:probe:Task"]


class TestWhatIsPaused:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_nothing_starts_until_it_is_resumed(
        self, broker: Broker, controls: Controls, what: str
    ) -> None:
        """Whatever is paused: submits are accepted, nothing starts; then all start, each once."""
        await broker.submit([task("a"), task("b", locks=MUTEX)])
        await controls.pause([what], WHO)
        await broker.submit([task("c")])
        assert await ids(broker) == []
        assert await ids(broker) == []
        await controls.resume([what], WHO)
        assert await all_of(broker) == ["a", "b", "c"]
        assert await broker.client.keys("{test}:queue:*") == []

    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_what_runs_goes_on(self, broker: Broker, controls: Controls, what: str) -> None:
        """A running task can be settled, and what it hands back waits with the others."""
        await broker.submit([task("a"), task("b")])
        first, second = await fetch(broker)
        await controls.pause([what], WHO)
        assert await broker.settle(first, "done") == "OK"
        assert await broker.settle(second, "back") == "OK"
        assert await ids(broker) == []
        await controls.resume([what], WHO)
        assert await all_of(broker) == ["b"]

    async def test_the_others_start(self, broker: Broker, controls: Controls) -> None:
        """A stream or class that is paused keeps nothing else up."""
        await controls.pause([STREAM, "task:m:One"], WHO)
        await broker.submit(
            [
                of("m:One", "a", "background:small"),
                of("n:One", "b", "background:small"),
                of("m:Two", "c", "background:small"),
                of("m:Two", "d", "normal:small"),
                of("m:Two", "e", "realtime:small"),
            ]
        )
        assert await ids(broker) == ["e", "b", "c"]

    async def test_a_bare_name_means_every_category(
        self, broker: Broker, controls: Controls
    ) -> None:
        """A bare name pauses the class in each category; resuming one leaves the others' pause."""
        await controls.pause(["task:One", "task:m:One"], WHO)
        await broker.submit([of("m:One", "a"), of("n:One", "b"), of("m:OneMore", "c")])
        assert await ids(broker) == ["c"]
        await controls.resume(["task:One"], WHO)
        assert await all_of(broker) == ["b"]
        await controls.resume(["task:m:One"], WHO)
        assert await all_of(broker) == ["a"]

    async def test_an_aged_task_does_not_slip_through(
        self, broker: Broker, controls: Controls
    ) -> None:
        """One of age is read among the realtime ones; a pause of its own stream holds for it."""
        await register(broker)
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        (holder,) = await fetch(broker)
        await broker.client.hset("{test}:t:b", mapping={"since": 1})
        await until_due(broker, "b")
        assert (await record(broker, "b"))["aged"] == "1"
        await broker.settle(holder, "done")
        assert await broker.client.xlen("{test}:woken:realtime:small") == 1
        await controls.pause([STREAM], WHO)
        assert await ids(broker) == []
        # Nor does it keep the lock from others.
        await broker.submit([of("m:Other", "c", "background:small", MUTEX)])
        assert await ids(broker) == ["c"]

    async def test_an_aged_task_of_another_stream_starts(
        self, broker: Broker, controls: Controls
    ) -> None:
        """A pause of the realtime stream holds for its own tasks, not for those of age."""
        await register(broker)
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        (holder,) = await fetch(broker)
        await broker.client.hset("{test}:t:b", mapping={"since": 1})
        await until_due(broker, "b")
        await controls.pause(["stream:realtime:small"], WHO)
        await broker.submit([of("m:Other", "c", "realtime:small")])
        await broker.settle(holder, "done")
        assert await ids(broker) == ["b"]

    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_what_was_handed_back_waits_with_the_others(
        self, broker: Broker, controls: Controls, what: str
    ) -> None:
        """Its pause ends while it is paused: it stands where a resume finds it."""
        await broker.submit([task("a", locks=MUTEX)])
        (delivery,) = await fetch(broker)
        await broker.settle(delivery, "back", delay=timedelta(hours=1))
        await controls.pause([what], WHO)
        await until_due(broker, "a")
        assert (await record(broker, "a"))["state"] == "waiting"
        assert await ids(broker) == []
        await controls.resume([what], WHO)
        assert await all_of(broker) == ["a"]


class TestLocks:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_a_paused_waiter_keeps_nobody_away(
        self, broker: Broker, controls: Controls, what: str
    ) -> None:
        """A task that is paused while it waits lets those behind it have the lock."""
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        (holder,) = await fetch(broker)
        await controls.pause([what], WHO)
        if what != ALL:
            await broker.submit([of("m:Other", "c", "background:small", MUTEX)])
            assert await ids(broker) == []
        await broker.settle(holder, "done")
        assert await ids(broker) == ([] if what == ALL else ["c"])
        assert (await record(broker, "b"))["state"] == "waiting"
        assert (await record(broker, "b"))["blocker"] == "paused:normal:small:probe:Task"

    async def test_a_woken_one_gives_its_places_up(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Paused between wake-up and fetch: the lock goes to the next at once."""
        await register(broker)
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        await broker.submit([of("m:Other", "c", "background:small", MUTEX)])
        holder = (await fetch(broker))[0]
        await broker.settle(holder, "done")
        assert (await record(broker, "b"))["state"] == "queued"
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        assert await ids(broker) == ["c"]

    async def test_rank_is_kept(self, broker: Broker, controls: Controls) -> None:
        """Those resumed come in the order of their first submission, whatever held them up."""
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task(f"a{n:02}", locks=MUTEX) for n in range(20)])
        assert await ids(broker, 100) == []
        await controls.resume(["task:Task"], WHO)
        assert await all_of(broker) == [f"a{n:02}" for n in range(20)]

    async def test_limits_of_the_class_and_a_pause(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Limits that are set or unset while a task is paused do not lose its place."""

        class Two(ConcurrencyLimiter):
            limit = 2

        lines = encode_locks([Two("job", 1), MutexLock("job", 2)])
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task(f"a{n}", locks=lines) for n in range(4)])
        assert await ids(broker) == []
        await broker.client.hset("{test}:limits", "C||task|Task|", "1")
        await until_due(broker, "a0")
        await controls.resume(["task:Task"], WHO)
        assert await all_of(broker) == ["a0", "a1", "a2", "a3"]
        assert await broker.client.keys("{test}:queue:*") == []


class TestAging:
    async def test_time_at_a_pause_does_not_count(self, broker: Broker, controls: Controls) -> None:
        """Paused for longer than it takes to come of age, a task starts in its own stream."""
        await register(broker)
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task("a", "background:small")])
        assert await ids(broker) == []
        await broker.client.hset("{test}:t:a", "since", 1)
        await until_due(broker, "a")
        assert (await record(broker, "a"))["aged"] == "0"
        # Nor is it looked at by itself as if it were about to come of age.
        look = await broker.client.zscore("{test}:tasks:delayed", "a")
        assert look > (await broker.now()).timestamp() * 1e6
        await controls.resume(["task:Task"], WHO)
        await broker.promote()
        assert await broker.client.xlen("{test}:woken:background:small") == 1
        assert int((await record(broker, "a"))["since"]) > 1

    async def test_who_leaves_a_pause_for_a_lock_ages_anew(
        self, broker: Broker, controls: Controls
    ) -> None:
        """After the resume another lock refuses it: it has waited for that from then on."""
        await broker.submit([of("m:Other", "o", locks=MUTEX)])
        await fetch(broker)
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task("a", locks=MUTEX)])
        assert await ids(broker) == []
        await broker.client.hset("{test}:t:a", "since", 1)
        await controls.resume(["task:Task"], WHO)
        await until_due(broker, "a")
        found = await record(broker, "a")
        assert (found["state"], found["aged"]) == ("waiting", "0")
        assert int(found["since"]) > 1
        await broker.client.hset("{test}:t:a", "since", 1)
        await until_due(broker, "a")
        assert (await record(broker, "a"))["aged"] == "1"

    @pytest.mark.parametrize("is_woken", [True, False])
    async def test_who_was_of_age_is_so_no_more_after_a_pause(
        self, broker: Broker, controls: Controls, is_woken: bool
    ) -> None:
        """Whether a look or a fetch moves it to the pause."""
        await register(broker)
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        (holder,) = await fetch(broker)
        await broker.client.hset("{test}:t:b", "since", 1)
        await until_due(broker, "b")
        assert (await record(broker, "b"))["aged"] == "1"
        if is_woken:
            await broker.settle(holder, "done")
        await controls.pause(["task:Task"], WHO)
        if is_woken:
            assert await ids(broker) == []
        else:
            await until_due(broker, "b")
            await broker.settle(holder, "done")
        found = await record(broker, "b")
        assert (found["state"], found["aged"]) == ("waiting", "0")
        await controls.resume(["task:Task"], WHO)
        await broker.promote()
        assert await broker.client.xlen("{test}:woken:normal:small") == 1
        assert await ids(broker) == ["b"]


class TestCost:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_paused_work_keeps_nobody_busy(
        self, broker: Broker, controls: Controls, what: str
    ) -> None:
        """A thousand paused tasks are looked at once at most; then a fetch ends as idle."""
        await broker.submit([task(f"a{n}") for n in range(1000)])
        await controls.pause([what], WHO)
        fetches, more = 0, True
        while more:
            got, more = await broker.fetch("small-a", "small", 100)
            fetches += 1
            assert got == []
        assert fetches <= 12
        assert await broker.client.zscore("{test}:idle:small", "small-a") is not None
        # No promotion has anything to do before the safety nets look.
        promoted = await broker.promote()
        assert promoted.next_in is None or promoted.next_in > 1
        assert (await broker.fetch("small-a", "small", 100))[1] is False
        # What can stay in its stream is not even looked at.
        stays = 0 if what.startswith("task:") else 1000
        assert await broker.client.xlen("{test}:tasks:normal:small") == stays

    @pytest.mark.parametrize("are_due", [True, False])
    @pytest.mark.parametrize("locks", ["", MUTEX])
    async def test_a_thousand_are_resumed_in_bounded_steps(
        self, broker: Broker, controls: Controls, locks: str, are_due: bool
    ) -> None:
        """Each step looks at some eighty, in whatever way; the next follows until none is left.

        Eighty take 2 to 5 ms.
        """
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task(f"a{n}", locks=locks) for n in range(1000)])
        while (await broker.fetch("small-a", "small", 100))[1]:
            pass
        if are_due:
            delayed = "{test}:tasks:delayed"
            await broker.client.zunionstore(delayed, {delayed: 0})
        await broker.client.delete("{test}:wake:promoter")
        await controls.resume(["task:Task"], WHO)
        assert await broker.client.exists("{test}:wake:promoter") == 1  # at once
        at_pause = "{test}:queue:paused:normal:small:probe:Task"
        left, more = [await broker.client.zcard(at_pause)], True
        while more:
            more = (await broker.promote(batch=100)).next_in == 0
            left.append(await broker.client.zcard(at_pause))
        steps = [before - after for before, after in pairwise(left)]
        assert left[0] == 1000 and left[-1] == 0
        assert max(steps) <= 80 and len(steps) <= 30

    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_a_resume_wakes_the_idle(
        self, broker: Broker, controls: Controls, what: str
    ) -> None:
        """A worker that sleeps is woken by the resume, or by the promotion that follows it."""
        await register(broker)
        await broker.submit([task("a")])
        await controls.pause([what], WHO)
        assert await ids(broker) == []
        await broker.client.delete("{test}:wake:small-a")
        waiting = asyncio.create_task(broker.wait_for_wake("small-a"))
        await controls.resume([what], WHO)
        await broker.promote()
        await waiting
        assert await ids(broker) == ["a"]

    async def test_sizes_that_are_not_concerned_sleep_on(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Resuming a stream wakes the workers of its size alone."""
        for size in ("small", "large"):
            await register(broker, f"{size}-a")
            await broker.fetch(f"{size}-a", size, 1)
        await controls.pause([STREAM], WHO)
        await controls.resume([STREAM], WHO)
        assert await broker.client.exists("{test}:wake:small-a") == 1
        assert await broker.client.exists("{test}:wake:large-a") == 0


class TestRaces:
    async def test_pausing_and_resuming_while_work_is_done(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Submits, fetches, promotions and pauses at random: each task is executed once."""
        done: list[str] = []
        stop = asyncio.Event()

        async def work(worker: str) -> None:
            while not (stop.is_set() and len(done) == 400):
                for item in await fetch(broker, 7, worker):
                    done.append(item.id)
                    assert await broker.settle(item, "done") == "OK"
                await broker.promote()

        async def pause() -> None:
            for n in range(60):
                what = EVERY_PAUSE[n % 4]
                await controls.pause([what], WHO)
                await controls.resume([what], WHO)
            stop.set()

        async def submit() -> None:
            for n in range(400):
                await broker.submit([task(f"a{n}", locks=MUTEX if n % 10 == 0 else "")])

        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(work("small-a"), work("small-b"), pause(), submit())
        assert sorted(done) == sorted(f"a{n}" for n in range(400))


class TestBookkeeping:
    async def test_who_and_why_is_kept(self, broker: Broker, controls: Controls) -> None:
        """A pause tells since when, by whom and why; so does the event stream."""
        await controls.pause([STREAM, "task:One"], WHO, "disk\nfull | soon")
        found = await controls.load()
        assert [(item.what, item.who, item.reason) for item in found] == [
            (STREAM, WHO, "disk full | soon"),
            ("task:One", WHO, "disk full | soon"),
        ]
        assert abs(await broker.now() - found[0].since) < timedelta(seconds=30)
        await controls.resume([STREAM], "bob@host 8")
        events = [(item.kind, item.who, item.text) for item in await history(broker)]
        assert events == [
            ("pause", WHO, "stream:normal:small, task:One: disk full | soon"),
            ("resume", "bob@host 8", "stream:normal:small"),
        ]

    async def test_a_repetition_is_no_second_event(
        self, broker: Broker, controls: Controls
    ) -> None:
        """The same pause again changes nothing; another reason is a change."""
        await controls.pause([ALL], WHO, "x")
        before = await controls.load()
        await controls.pause([ALL], WHO, "x")
        await controls.resume([STREAM], WHO)
        assert await controls.load() == before
        await controls.pause([ALL], WHO, "y")
        assert [item.kind for item in await history(broker)] == ["pause", "pause"]

    async def test_scripts_look_for_pauses_only_while_there_are_some(
        self, broker: Broker, controls: Controls
    ) -> None:
        """The mark is there with the first pause, gone with the last, and put right by a look."""
        mark = "{test}:pausing"
        await controls.pause([ALL, STREAM], WHO)
        await controls.resume([ALL], WHO)
        assert await broker.client.exists(mark)
        await broker.client.delete(mark)  # by foreign hands
        await controls.look()
        assert await broker.client.exists(mark)
        await controls.resume([STREAM], WHO)
        assert not await broker.client.exists(mark)

    async def test_what_redis_lost_is_restored(self, broker: Broker, controls: Controls) -> None:
        """The leader puts back what it remembers, under its term; newer pauses stay."""
        leadership = Leadership(broker, "test")
        term = await leadership.lead("s1", 30.0, "{}")
        assert term
        await controls.pause([ALL, STREAM], WHO, "x")
        seen = await controls.look()
        await broker.client.delete("{test}:paused")
        await controls.pause([STREAM], "bob@host 8", "y")
        remembered = (seen.epoch, seen.at, seen.pauses)
        assert await controls.restore("0", *remembered) is None
        assert await controls.restore(term, seen.epoch + 1, *remembered[1:]) is None
        ends = await broker.client.hget("{test}:leader", "expiry")
        await broker.client.hset("{test}:leader", "expiry", 1)
        assert await controls.restore(term, *remembered) is None
        assert (await controls.look()).restored_in == 0
        await broker.client.hset("{test}:leader", "expiry", ends)
        assert await controls.restore(term, *remembered) == (1, 0)
        assert await controls.restore(term, *remembered) == (0, 0)
        assert (await controls.look()).restored_in == seen.epoch
        assert [(item.what, item.reason) for item in await controls.load()] == [
            (ALL, "x"),
            (STREAM, "y"),
        ]

    async def test_who_waits_for_a_revived_pause_starts(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Older data bring back a pause, and those parked at it: both end with the restoration."""
        await register(broker)
        term = await Leadership(broker, "test").lead("s1", 30.0, "{}")
        assert term
        await broker.submit([task("a")])
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        await broker.client.delete("{test}:wake:promoter", "{test}:wake:small-a")
        seen = await controls.look()
        assert await controls.restore(term, seen.epoch, seen.at, {}) == (0, 1)
        assert await broker.client.exists("{test}:wake:promoter") == 1
        assert await all_of(broker) == ["a"]

    async def test_the_doctor_finds_nothing(self, broker: Broker, controls: Controls) -> None:
        """Paused work is in its place, in a stream or in a queue of its own."""
        await register(broker)
        await broker.submit([task("a"), task("b", locks=MUTEX)])
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        await controls.pause([STREAM], WHO)
        await broker.submit([task("c")])
        inspection = Inspection(broker, "test")
        found = [examine(row, lease=60.0) async for row in inspection.rows()]
        assert [item for item in found if item] == []

    async def test_a_pause_is_told_where_it_is_the_cause(
        self, broker: Broker, controls: Controls
    ) -> None:
        """Of what is queued or waits a pause is told; of what runs or is delayed it is not."""
        facts = TaskFacts(broker.client, "test")
        due = int((await broker.now()).timestamp() * 1e6) + 3_600_000_000
        await broker.submit([task("running")])
        await fetch(broker)
        await controls.pause(["task:Task"], WHO, "x")
        await broker.submit([task("waiting"), task("delayed", due_us=due)])
        await fetch(broker)
        await broker.submit([task("queued")])
        told = {
            id: (await facts.read(id)).paused for id in ("running", "waiting", "delayed", "queued")
        }
        assert {id for id, pause in told.items() if pause} == {"waiting", "queued"}
        assert told["queued"] is not None and told["queued"].reason == "x"


async def history(broker: Broker) -> list[Event]:
    return await Events(broker.client, "test").last(10)


class TestHasten:
    async def test_delayed_and_retrying_are_due_now(
        self, broker: Broker, controls: Controls
    ) -> None:
        """What waits for its time or for a retry starts with the next promotion, once."""
        due = int((await broker.now()).timestamp() * 1e6) + 3_600_000_000
        await broker.submit([task("r")])
        (delivery,) = await fetch(broker)
        await broker.settle(delivery, "retry", b"error", delay=timedelta(hours=1))
        await broker.submit([task("d", due_us=due), task("later", due_us=due), task("q")])
        answer = await controls.hasten(["r", "d", "q", "x"])
        assert answer == ["delayed", "delayed", "queued", ""]
        assert await broker.client.exists("{test}:wake:promoter") == 1
        assert (await broker.promote()).moved == 2
        assert sorted(await ids(broker)) == ["d", "q", "r"]

    async def test_ended_ones_stay_so(self, broker: Broker, controls: Controls) -> None:
        """The answer names the state in which a task is, live or ended."""
        await broker.submit([task("a"), task("b")])
        first, _ = await fetch(broker)
        await broker.settle(first, "done")
        assert await controls.hasten(["a", "b"]) == ["done", "running"]


def test_of_several_pauses_the_most_general_is_told() -> None:
    """Everything, then the stream, then the class."""
    made = [pauses.Pause.decode(what, "0|a|b") for what in ("task:One", "task:m:One", STREAM, ALL)]
    told = []
    while (found := pauses.of_task(made, "normal:small", "m:One")) is not None:
        told.append(found.what)
        made.remove(found)
    assert told == [ALL, STREAM, "task:m:One", "task:One"]
