"""Ceilings: how many tasks there are, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from scheduler.test_relay import relay_of
from stores.queue.test_broker import fetch, fetch_one, task
from stores.queue.test_unique import task as unique_task

from nonet.base.errors import AdmissionRejected
from nonet.config.settings import Settings
from nonet.scheduler import relay as relay_module
from nonet.stores.namespace.ceilings import Ceilings, Load
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue import broker as broker_module
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.stores.sql import outbox as outbox_module
from nonet.stores.sql.database import Database
from nonet.stores.sql.outbox import Outbox
from nonet.tasks.locks import MutexLock, encode_locks
from nonet.tasks.unique import Unique

WHO = "ann@host 7"
MUTEX = encode_locks([MutexLock("job", 7)])
CEILING = {"namespace": 3}


@pytest.fixture
def ceilings(broker: Broker) -> Ceilings:
    return Ceilings(broker.client, "test")


async def publish(broker: Broker, ceilings: dict[str, int]) -> None:
    """As the leader does."""
    term = await Leadership(broker, "test").lead("leader", 86_400, "{}")
    assert term is not None
    assert await Ceilings(broker.client, "test").publish(term, ceilings, WHO)


async def refused(broker: Broker, *tasks: Submission) -> AdmissionRejected:
    with pytest.raises(AdmissionRejected) as caught:
        await broker.accept(tasks)
    return caught.value


async def active(ceilings: Ceilings, scope: str = "namespace") -> int:
    found = {load.scope: load.active for load in await ceilings.loads()}
    return found.get(scope, 0)


def tasks(count: int, name: str = "t", **fields: object) -> list[Submission]:
    return [task(f"{name}{n}", **fields) for n in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", ["namespace", "stream:normal:small", "task:probe:Task"])
async def test_a_ceiling_has_a_scope(broker: Broker, ceilings: Ceilings, scope: str) -> None:
    """A submit above it is refused with the numbers; elsewhere it is not."""
    await publish(broker, {scope: 3})
    await broker.submit(tasks(3))
    error = await refused(broker, task("more"))
    assert (error.scope, error.active, error.ceiling) == (scope, 3, 3)
    assert error.retry_after == 10, "nothing has ended yet"
    other = Submission("other", "probe:Other", "realtime:small", b"e")
    if scope == "namespace":
        await refused(broker, other)
    else:
        assert await broker.submit([other]) == [True]
    await broker.settle(await fetch_one(broker), "done", b"")
    await broker.cancel([f"t{n}" for n in range(3)], "room is made")
    assert await broker.submit([task("more")]) == [True]


async def test_all_of_a_chunk_or_none(broker: Broker, ceilings: Ceilings) -> None:
    """Of several chunks those before the refused one are submitted, as the error tells."""
    await publish(broker, CEILING)
    assert "submit fewer at a time" in str(await refused(broker, *tasks(4)))
    assert await active(ceilings) == 0
    await publish(broker, {"namespace": 700})
    error = await refused(broker, *tasks(1200))
    assert (error.accepted, await active(ceilings)) == (500, 500)
    assert "500 tasks of the same call were submitted before" in str(error)


async def test_a_repeat_is_no_new_task(broker: Broker) -> None:
    """Active or remembered ids and keys, and repeats within a call, need no room."""
    await publish(broker, CEILING)
    unique = Unique.until_done()
    twice = [unique_task("u", unique), unique_task("v", unique), task("t0"), task("t0"), task("t1")]
    assert [item.created for item in await broker.accept(twice)] == [True, False, True, False, True]
    await broker.settle((await fetch(broker))[1], "done", b"")
    await broker.submit([task("t2")])
    again = [task("t1"), task("t0"), unique_task("v", unique)]
    accepted = await broker.accept(again)
    assert accepted == [Accepted("t1", False), Accepted("t0", False), Accepted("u", False)]
    await refused(broker, *again, task("new"))


async def test_a_replacement_needs_no_room(broker: Broker, ceilings: Ceilings) -> None:
    """Unless the task before it runs or is dying: then the newer one is one more."""
    await publish(broker, {"namespace": 2})
    latest = Unique.keep_latest()
    await broker.submit([unique_task("a", latest), task("t")])
    assert await broker.submit([unique_task("b", latest)]) == [True]
    assert await active(ceilings) == 2
    running = {item.id: item for item in await fetch(broker)}
    await refused(broker, unique_task("c", latest))
    await broker.settle(running["b"], "dying", b"")
    assert (await refused(broker, unique_task("c", latest))).active == 2


async def test_a_replacement_frees_no_place(broker: Broker) -> None:
    """A task that is replaced does not shorten `retry_after`."""
    await publish(broker, {"namespace": 2})
    latest = Unique.keep_latest()
    await broker.submit([task("t")])
    await broker.submit([unique_task("a0", latest)])
    before = (await refused(broker, task("new"))).retry_after
    for n in range(1, 50):
        assert await broker.submit([unique_task(f"a{n}", latest)]) == [True]
    assert (await refused(broker, task("new"))).retry_after == before


@pytest.mark.parametrize("scope", ["namespace", "stream:normal:small", "task:probe:Task"])
async def test_delayed_tasks_free_no_place_before_they_are_due(broker: Broker, scope: str) -> None:
    """`retry_after` looks at when enough of them are due; tasks that can start now come first."""
    await publish(broker, {scope: 3})
    due = [task(f"t{n}", due_us=-int(minutes * 60e6)) for n, minutes in enumerate((0, 1, 2))]
    await broker.submit(due)
    waits = [(await refused(broker, *tasks(n, "more"))).retry_after for n in (1, 2, 3)]
    assert waits[0] == 10 and 50 < waits[1] <= 60 and 110 < waits[2] <= 120


async def test_internal_work_is_never_refused(broker: Broker, ceilings: Ceilings) -> None:
    """Retries, followers, callbacks and what was admitted before count, and are accepted."""
    await publish(broker, {"namespace": 1})
    await broker.submit([task("a")])
    assert await broker.settle(await fetch_one(broker), "retry", b"") == "OK"
    delivery = await fetch_one(broker)
    assert await broker.settle(delivery, "done", b"", submissions=tasks(2)) == "OK"
    assert await active(ceilings) == 2
    assert await broker.submit([task("kept").admitted()]) == [True]
    groups = Groups(broker.client, "test")
    callback = task("callback")
    await groups.open(
        "g", "", policy="all_done", ttl_seconds=60, total=0, callback=callback, on_failure=None
    )
    await groups.seal("g", "")
    assert await active(ceilings) == 4
    await refused(broker, task("new"))


def children(count: int, parent: str, name: str = "c") -> list[Submission]:
    """As code in a running task submits them."""
    return tasks(count, f"{name}-{parent}-", terms=f"by|{parent}")


class TestHeadroom:
    """Tasks that must submit before they can end do not block each other."""

    async def test_running_tasks_have_headroom(self, broker: Broker) -> None:
        """A tenth, at least one place; not clients, nor tasks that do not run."""
        await publish(broker, {"namespace": 20})
        await broker.submit(tasks(20))
        first, second = (await fetch(broker, free=2))[:2]
        await refused(broker, task("new"))
        await refused(broker, *children(1, "t7"))
        await refused(broker, *children(1, "unknown"))
        await refused(broker, task("new"), *children(1, first.id))
        await refused(broker, *children(3, first.id))
        assert await broker.submit(children(1, first.id)) == [True]
        assert await broker.submit(children(1, second.id)) == [True]
        told = await refused(broker, *children(1, second.id, "more"))
        assert (told.active, told.ceiling) == (22, 20)
        await broker.check_room(children(1, first.id))
        await broker.settle(first, "done", b"")
        assert await broker.submit(children(1, second.id, "more")) == [True]
        await refused(broker, task("new"))

    async def test_a_standstill_lifts_the_ceiling(self, broker: Broker) -> None:
        """After half a minute without an end any number fits, until something ends."""
        await publish(broker, {"namespace": 2})
        await broker.submit(tasks(2))
        first, second = await fetch(broker)
        await refused(broker, *children(5, first.id))
        await broker.client.set(f"{broker.prefix}clock", 46_000_000)
        await refused(broker, *tasks(1, "new"))
        assert await broker.submit(children(5, first.id)) == [True] * 5
        assert await broker.submit(children(1, first.id, "more")) == [True]
        assert await broker.settle(first, "done", b"") == "OK"
        await refused(broker, *children(5, second.id))


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("seconds", "least", "most"),
        [([0.1] * 8, 1, 15), ([20.0] * 8, 14, 55), ([60.0] * 3 + [0.1] * 10, 1, 3)],
        ids=["fast", "slow", "faster"],
    )
    async def test_the_pause_follows_the_pace_of_ends(
        self, broker: Broker, seconds: list[float], least: int, most: int
    ) -> None:
        """It is about the time in which a place comes back, by the last ends."""
        await publish(broker, CEILING)
        at = 0.0
        await broker.submit(tasks(3))
        for n, pause in enumerate(seconds):
            at += pause
            await broker.client.set(f"{broker.prefix}clock", round(at * 1e6))
            assert await broker.settle(await fetch_one(broker), "done", b"") == "OK"
            await broker.submit([task(f"more{n}")])
        told = (await refused(broker, task("new"))).retry_after
        assert least <= told <= most
        assert told <= (await refused(broker, *tasks(3, "crowd"))).retry_after <= 300

    async def test_the_pause_is_at_most_five_minutes(self, broker: Broker) -> None:
        """However slow the pace is."""
        await publish(broker, {"namespace": 500})
        await broker.submit(tasks(500))
        await broker.settle(await fetch_one(broker), "done", b"")
        await broker.client.set(f"{broker.prefix}clock", 120_000_000)
        assert (await refused(broker, *tasks(400, "more"))).retry_after == 300


class TestPublishing:
    async def test_ceilings_are_replaced_together(self, broker: Broker, ceilings: Ceilings) -> None:
        """Removed ones hold no more, and the event stream has the changes."""
        await publish(broker, {"namespace": 9, "stream:normal:small": 4})
        await publish(broker, {"namespace": 8, "task:probe:Task": 2})
        assert await ceilings.loads() == [Load("namespace", 0, 8), Load("task:probe:Task", 0, 2)]
        version = await ceilings.published()
        await publish(broker, {})
        assert version and await ceilings.published() == ""
        assert await ceilings.loads() == [Load("namespace", 0, None)]
        events = await Events(broker.client, "test").last(9, kind="ceilings-published")
        told = [item.text for item in events]
        assert told[1].split("; ") == [
            "namespace: 9 -> 8",
            "stream:normal:small: 4 -> not set",
            "task:probe:Task: not set -> 2",
        ]


class TestRepair:
    @pytest.fixture
    def in_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A walk takes several calls, as beside many tasks."""
        monkeypatch.setattr(broker_module, "_KEYS_PER_PAGE", 1)

    @pytest.mark.usefixtures("in_pages")
    async def test_two_walks_put_a_count_right(self, broker: Broker, ceilings: Ceilings) -> None:
        """If both see the same difference."""
        await broker.submit(tasks(5))
        await broker.client.delete(f"{broker.prefix}t:t0", f"{broker.prefix}t:t1")
        await broker.client.hset(f"{broker.prefix}active", "normal:small|gone", 7)
        for walk in range(2):
            assert await active(ceilings) == 12, walk
            while (await broker.mend(timedelta(0)))[1]:
                pass
        assert await active(ceilings) == 3

    @pytest.mark.usefixtures("in_pages")
    async def test_a_moving_count_is_left_alone(self, broker: Broker, ceilings: Ceilings) -> None:
        """What two walks missed may be the tasks that came between them."""
        await broker.submit(tasks(2))
        await broker.client.hset(f"{broker.prefix}active", "normal:small|probe:Task", 3)
        for n in range(4):
            while (await broker.mend(timedelta(0)))[1]:
                pass
            await broker.submit([task(f"new{n}")])
        assert await active(ceilings) == 7

    @pytest.mark.usefixtures("in_pages")
    async def test_short_tasks_are_counted_right(self, broker: Broker, ceilings: Ceilings) -> None:
        """Each walk meets a task that has ended at its end: none is missing."""
        large = "normal:large|probe:Task"
        await broker.submit(tasks(9, "stays"))
        for n in range(4):
            await broker.submit([task(f"short{n}", "normal:large")])
            is_open, met = True, None
            while is_open and not met:
                is_open = (await broker.mend(timedelta(0)))[1]
                met = await broker.client.hget(f"{broker.prefix}active:walk", large)
            ((delivery,), _) = await broker.fetch("w", "large", 1)
            assert await broker.settle(delivery, "done", b"{}") == "OK"
            while is_open:
                is_open = (await broker.mend(timedelta(0)))[1]
            assert await broker.client.hget(f"{broker.prefix}active", large) is None


