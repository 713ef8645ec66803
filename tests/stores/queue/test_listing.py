"""Lists of live tasks: order, numbers, pages, filters, and what moves meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stores.queue.test_broker import fetch, fetch_one, in_an_hour, record, task

from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.stores.queue import places
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.places import LIVE_STATES, Places, TaskFilter
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import TaskPage, TaskStatus
from nonet.tasks.locks import MutexLock, encode_locks

MUTEX = encode_locks([MutexLock("job", 1)])
ANY = TaskFilter(states=())


def ids(page: TaskPage) -> list[str]:
    return [item.id for item in page.rows]


def in_state(state: str) -> TaskFilter:
    return TaskFilter(states=(state,))


async def all_states(broker: Broker) -> None:
    """Two tasks in each state, named by state and age."""
    due = await in_an_hour(broker)
    await broker.submit([task("dying1"), task("dying2")])
    for delivery in await fetch(broker):
        await broker.settle(delivery, "dying", b"error")
    await broker.submit([task("running1", locks=MUTEX), task("running2")])
    await fetch(broker)
    await broker.submit([task("waiting1", locks=MUTEX), task("waiting2", locks=MUTEX)])
    await fetch(broker)
    await broker.submit([task("delayed2", due_us=due + 1), task("delayed1", due_us=due)])
    await broker.submit([task("queued1", "background:large")])
    await broker.submit([task("queued2", "realtime:small")])


async def each_page(results: Results, selection: TaskFilter, **options: Any) -> list[TaskPage]:
    pages = [await results.page(selection, **options)]
    while pages[-1].cursor:
        pages.append(await results.page(selection, cursor=pages[-1].cursor, **options))
        assert len(pages) < 100, "the list does not end"
    return pages


class TestOrder:
    async def test_states_and_ages(self, broker: Broker, results: Results) -> None:
        """Running, waiting, dying, queued, delayed; in each state the oldest or soonest first."""
        await all_states(broker)
        page = await results.page(ANY)
        states = ("running", "waiting", "dying", "queued", "delayed")
        assert ids(page) == [f"{state}{n}" for state in states for n in (1, 2)]
        assert (page.matched, page.searched, page.total, page.cursor) == (10, 10, 10, "")
        for state in LIVE_STATES:
            assert ids(await results.page(in_state(state))) == [f"{state}1", f"{state}2"]

    async def test_dying_tasks_wait_in_a_stream_of_their_own(
        self, broker: Broker, results: Results
    ) -> None:
        """Also while a worker writes their dead letter."""
        await broker.submit([task("a"), task("b")])
        for delivery in await fetch(broker):
            await broker.settle(delivery, "dying", b"error")
            await broker.settle(delivery, "back")
        assert len((await broker.fetch("small-a", "small", 0, burials=1))[0]) == 1
        page = await results.page(in_state("dying"))
        assert (ids(page), page.total) == (["a", "b"], 2)

    async def test_streams_are_merged(self, broker: Broker, results: Results) -> None:
        """Queued tasks are in the order in which they were queued, whatever their streams."""
        streams = ["normal:small", "background:large", "realtime:medium"]
        names = [f"t{n:02}" for n in range(30)]
        for n, name in enumerate(names):
            await broker.submit([task(name, streams[n % 3])])
        for limit in (2, 100):
            assert ids(await results.page(in_state("queued"), limit=limit)) == names[:limit]

    async def test_times(self, broker: Broker, results: Results) -> None:
        """`started` and `waits_since` are of the state; only delayed tasks have a `due`."""
        before = await broker.logical_now()
        await all_states(broker)
        after = await broker.logical_now()
        for item in (await results.page(ANY)).rows:
            state = item.state
            assert (item.started is not None) == (state == "running")
            assert (item.waits_since is not None) == (state in ("queued", "waiting"))
            assert (item.due is not None) == (state == "delayed")
            since = item.started or item.waits_since or before
            assert before - timedelta(milliseconds=1) <= since <= after
        (soonest, _) = (await results.page(in_state("delayed"))).rows
        assert soonest.due is not None and soonest.due > datetime.now(UTC)

    async def test_a_requeued_task_waits_since_then(self, broker: Broker, results: Results) -> None:
        """Since it was queued again, not since its submission."""
        await broker.submit([task("a")])
        await broker.settle(await fetch_one(broker), "back")
        (item,) = (await results.page(in_state("queued"))).rows
        assert item.waits_since and item.started is None
        entry = (await record(broker, "a"))["pointer"].rpartition(" ")[2]
        assert int(item.waits_since.timestamp() * 1000) == places.entry_of(entry)[0]


class TestNumbers:
    async def test_tasks_behind_a_page_count(self, broker: Broker, results: Results) -> None:
        """A short page says how many tasks there are, without examining all of them."""
        await broker.submit([task(f"t{n}") for n in range(300)])
        page = await results.page(in_state("queued"), limit=10)
        assert (len(page.rows), page.matched, page.searched, page.total) == (10, 300, 300, 300)
        assert page.cursor

    async def test_a_budget_is_reported(self, broker: Broker, results: Results) -> None:
        """A filter examines as many tasks as the budget allows, and says out of how many."""
        due = await in_an_hour(broker)
        await broker.submit([task(f"q{n}") for n in range(50)])
        await broker.submit([task(f"d{n}", due_us=due) for n in range(50)])
        page = await results.page(TaskFilter("Task", states=()), budget=20)
        assert (page.matched, page.searched, page.total) == (40, 40, 100)
        page = await results.page(TaskFilter("Other", states=()), budget=1000)
        assert (page.matched, page.searched, page.total, page.cursor) == (0, 100, 100, "")


class TestPages:
    @pytest.mark.parametrize("budget", [1000, 7])
    @pytest.mark.parametrize("name", ["", "Task"])
    async def test_each_task_is_on_one_page(
        self, broker: Broker, results: Results, name: str, budget: int
    ) -> None:
        """The cursor leads to each task once, in one order, also behind the budget."""
        await all_states(broker)
        due = await in_an_hour(broker)
        await broker.submit([task(f"d{n}", due_us=due) for n in range(20)])
        for n, stream in enumerate(["normal:small", "realtime:large"] * 10):
            await broker.submit([task(f"q{n}", stream)])
        selection = TaskFilter(name, states=())
        whole = ids(await results.page(selection))
        pages = await each_page(results, selection, limit=3, budget=budget)
        shown = [id for page in pages for id in ids(page)]
        assert len(whole) == 50
        if budget > len(whole):
            assert shown == whole
        else:  # waiting tasks behind the budget are not found
            assert len(shown) == len(set(shown))
            assert [id for id in shown if id[0] == "q"] == [id for id in whole if id[0] == "q"]
            assert {id for id in whole if id[0] == "d"} - set(shown) <= {"dying1", "dying2"}

    async def test_a_wrong_cursor_is_refused(self, results: Results) -> None:
        """The error says to leave it out."""
        for cursor in ("x", "[]", "[1, 2, 3]", '{"a": 1}'):
            with pytest.raises(ValueError, match=r"is not the cursor of a page; leave it out"):
                await results.page(ANY, cursor=cursor)


def labelled(id: str, **labels: Any) -> Submission:
    envelope = Envelope(FORMAT, id, "m:One", {}, labels, 0.0, "", "")
    return Submission(id, "m:One", "normal:small", encode(envelope))


class TestFilters:
    async def test_class_and_labels(self, broker: Broker, results: Results) -> None:
        """By full or bare name, and by all labels; unreadable envelopes have none."""
        await broker.submit([labelled("a", vo="lhcb", run=7), labelled("b", vo="lhcb"), task("c")])
        for name in ("m:One", "One"):
            assert ids(await results.page(TaskFilter(name, states=()))) == ["a", "b"]
        labels = {"vo": "lhcb", "run": "7"}
        assert ids(await results.page(TaskFilter(labels=labels, states=()))) == ["a"]
        assert ids(await results.page(TaskFilter("Task", labels, states=()))) == []

    async def test_worker_error_and_time(self, broker: Broker, results: Results) -> None:
        """The worker that has a task, a part of its last error, and when it was submitted."""
        await broker.submit([task("running"), task("failed")])
        for delivery in await fetch(broker):
            if delivery.id == "failed":
                text, delay = "OSError: No Space", timedelta(hours=1)
                await broker.settle(delivery, "retry", b"", text=text, delay=delay)
        between = await broker.logical_now()
        await broker.submit([task("queued")])

        async def found(**options: Any) -> list[str]:
            return ids(await results.page(TaskFilter(states=(), **options)))

        (running,) = (await results.page(in_state("running"))).rows
        assert await found(workers=await results.incarnations(running.worker)) == ["running"]
        assert await found(workers=["other"]) == []
        assert await found(error="no space") == ["failed"]
        assert await found(since=between) == ["queued"]
        assert await found(until=between) == ["running", "failed"]

    async def test_named_tasks(self, broker: Broker, results: Results) -> None:
        """Tasks whose ids are known from elsewhere are filtered like all others."""
        await broker.submit([task("a"), labelled("b"), task("c")])
        selection = TaskFilter("Task", states=("queued",))
        assert [item.id for item in await results.chosen(["c", "b", "gone", "a"], selection)] == [
            *("c", "a")
        ]

    async def test_holds_are_no_tasks(self, broker: Broker, results: Results) -> None:
        """Neither a hold nor one that waits is listed."""
        await broker.hold("h1", MUTEX)
        await broker.hold("h2", MUTEX, wait=True)
        assert (await results.page(ANY)).rows == []
        assert [item async for item in results.live()] == []


class TestMoves:
    async def test_a_woken_task_is_listed_once(self, broker: Broker, results: Results) -> None:
        """With its reservation it is in a stream and in the delayed set."""
        await broker.submit([task(id, locks=MUTEX) for id in "abc"])
        (holder,) = await fetch(broker)
        await broker.submit([task(id, "normal:large") for id in "xyz"])
        now = int((await broker.now()).timestamp() * 1e6)
        await broker.client.zadd("{test}:workers", {"small-a": now + 60_000_000})
        await broker.settle(holder, "done")
        assert await broker.client.zscore("{test}:tasks:delayed", "b") is not None
        assert await broker.client.xlen("{test}:woken:normal:small") == 1
        page = await results.page(ANY)
        assert [item.state for item in page.rows] == ["waiting", *["queued"] * 4]
        assert (ids(page), page.matched) == (["c", "x", "y", "z", "b"], 5)
        assert ids(await results.page(ANY, limit=2)) == ["c", "x"]

    async def test_an_outdated_entry_is_not_listed(self, broker: Broker, results: Results) -> None:
        """The entry is of an older generation."""
        await broker.submit([task("a")])
        gen = (await record(broker, "a"))["gen"]
        await broker.client.xadd("{test}:tasks:normal:large", {"id": "a", "gen": gen})
        await broker.client.xadd("{test}:tasks:normal:large", {"id": "gone", "gen": "1"})
        await broker.settle(await fetch_one(broker), "back")
        await broker.submit([task("b")])
        pages = await each_page(results, ANY, limit=1)
        assert [id for page in pages for id in ids(page)] == ["a", "b"]

    @pytest.mark.parametrize("moment", [1, 3, 5])
    async def test_a_task_that_moves_meanwhile_is_listed_once(
        self, broker: Broker, results: Results, monkeypatch: pytest.MonkeyPatch, moment: int
    ) -> None:
        """It is woken and begun while places are read."""
        await broker.submit([task("a", locks=MUTEX), task("b", locks=MUTEX)])
        (holder,) = await fetch(broker)
        left, read = moment, Places.page

        async def moving(self: Places, *args: Any, **options: Any) -> places.Page:
            nonlocal left
            left -= 1
            if left == 0:
                await broker.settle(holder, "done")
                await fetch(broker)
            return await read(self, *args, **options)

        monkeypatch.setattr(Places, "page", moving)
        page = await results.page(ANY)
        assert ids(page).count("b") == 1

    async def test_a_task_that_moves_at_last_is_not_listed(
        self, broker: Broker, results: Results, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Among the queued ones: it begins or ends before its record is read."""
        await broker.submit([task(id) for id in "abc"])
        read = Results.statuses

        async def late(self: Results, found: list[str]) -> list[TaskStatus]:
            first, _ = await fetch(broker, 2)
            await broker.settle(first, "done")
            return await read(self, found)

        monkeypatch.setattr(Results, "statuses", late)
        assert ids(await results.page(in_state("queued"))) == ["c"]

    async def test_members_that_leave_the_delayed_set(self, broker: Broker) -> None:
        """If the last task of a page is gone, the next page leaves out no other task."""
        due = await in_an_hour(broker)
        await broker.submit([task(f"t{n}", due_us=due) for n in range(9)])
        walk = Places(broker.scripts)
        first = await walk.page("delayed", ANY, count=3)
        await broker.client.zrem("{test}:tasks:delayed", first.end.partition(" ")[2], "t1")
        met = {item.id for item in first.found}
        page = await walk.page("delayed", ANY, first.end, count=9)
        assert met | {item.id for item in page.found} >= {f"t{n}" for n in range(9)}
