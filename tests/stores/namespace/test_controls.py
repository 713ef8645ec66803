"""Pausing and resuming on a real server: what starts, what waits, and what it costs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest
import records
from stores.queue.test_broker import fetch, in_an_hour, record, task, until_due
from waits import WAIT_SECONDS

from nonet.rules import pauses
from nonet.rules.findings.diagnosis import examine
from nonet.stores.connection.unreadable import collecting
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
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


async def age_waiter(broker: Broker) -> Delivery:
    """Let ``b`` wait for the lock of ``a`` until it counts as realtime; the delivery of ``a``."""
    await register(broker)
    await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
    (holder,) = await fetch(broker)
    await records.hset(broker.client, "{test}:t:b", "since", 1)
    await until_due(broker, "b")
    assert (await record(broker, "b"))["aged"] == "1"
    return holder


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


EVERY_PAUSE = [ALL, STREAM, "task:Task"]


class TestWhatIsPaused:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_nothing_starts(self, broker: Broker, controls: Controls, what: str) -> None:
        """Submits are accepted; after the resume all start, each once."""
        await broker.submit([task("a"), task("b", locks=MUTEX)])
        await controls.pause([what], WHO)
        await broker.submit([task("c")])
        assert await ids(broker) == []
        assert await ids(broker) == []
        await controls.resume([what], WHO)
        assert await all_of(broker) == ["a", "b", "c"]
        assert await broker.client.keys("{test}:queue:*") == []

    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_running_tasks_end(self, broker: Broker, controls: Controls, what: str) -> None:
        """Tasks that are handed back, at once or later, wait for the resume with the others."""
        await broker.submit([task("a"), task("b"), task("c", locks=MUTEX)])
        first, second, third = await fetch(broker)
        await controls.pause([what], WHO)
        assert await broker.settle(first, "done") == "OK"
        assert await broker.settle(second, "back") == "OK"
        assert await broker.settle(third, "back", delay=timedelta(hours=1)) == "OK"
        await until_due(broker, "c")
        assert (await record(broker, "c"))["state"] == "waiting"
        assert await ids(broker) == []
        await controls.resume([what], WHO)
        assert await all_of(broker) == ["b", "c"]

    async def test_other_tasks_start(self, broker: Broker, controls: Controls) -> None:
        """A paused stream or class holds nothing else up."""
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

    async def test_a_bare_name_means_any_category(self, broker: Broker, controls: Controls) -> None:
        """Resuming the bare name leaves the pause of a full one."""
        await controls.pause(["task:One", "task:m:One"], WHO)
        await broker.submit([of("m:One", "a"), of("n:One", "b"), of("m:OneMore", "c")])
        assert await ids(broker) == ["c"]
        await controls.resume(["task:One"], WHO)
        assert await all_of(broker) == ["b"]
        await controls.resume(["task:m:One"], WHO)
        assert await all_of(broker) == ["a"]

    async def test_an_aged_task_is_paused(self, broker: Broker, controls: Controls) -> None:
        """It is read among the realtime ones, but a pause of its own stream holds for it."""
        await broker.settle(await age_waiter(broker), "done")
        assert await broker.client.xlen("{test}:woken:realtime:small") == 1
        await controls.pause([STREAM], WHO)
        assert await ids(broker) == []
        # Nor does it keep the lock from others.
        await broker.submit([of("m:Other", "c", "background:small", MUTEX)])
        assert await ids(broker) == ["c"]

    async def test_an_aged_task_starts(self, broker: Broker, controls: Controls) -> None:
        """A pause of the realtime stream does not hold for aged tasks of another stream."""
        holder = await age_waiter(broker)
        await controls.pause(["stream:realtime:small"], WHO)
        await broker.submit([of("m:Other", "c", "realtime:small")])
        await broker.settle(holder, "done")
        assert await ids(broker) == ["b"]


class TestLocks:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_a_waiter_is_passed(self, broker: Broker, controls: Controls, what: str) -> None:
        """Tasks behind it get the lock."""
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

    async def test_a_woken_task_frees_its_places(self, broker: Broker, controls: Controls) -> None:
        """Paused between wake-up and fetch, it leaves the lock to the next."""
        await register(broker)
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        await broker.submit([of("m:Other", "c", "background:small", MUTEX)])
        holder = (await fetch(broker))[0]
        await broker.settle(holder, "done")
        assert (await record(broker, "b"))["state"] == "queued"
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        assert await ids(broker) == ["c"]

    async def test_limits_that_change_meanwhile(self, broker: Broker, controls: Controls) -> None:
        """Setting or unsetting them while a task is paused does not lose its place."""

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
    async def test_paused_time_does_not_count(self, broker: Broker, controls: Controls) -> None:
        """Paused for longer than it takes to age, a task starts in its own stream."""
        await register(broker)
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task("a", "background:small")])
        assert await ids(broker) == []
        await records.hset(broker.client, "{test}:t:a", "since", 1)
        await until_due(broker, "a")
        assert "aged" not in await record(broker, "a")
        # Nor is it looked at by itself as if it were about to come of age.
        look = await broker.client.zscore("{test}:tasks:delayed", "a")
        assert look > (await broker.now()).timestamp() * 1e6
        await controls.resume(["task:Task"], WHO)
        await broker.promote()
        assert await broker.client.xlen("{test}:woken:background:small") == 1
        assert int((await record(broker, "a"))["since"]) > 1

    async def test_a_resumed_waiter_ages_anew(self, broker: Broker, controls: Controls) -> None:
        """If a lock refuses it after the resume, it has waited since then."""
        await broker.submit([of("m:Other", "o", locks=MUTEX)])
        await fetch(broker)
        await controls.pause(["task:Task"], WHO)
        await broker.submit([task("a", locks=MUTEX)])
        assert await ids(broker) == []
        await records.hset(broker.client, "{test}:t:a", "since", 1)
        await controls.resume(["task:Task"], WHO)
        await until_due(broker, "a")
        found = await record(broker, "a")
        assert (found["state"], found.get("aged")) == ("waiting", None)
        assert int(found["since"]) > 1
        await records.hset(broker.client, "{test}:t:a", "since", 1)
        await until_due(broker, "a")
        assert (await record(broker, "a"))["aged"] == "1"

    @pytest.mark.parametrize("is_woken", [True, False])
    async def test_a_pause_resets_it(
        self, broker: Broker, controls: Controls, is_woken: bool
    ) -> None:
        """Whether a check or a fetch moves the aged task to the pause."""
        holder = await age_waiter(broker)
        if is_woken:
            await broker.settle(holder, "done")
        await controls.pause(["task:Task"], WHO)
        if is_woken:
            assert await ids(broker) == []
        else:
            await until_due(broker, "b")
            await broker.settle(holder, "done")
        found = await record(broker, "b")
        assert (found["state"], found.get("aged")) == ("waiting", None)
        await controls.resume(["task:Task"], WHO)
        await broker.promote()
        assert await broker.client.xlen("{test}:woken:normal:small") == 1
        assert await ids(broker) == ["b"]


class TestCost:
    @pytest.mark.parametrize("what", EVERY_PAUSE)
    async def test_tasks_are_read_once(self, broker: Broker, controls: Controls, what: str) -> None:
        """A thousand are checked once at most; then a fetch ends as idle."""
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

    @pytest.mark.parametrize(("locks", "are_due"), [("", True), (MUTEX, False)])
    async def test_a_thousand_are_resumed_in_steps(
        self, broker: Broker, controls: Controls, locks: str, are_due: bool
    ) -> None:
        """Each promotion checks some eighty (2 to 5 ms), until none is left."""
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
    async def test_the_idle_are_woken(self, broker: Broker, controls: Controls, what: str) -> None:
        """By the resume, or by the promotion that follows it; other sizes may sleep on."""
        for size in ("small", "large"):
            await register(broker, f"{size}-a")
            await broker.fetch(f"{size}-a", size, 1)
        await broker.submit([task("a")])
        await controls.pause([what], WHO)
        assert await ids(broker) == []
        await broker.client.delete("{test}:wake:small-a")
        waiting = asyncio.create_task(broker.wait_for_wake("small-a"))
        await controls.resume([what], WHO)
        await broker.promote()
        await waiting
        assert await broker.client.exists("{test}:wake:large-a") == (what == ALL)
        assert await ids(broker) == ["a"]


class TestRaces:
    async def test_pauses_beside_work(self, broker: Broker, controls: Controls) -> None:
        """Submits, fetches, promotions and pauses at once: each task is executed once."""
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
                what = EVERY_PAUSE[n % 3]
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
    async def test_author_and_reason_are_kept(self, broker: Broker, controls: Controls) -> None:
        """With the time, and as an event; a repetition is none, unless it has another reason."""
        for _ in range(2):
            await controls.pause([STREAM, "task:One"], WHO, "disk\nfull | soon")
            await controls.resume([ALL], WHO)
        found = await controls.load()
        assert [(item.what, item.who, item.reason) for item in found] == [
            (STREAM, WHO, "disk full | soon"),
            ("task:One", WHO, "disk full | soon"),
        ]
        assert abs(await broker.now() - found[0].since) < timedelta(minutes=1)
        await controls.resume([STREAM], "bob@host 8")
        await controls.pause(["task:One"], WHO, "y")
        events = await Events(broker.client, "test").last(10)
        assert [(item.kind, item.who, item.text) for item in events] == [
            ("pause", WHO, "stream:normal:small, task:One: disk full | soon"),
            ("resume", "bob@host 8", "stream:normal:small"),
            ("pause", WHO, "task:One: y"),
        ]

    async def test_a_mark_says_if_tasks_are_paused(
        self, broker: Broker, controls: Controls
    ) -> None:
        """It comes with the first, goes with the last, and the walk puts it right."""
        mark = "{test}:pausing"
        await controls.pause([ALL, STREAM], WHO)
        await controls.resume([ALL], WHO)
        assert await broker.client.exists(mark)
        await broker.client.delete(mark)  # by foreign hands
        while (await broker.mend(timedelta(0)))[1]:
            pass
        assert await broker.client.exists(mark)
        await controls.resume([STREAM], WHO)
        assert not await broker.client.exists(mark)

    async def test_lost_pauses_are_restored(
        self, broker: Broker, controls: Controls, term: str
    ) -> None:
        """The leader puts back what it remembers; newer pauses stay."""
        await controls.pause([ALL, STREAM], WHO, "x")
        seen = await controls.look()
        await broker.client.delete("{test}:paused")
        await controls.pause([STREAM], "bob@host 8", "y")
        remembered = (seen.epoch, seen.at, seen.pauses)
        assert await controls.restore(term, seen.epoch + 1, *remembered[1:]) is None
        assert (await controls.look()).restored_in == 0
        assert await controls.restore(term, *remembered) == (1, 0)
        assert await controls.restore(term, *remembered) == (0, 0)
        assert (await controls.look()).restored_in == seen.epoch
        assert [(item.what, item.reason) for item in await controls.load()] == [
            (ALL, "x"),
            (STREAM, "y"),
        ]

    async def test_a_revived_pause_ends(
        self, broker: Broker, controls: Controls, term: str
    ) -> None:
        """Older data bring back a pause with its tasks: the restoration ends both."""
        await register(broker)
        await broker.submit([task("a")])
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        await broker.client.delete("{test}:wake:promoter", "{test}:wake:small-a")
        seen = await controls.look()
        assert await controls.restore(term, seen.epoch, seen.at, {}) == (0, 1)
        assert await broker.client.exists("{test}:wake:promoter") == 1
        assert await all_of(broker) == ["a"]

    async def test_the_doctor_finds_nothing(self, broker: Broker, controls: Controls) -> None:
        """Paused tasks are in their place, in a stream or in a queue of their own."""
        await register(broker)
        await broker.submit([task("a"), task("b", locks=MUTEX)])
        await controls.pause(["task:Task"], WHO)
        assert await ids(broker) == []
        await controls.pause([STREAM], WHO)
        await broker.submit([task("c")])
        inspection = Inspection(broker, "test")
        found = [examine(row, lease=60.0) async for row in inspection.rows()]
        assert [item for item in found if item] == []

    async def test_explain_names_the_pause(self, broker: Broker, controls: Controls) -> None:
        """For tasks that are queued or wait, not for running and delayed ones."""
        facts = TaskFacts(broker.client, "test")
        due = await in_an_hour(broker)
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


async def test_hastened_tasks_are_due_now(broker: Broker, controls: Controls) -> None:
    """Delayed and retrying ones start, once; of others the answer names the state."""
    due = await in_an_hour(broker)
    await broker.submit([task("e"), task("r")])
    ended, retried = await fetch(broker)
    await broker.settle(ended, "done")
    await broker.settle(retried, "retry", b"error", delay=timedelta(hours=1))
    await broker.submit([task("d", due_us=due), task("later", due_us=due), task("q")])
    answer = await controls.hasten(["r", "d", "q", "x", "e"])
    assert answer == ["delayed", "delayed", "queued", "", "done"]
    assert await broker.client.exists("{test}:wake:promoter") == 1
    assert (await broker.promote()).moved == 2
    assert sorted(await ids(broker)) == ["d", "q", "r"]


async def test_what_no_command_can_resume_is_no_pause(broker: Broker, controls: Controls) -> None:
    """Another program's entry among the pauses is left out, and the doctor names it."""
    await controls.pause(["task:One"], "ann")
    await broker.client.hset("{test}:paused", "-1", "0|x|")
    with collecting() as skipped:
        assert [pause.what for pause in await controls.load()] == ["task:One"]
    assert [(entry.key, entry.entry, entry.verb) for entry in skipped] == [("paused", "-1", "HDEL")]


def test_the_most_general_pause_is_named() -> None:
    """Everything, then the stream, then the class."""
    made = [pauses.Pause.decode(what, "0|a|b") for what in ("task:One", "task:m:One", STREAM, ALL)]
    told = []
    while (found := pauses.of_task(made, "normal:small", "m:One")) is not None:
        told.append(found.what)
        made.remove(found)
    assert told == [ALL, STREAM, "task:m:One", "task:One"]
