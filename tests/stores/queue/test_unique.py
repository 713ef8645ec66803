"""Unique keys: which task has one, for how long, and what becomes of later tasks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stores.queue.test_broker import fetch, fetch_one, in_an_hour, record, until_due

from nonet.base.errors import ConflictError
from nonet.base.messages.message import decode_result
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.quarantine import Quarantine
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.tasks.unique import Unique, unique_lock, unique_term

KEY = "0f" * 16
UNTIL_START, UNTIL_DONE = Unique.until_start(), Unique.until_done()
KEEP_LATEST = Unique.keep_latest()
BOTH = pytest.mark.parametrize("unique", [UNTIL_START, UNTIL_DONE], ids=["start", "done"])


def task(id: str, unique: Unique, key: str = KEY, **fields: object) -> Submission:
    return Submission(
        id,
        "probe:Task",
        "normal:small",
        b"envelope",
        unique_lock(unique, key),
        terms=unique_term(unique, key),
        **fields,  # type: ignore[arg-type]
    )


async def accept(broker: Broker, *tasks: Submission) -> list[Accepted]:
    return await broker.accept(tasks)


async def is_free(broker: Broker, unique: Unique = UNTIL_DONE) -> bool:
    """Whether a new task gets the key, and keeps it."""
    (accepted,) = await accept(broker, task("asked", unique))
    return accepted.created


async def healthy(broker: Broker) -> bool:
    findings = [row async for row in Inspection(broker, "test").rows()]
    return not [row for row in findings if row[0] in ("part", "unknown", "type")]


@BOTH
async def test_a_repeat_is_the_task_that_has_the_key(broker: Broker, unique: Unique) -> None:
    """A later submit gets the id of the first, in the same call and in others."""
    assert await accept(broker, task("a", unique), task("b", unique)) == [
        Accepted("a", True),
        Accepted("a", False),
    ]
    assert await accept(broker, task("c", unique)) == [Accepted("a", False)]
    assert await accept(broker, task("a", unique)) == [Accepted("a", False)]
    assert [item.id for item in await fetch(broker)] == ["a"]


async def test_until_start_ends_with_the_first_delivery(broker: Broker) -> None:
    """Then a new task has the key, which the older one does not take with its retry."""
    await accept(broker, task("a", UNTIL_START))
    delivery = await fetch_one(broker)
    assert await accept(broker, task("b", UNTIL_START)) == [Accepted("b", True)]
    await broker.settle(delivery, "retry", b"error")
    assert await accept(broker, task("c", UNTIL_START)) == [Accepted("b", False)]
    again = await fetch_one(broker)  # that was read before
    assert again.id == "a" and await broker.settle(again, "done", b"") == "OK"
    assert await accept(broker, task("c", UNTIL_START)) == [Accepted("b", False)]
    assert await broker.settle(await fetch_one(broker), "done", b"") == "OK"
    assert await is_free(broker)


async def test_a_delivery_without_a_start_returns_the_key(broker: Broker) -> None:
    """Unless a newer task has got the key meanwhile."""
    await accept(broker, task("a", UNTIL_START))
    for _ in range(2):
        await broker.settle(await fetch_one(broker), "on", started=False)
        assert await accept(broker, task("b", UNTIL_START)) == [Accepted("a", False)]
    delivery = await fetch_one(broker)
    assert await accept(broker, task("b", UNTIL_START)) == [Accepted("b", True)]
    await broker.settle(delivery, "back", started=False)
    assert await accept(broker, task("c", UNTIL_START)) == [Accepted("b", False)]
    await broker.settle(await fetch_one(broker), "back", started=True)
    assert "unique" not in await record(broker, "a")
    assert await accept(broker, task("c", UNTIL_START)) == [Accepted("b", False)]


async def test_a_started_task_has_no_key(broker: Broker) -> None:
    """What a cut script has left of the key counts for nothing."""
    key = f"{broker.prefix}u:{KEY}"
    await accept(broker, task("a", UNTIL_START))
    await fetch_one(broker)
    assert await broker.client.exists(key) == 0
    await broker.client.set(key, "|a")
    assert await accept(broker, task("b", UNTIL_START)) == [Accepted("b", True)]


async def test_until_done_holds_through_retries(broker: Broker) -> None:
    """Not after the end."""
    await accept(broker, task("a", UNTIL_DONE))
    delivery = await fetch_one(broker)
    assert not await is_free(broker)
    await broker.settle(delivery, "retry", b"error", delay=timedelta(seconds=60))
    assert not await is_free(broker)
    await until_due(broker, "a")
    delivery = await fetch_one(broker)
    assert not await is_free(broker)
    await broker.settle(delivery, "done", b"")
    assert await is_free(broker)


@pytest.mark.parametrize("outcome", ["done", "dead", "cancelled", "expired", "withdrawn"])
@BOTH
async def test_every_end_frees_the_key(broker: Broker, unique: Unique, outcome: str) -> None:
    """However a task ends, the next one of its key is a new one."""
    await accept(broker, task("a", unique))
    if outcome == "withdrawn":
        assert await broker.cancel(["a"], "not wanted") == ["cancelled"]
    else:
        assert await broker.settle(await fetch_one(broker), outcome, b"") == "OK"
    assert await is_free(broker, unique)


async def test_for_seconds_counts_from_the_submission(broker: Broker) -> None:
    """Whatever becomes of the task, and no longer."""
    unique = Unique.for_seconds(100)
    await accept(broker, task("a", unique))
    assert await broker.settle(await fetch_one(broker), "done", b"") == "OK"
    assert await accept(broker, task("b", unique)) == [Accepted("a", False)]
    assert 0 < await broker.client.pttl(f"{broker.prefix}u:{KEY}") <= 101_000
    await broker.client.set(f"{broker.prefix}clock", 50_000_000)
    assert await accept(broker, task("b", unique)) == [Accepted("a", False)]
    await broker.client.set(f"{broker.prefix}clock", 100_000_000)
    assert await accept(broker, task("b", unique)) == [Accepted("b", True)]


async def test_a_key_without_an_owner_is_free(broker: Broker) -> None:
    """The walk over all records lets it expire."""
    key = f"{broker.prefix}u:{KEY}"
    await broker.client.set(key, "|gone")
    assert not await healthy(broker)
    await broker.mend(timedelta(0))
    assert await broker.client.pttl(key) > 0
    assert await healthy(broker)
    assert await is_free(broker)
    await accept(broker, task("other", UNTIL_DONE, "1e" * 16))
    await broker.client.set(key, "|other")  # which has another key
    assert await accept(broker, task("mine", UNTIL_DONE)) == [Accepted("mine", True)]


async def test_a_task_submitted_with_a_settle_meets_the_key(broker: Broker) -> None:
    """Of after_commit: the task that has the key is the same task."""
    await accept(broker, task("a", UNTIL_DONE))
    delivery = await fetch_one(broker)
    children = [task("b", UNTIL_DONE), task("c", UNTIL_DONE, "1e" * 16)]
    assert await broker.settle(delivery, "done", b"", submissions=children) == "OK"
    # Its own key is given up only after that.
    assert [item.id for item in await fetch(broker)] == ["c"]


class TestKeepLatest:
    async def test_the_newest_replaces_the_waiting_one(self, broker: Broker) -> None:
        """The replaced task ends cancelled and names the newer one; one task runs."""
        await accept(broker, task("a", KEEP_LATEST))
        running = await fetch_one(broker)
        await accept(broker, task("b", KEEP_LATEST))
        assert await fetch(broker) == []
        assert (await record(broker, "b"))["state"] == "waiting"
        assert await accept(broker, task("c", KEEP_LATEST)) == [Accepted("c", True)]
        state, _, document = (await broker.client.get(f"{broker.prefix}r:b")).split(b"|", 2)
        ended = decode_result(document)
        assert (state, ended.error) == (b"cancelled", "cancelled (replaced by c)")
        assert ended.reason == "cancelled" and ended.name == "probe:Task"
        assert await fetch(broker) == []
        assert await broker.settle(running, "done", b"") == "OK"
        assert [item.id for item in await fetch(broker)] == ["c"]

    async def test_a_running_one_is_not_executed_again(self, broker: Broker) -> None:
        """If it fails, the newer task runs instead."""
        await accept(broker, task("a", KEEP_LATEST))
        running = await fetch_one(broker)
        await accept(broker, task("b", KEEP_LATEST))
        assert await broker.settle(running, "retry", b"error") == "OK"
        assert await record(broker, "a") == {}
        assert [item.id for item in await fetch(broker)] == ["b"]

    @pytest.mark.parametrize("is_retry", [True, False])
    async def test_a_delayed_one_is_replaced(self, broker: Broker, *, is_retry: bool) -> None:
        """A client that awaits the result of the replaced task is woken at once."""
        hour = await in_an_hour(broker)
        await accept(broker, task("a", KEEP_LATEST, due_us=hour * (not is_retry)))
        if is_retry:
            await broker.settle(await fetch_one(broker), "retry", b"", delay=timedelta(seconds=60))
        await broker.scripts.run("wait", "a", "somebody")
        await accept(broker, task("b", KEEP_LATEST))
        assert await broker.client.lrange(f"{broker.prefix}wake:somebody", 0, -1) == [b"a"]
        assert await broker.client.zscore(f"{broker.prefix}tasks:delayed", "a") is None
        assert await record(broker, "a") == {}
        assert [item.id for item in await fetch(broker)] == ["b"]


async def test_a_quarantined_entry_meets_the_key(broker: Broker) -> None:
    """Its retry is refused with the task that has the key, and the entry stays."""
    await accept(broker, task("a", UNTIL_DONE))
    await broker.quarantine(await fetch_one(broker), "unreadable")
    quarantine = Quarantine(broker, "test")
    (item,) = [each async for each in quarantine.newest(5)]
    with pytest.raises(ConflictError, match="task a has its unique key"):
        await quarantine.retry(item.entry, task("q-1", UNTIL_DONE), "ann")
    assert [each.entry async for each in quarantine.newest(5)] == [item.entry]
