"""The history: which ends it lists, and what it keeps of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from clients import broker_at
from stores.queue.test_broker import fetch, fetch_one, task

from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.stores.namespace.history import EndedFilter, History
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

MOST = 40


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    opened = broker_at(redis_url, history=MOST)
    yield opened
    await opened.aclose()


@pytest.fixture
def history(broker: Broker) -> History:
    return History(broker.client, "test")


def failed(error: str = "no such bill", traceback: str = "") -> bytes:
    shown = ("ValueError", error, "retries", "", None, 0, 0, traceback)
    return encode(["probe:Task", 1, 1.0, None, *shown])


async def test_each_kind_of_end_is_listed(broker: Broker, history: History) -> None:
    """With its times, the newest first."""
    past = {"terms": "start_by|+1|"}
    await broker.submit([task("late", "background:small", **past)])
    await broker.promote()
    await broker.submit([task("done"), task("dead"), task("gone")])
    await broker.cancel(["gone"], "cancelled by a\ttest", order="")
    for delivery in sorted(await fetch(broker), key=lambda item: item.id, reverse=True):
        await broker.settle(delivery, delivery.id, failed() if delivery.id == "dead" else b"")
    found = await history.ended()
    assert [(item.id, item.state) for item in found] == [
        *(("dead", "dead"), ("done", "done"), ("gone", "cancelled"), ("late", "expired"))
    ]
    assert [item.name for item in found] == ["probe:Task"] * 4
    assert [item.attempt for item in found] == [1, 1, 0, 0]
    dead, done, gone, late = found
    assert (dead.error_type, dead.error, dead.reason) == ("ValueError", "no such bill", "retries")
    assert gone.error == "cancelled by a test"
    assert (late.reason, late.stream) == ("capacity", "background:small")
    assert done.submitted and done.started and done.submitted < done.started < done.ended
    assert (done.worker, done.ran) == ("small-a", done.ended - done.started)
    assert gone.started is None and gone.waited is None and not gone.worker


async def test_each_end_is_on_one_page(broker: Broker, history: History) -> None:
    """Although others end between the pages."""
    ids = [f"t{n:02}" for n in range(30)]
    await broker.submit([task(id) for id in ids])
    for delivery in await fetch(broker, len(ids)):
        await broker.settle(
            delivery,
            "dead" if delivery.id == "t07" else "done",
            failed() if delivery.id == "t07" else b"",
        )
    first = await history.page(EndedFilter(), limit=12)
    await broker.submit([task("new")])
    await broker.settle(await fetch_one(broker), "done")
    second = await history.page(EndedFilter(), limit=12, cursor=first.cursor)
    rest = await history.page(EndedFilter(), limit=12, cursor=second.cursor)
    met = [row.id for page in (first, second, rest) for row in page.rows]
    assert sorted(met) == ids
    assert (first.matched, rest.cursor) == (30, "")
    found = [await history.find(id) for id in (*ids, "new")]
    assert [kept.task.id for kept in found if kept] == [*ids, "new"]
    assert await history.find("t0") is None
    with pytest.raises(ValueError, match="cursor"):
        await history.page(EndedFilter(), cursor="[1]")


async def test_ends_are_filtered(broker: Broker, history: History) -> None:
    """By state, class, worker, error, labels of failures, time and number."""
    envelope = encode(Envelope(FORMAT, "bad", "m:Other", {}, {"vo": "lhcb"}, 0.0, "", ""))
    await broker.submit([Submission("bad", "m:Other", "normal:small", envelope), task("good")])
    for delivery in await fetch(broker):
        is_bad = delivery.id == "bad"
        await broker.settle(delivery, "dead" if is_bad else "done", failed() if is_bad else b"")

    async def found(**options: Any) -> list[str]:
        return sorted(row.id for row in (await history.page(EndedFilter(**options))).rows)

    now = await broker.logical_now()
    assert await found(error="valueerror: NO such") == ["bad"]
    assert await found(labels={"vo": "lhcb"}) == ["bad"]
    assert await found(workers=["small-a"], until=now) == ["bad", "good"]
    assert await found(workers=["small-b"]) == await found(since=now) == []
    assert await found(until=now - timedelta(minutes=1)) == []
    for options, expected in (
        ({"states": ["dead", "expired"]}, ["bad"]),
        ({"states": ["done"]}, ["good"]),
        ({"task": "m:Other"}, ["bad"]),
        ({"task": "Task"}, ["good"]),
        ({"limit": 1}, ["good"]),
        ({"since": timedelta(minutes=1)}, ["good", "bad"]),
        ({"since": timedelta(0)}, []),
    ):
        assert [item.id for item in await history.ended(**options)] == expected
    with pytest.raises(ValueError, match="'running' is not one of done, cancelled"):
        await history.ended(states=["running"])


async def test_simultaneous_ends_have_their_own_data(broker: Broker, history: History) -> None:
    """Although most lines leave out what they share."""
    names = ["m:A", "m:A", "m:B", "m:B", "m:B", "m:A"]
    for n, name in enumerate(names):
        await broker.submit([Submission(f"t{n}", name, "normal:small", b"e")])
    delivered = await fetch(broker, 4, "small-a") + await fetch(broker, 2, "small-b")
    await asyncio.gather(*(broker.settle(item, "done") for item in delivered))
    found = (await history.ended())[::-1]
    assert [item.id for item in found] == [f"t{n}" for n in range(6)]
    assert [item.name for item in found] == names
    assert [item.worker for item in found] == ["small-a"] * 4 + ["small-b"] * 2
    assert len({item.submitted for item in found}) == 6
    assert len({item.started for item in found}) == 2
    assert {(item.state, item.attempt, item.ended) for item in found} == {
        ("done", 1, found[0].ended)
    }


async def test_no_kind_of_end_pushes_another_out(broker: Broker, history: History) -> None:
    """A mass cancellation least of all; of failures a tenth of the number is kept."""
    for state in ("done", "dead", "expired"):
        await broker.submit([task(f"{state}-{n}") for n in range(6)])
        for item in await fetch(broker):
            await broker.settle(item, state, b"" if state == "done" else failed())
    names = [f"t{n}" for n in range(2 * MOST)]
    await broker.submit([task(name) for name in names])
    await broker.cancel(names, "cancelled")
    found = Counter(item.state for item in await history.ended(limit=1000))
    assert found == {"done": 6, "dead": MOST / 10, "expired": MOST / 10, "cancelled": MOST}


async def test_a_failure_takes_at_most_5_kb(broker: Broker, history: History) -> None:
    """A small envelope is kept; a traceback is cut at its beginning."""
    await broker.submit([Submission("a", "m:T", "normal:small", b"small")])
    long = {"error": "x" * 10_000, "traceback": "y" * 10_000 + "last"}
    await broker.submit([Submission("b", "m:T", "normal:small", b"z" * 4000)])
    for delivery in await fetch(broker):
        document = failed(**long) if delivery.id == "b" else failed()
        await broker.settle(delivery, "dead", document)
    small, large = await history.find("a"), await history.find("b")
    assert small and small.envelope == b"small"
    assert large and large.envelope == b"" and large.task.error == "x" * 600
    assert large.task.traceback == "y" * 4092 + "last"
    for entry in await broker.client.lrange("{test}:ended:dead", 0, -1):
        assert len(entry) <= 5000
    assert await history.find("c") is None


async def test_zero_turns_the_history_off(broker: Broker, redis_url: str, history: History) -> None:
    """The next walk over all records deletes what there is."""
    await broker.submit([task("a")])
    await broker.settle(await fetch_one(broker), "done")
    assert len(await history.ended()) == 1
    off = broker_at(redis_url, history=0)
    await off.submit([task("b"), task("c")])
    await off.settle(await fetch_one(off), "done")
    await off.settle(await fetch_one(off), "dead", failed())
    assert [item.id for item in await history.ended()] == ["a"]
    while (await off.mend(timedelta(0)))[1]:
        pass
    assert await history.ended() == []
    await off.aclose()


async def test_a_worker_is_shown_by_its_name(broker: Broker, history: History) -> None:
    """`pid@host` while Redis knows the worker."""
    await broker.submit([task("a")])
    await broker.settle(await fetch_one(broker), "done", b"")
    await broker.client.hset("{test}:w:small-a", "info", '{"name":"7@host"}')
    (found,) = await history.ended()
    assert found.worker == "7@host"