class TestDurable:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(state_dir=tmp_path)

    @pytest.fixture
    async def outbox(self, broker: Broker, settings: Settings) -> AsyncIterator[Outbox]:
        database = Database(settings.sql_url())
        opened = Outbox(database, broker, "test")
        await opened.prepare()
        yield opened
        await database.close()

    async def test_a_refused_task_gets_no_row(self, broker: Broker, outbox: Outbox) -> None:
        """The ceiling is asked before SQL; a row that is open already is not refused."""
        await publish(broker, {"namespace": 1})
        assert await outbox.submit([task("a")], ids_are_new=True) == [True]
        with pytest.raises(AdmissionRejected):
            await outbox.submit([task("b")], ids_are_new=True)
        assert await outbox.count() == 1
        assert await outbox.submit([task("a")], ids_are_new=False) == [False]

    async def test_a_late_refusal_removes_the_row(
        self, broker: Broker, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another task took the last place between the two checks."""
        await publish(broker, {"namespace": 1})
        check = broker.check_room

        async def then_full(submissions: list[Submission]) -> None:
            await check(submissions)
            await broker.submit([task("faster")])

        monkeypatch.setattr(broker, "check_room", then_full)
        with pytest.raises(AdmissionRejected):
            await outbox.submit([task("a")], ids_are_new=True)
        assert await outbox.count() == 0

    async def test_the_relay_skips_a_row_in_flight(
        self, broker: Broker, outbox: Outbox, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Redis may still refuse it."""
        await publish(broker, {"namespace": 1})
        accept, relay = broker.accept, relay_of(outbox, settings)

        async def after_the_relay(submissions: list[Submission]) -> list[Accepted]:
            monkeypatch.setattr(broker, "accept", accept)
            await relay.tick("1")
            await broker.submit([task("faster")])
            return await accept(submissions)

        monkeypatch.setattr(broker, "accept", after_the_relay)
        with pytest.raises(AdmissionRejected):
            await outbox.submit([task("a")], ids_are_new=True)
        await relay.tick("1")
        assert await outbox.count() == 0
        assert [item.id for item in await fetch(broker)] == ["faster"]

    async def test_the_relay_takes_a_row_of_a_dead_submitter(
        self, broker: Broker, outbox: Outbox, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once its claim is over, if it fits."""
        monkeypatch.setattr(outbox_module, "_CLAIM_SECONDS", -1.0)
        monkeypatch.setattr(relay_module, "_REFUSED_SECONDS", 0.0)
        await publish(broker, {"namespace": 1})
        accept, relay = broker.accept, relay_of(outbox, settings)

        async def killed(submissions: list[Submission]) -> list[Accepted]:
            raise asyncio.CancelledError

        monkeypatch.setattr(broker, "accept", killed)
        with pytest.raises(asyncio.CancelledError):
            await outbox.submit([task("a")], ids_are_new=True)
        monkeypatch.setattr(broker, "accept", accept)
        await broker.submit([task("other")])
        await relay.tick("1")
        (other,) = await fetch(broker)
        assert (other.id, await outbox.count()) == ("other", 1)
        await broker.settle(other, "done", b"")
        await relay.tick("1")
        assert [item.id for item in await fetch(broker)] == ["a"]

    async def test_a_row_that_the_relay_took_is_accepted(
        self, broker: Broker, outbox: Outbox, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its submitter, which was believed dead, is not refused: the task will run."""
        monkeypatch.setattr(outbox_module, "_CLAIM_SECONDS", -1.0)
        await publish(broker, {"namespace": 1})
        accept, relay = broker.accept, relay_of(outbox, settings)

        async def after_the_relay(submissions: list[Submission]) -> list[Accepted]:
            monkeypatch.setattr(broker, "accept", accept)
            await broker.submit([task("faster")])
            await relay.tick("1")
            return await accept(submissions)

        monkeypatch.setattr(broker, "accept", after_the_relay)
        assert await outbox.submit([task("a")], ids_are_new=True) == [True]
        assert await outbox.count() == 1

    async def test_accepted_rows_are_handed_over(
        self, broker: Broker, ceilings: Ceilings, outbox: Outbox
    ) -> None:
        """The relay is not refused."""
        await outbox.submit([task("a"), task("b")], ids_are_new=True)
        await broker.client.flushall()
        await publish(broker, {"namespace": 1})
        epoch = await outbox.epoch()
        page = await outbox.due(epoch, again=True, skip=0)
        assert await outbox.hand_over(page, epoch, admitted=True) == [True, True]
        assert await active(ceilings) == 2


class TestTenants:
    """Each tenant has a ceiling of its own, or that of all which are not named."""

    @staticmethod
    def of(tenant: str, count: int, first: int = 0, **fields: object) -> list[Submission]:
        ids = [f"{tenant}.{first + n}" for n in range(count)]
        return [task(id, terms=f"tenant|{tenant}", **fields) for id in ids]

    async def test_a_tenant_is_refused_by_itself(self, broker: Broker, ceilings: Ceilings) -> None:
        """Other tenants, and tasks without one, are accepted."""
        await publish(broker, {"tenant:a": 3, "tenant:default": 2})
        await broker.submit([*self.of("a", 3), *self.of("b", 2), *tasks(9)])
        for tenant, most in (("a", 3), ("b", 2)):
            error = await refused(broker, *self.of(tenant, 1, most))
            assert (error.scope, error.active, error.ceiling) == (f"tenant:{tenant}", most, most)
            assert error.brief == f"tenant {tenant} has {most} of at most {most} tasks"
        await broker.submit([*self.of("c", 2), *self.of("a", 3)])
        found = {load.scope: load for load in await ceilings.loads()}
        assert found["tenant:a"] == Load("tenant:a", 3, 3)
        assert found["tenant:c"] == Load("tenant:c", 2, 2)

    @pytest.mark.parametrize(
        ("end", "fields"), [("done", {}), ("dead", {"locks": MUTEX}), ("cancelled", {"group": "g"})]
    )
    async def test_tasks_count_until_their_end(
        self, broker: Broker, ceilings: Ceilings, end: str, fields: dict[str, str]
    ) -> None:
        """And their bytes; walks over all records change nothing, and put wrong counts right."""
        await publish(broker, {"tenant:default": 1, "tenant-bytes:default": 100})
        (one,) = self.of("a", 1, **fields)
        await broker.submit([one])
        if end == "cancelled":
            await broker.cancel([one.id], "by a test")
        else:
            (delivery,) = await fetch(broker)
            await refused(broker, *self.of("a", 1, 1))
            await broker.settle(delivery, end, b"")
        scopes = ("tenant:a", "tenant-bytes:a")
        assert [await active(ceilings, scope) for scope in scopes] == [0, 0]
        await broker.submit(self.of("a", 1, 1))
        for key, wrong in (("tenants", "1"), ("tenants", "7"), ("bytes", "5")):
            await broker.client.hset(f"{{test}}:active:{key}", "a", wrong)
            await broker.mend(timedelta(0))
            assert [await active(ceilings, scope) for scope in scopes] == [1, 8]

    async def test_messages_are_limited_in_bytes(self, broker: Broker, ceilings: Ceilings) -> None:
        """Envelopes count from submission to the end; the error has the numbers."""
        await publish(broker, {"tenant-bytes:a": 100, "tenant-bytes:default": 20})
        await broker.submit([*self.of("a", 3), *self.of("b", 2), *self.of("a", 3)])
        found = {load.scope: load for load in await ceilings.loads()}
        assert found["tenant-bytes:a"] == Load("tenant-bytes:a", 24, 100)
        assert found["tenant-bytes:b"] == Load("tenant-bytes:b", 16, 20)
        error = await refused(broker, *self.of("b", 1, 2))
        assert error.brief == "tenant b has 16 of at most 20 bytes in its tasks"
        assert not error.is_too_large
        too_large = await refused(broker, *self.of("a", 13, 3))
        assert "submit fewer at a time" in str(too_large)
        for delivery in await fetch(broker):
            await broker.settle(delivery, "done", b"")
        assert await active(ceilings, "tenant-bytes:a") == 0
        assert await broker.submit(self.of("b", 2, 2)) == [True, True]

    @pytest.mark.parametrize("length", [8, 2000])
    async def test_delayed_messages_free_their_bytes_when_due(
        self, broker: Broker, length: int
    ) -> None:
        """`retry_after` looks at when they are due, short envelopes and long ones."""
        await publish(broker, {"tenant-bytes:a": 2 * length})

        def one(id: str, minutes: int = 0) -> Submission:
            due = -int(minutes * 60e6)
            return Submission(id, "p:T", "normal:small", b"x" * length, "", due, terms="tenant|a")

        await broker.submit([one("now"), one("later", 1)])
        more = [one("m0"), one("m1")]
        waits = [(await refused(broker, *more[:count])).retry_after for count in (1, 2)]
        assert waits[0] == 10 and 50 < waits[1] <= 60

    async def test_bytes_are_counted_only_for_a_ceiling(self, broker: Broker) -> None:
        """Without one no count is kept."""
        await publish(broker, {"tenant-bytes:a": 100})
        await broker.submit(self.of("a", 1))
        assert await broker.client.exists("{test}:active:bytes")
        await publish(broker, {"tenant:a": 100})
        await broker.submit(self.of("a", 1, 1))
        assert not await broker.client.exists("{test}:active:bytes")

    async def test_a_rate_limits_new_tasks(self, broker: Broker, ceilings: Ceilings) -> None:
        """A burst is accepted at once; then a refusal says when to come back."""
        await publish(broker, {"tenant-rate:a": 3, "tenant-rate:default": 1})
        await broker.submit(self.of("a", 1))
        assert await active(ceilings, "tenant-rate:a") == 1
        await broker.submit([*self.of("a", 30, 1), *self.of("b", 1), *tasks(5)])
        error = await refused(broker, *self.of("a", 1, 31))
        assert (error.scope, error.ceiling) == ("tenant-rate:a", 3)
        assert 20 < error.active <= 31
        assert 7 < error.retry_after <= 10
        assert await broker.submit(self.of("a", 31)) == [False] * 31, "known ids are free"
        assert (await refused(broker, *self.of("b", 1, 1))).retry_after == 1
