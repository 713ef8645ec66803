"""Tasks of a newer format are moved and shown by this code, and neither executed nor ended."""

from __future__ import annotations

import json

import pytest
import records
from stores.queue.test_broker import lapse, record

from nonet.base.keys import prefix
from nonet.base.messages.formats import FORMAT, format_problem
from nonet.base.messages.message import Envelope, encode
from nonet.rules.findings.explanation import explain
from nonet.stores.connection.redis import script
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.leases import BeatReport, Leases
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import LockedObjectType, MutexLock, encode_locks
from nonet.worker.about import knowledge

P = prefix("test")
WHY = f"task format {FORMAT + 1}, read here up to {FORMAT}: upgrade the workers"
LOCKS = encode_locks([MutexLock(LockedObjectType.JOB, "7")])


async def submit(
    broker: Broker, id: str, *, locks: str = "", due: int = 0, terms: str = ""
) -> None:
    """A task as newer code would write it."""
    envelope = encode(Envelope(FORMAT, id, "x:T", {"n": 1}, {}, 1.5))
    terms = f"format|{FORMAT + 1}\n{terms}"
    task = Submission(id, "x:T", "normal:small", envelope, locks, due, "", terms)
    await broker.submit([task])


async def take(broker: Broker) -> list[str]:
    deliveries, _ = await broker.fetch("small-a1", "small", 10, burials=10)
    return [each.id for each in deliveries]


async def make_due(broker: Broker, id: str) -> None:
    await broker.client.zadd(f"{P}tasks:delayed", {id: 1})
    await broker.promote()


def test_scripts_and_python_know_the_same_format() -> None:
    """The number stands in both."""
    assert f"local FORMAT = {FORMAT}\n" in script("submit")[0]


@pytest.mark.parametrize("format", [FORMAT + 1, 10**6])
def test_the_problem_fits_into_a_record(format: int) -> None:
    """It has the number and the next step, in at most 60 characters."""
    problem = format_problem(format)
    assert str(format) in problem and "worker" in problem and len(problem) <= 60


async def test_a_newer_task_is_handed_on_unchanged(broker: Broker) -> None:
    """It gets no lock and uses no attempt."""
    await submit(broker, "a", locks=LOCKS)
    before, envelope = (
        await record(broker, "a"),
        await records.hget(broker.client, f"{P}t:a", "envelope"),
    )
    for _ in range(3):
        assert await take(broker) == []
        await make_due(broker, "a")
    after = await record(broker, "a")
    names = ("v", "name", "stream")
    assert [after[name] for name in names] == [before[name] for name in names]
    assert await records.hget(broker.client, f"{P}t:a", "envelope") == envelope
    assert (after["state"], after["handed"], after.get("attempt")) == ("queued", "3", None)
    assert await records.hget(broker.client, f"{P}t:a", "locks") == LOCKS.encode()
    assert await broker.client.keys(f"{P}lock:*") == []
    await records.hdel(broker.client, f"{P}t:a", "v")  # newer code
    assert await take(broker) == ["a"]


async def test_status_says_to_upgrade_the_workers(broker: Broker, results: Results) -> None:
    """The task waits in the delayed set, in one place."""
    await submit(broker, "a")
    await take(broker)
    now = (await broker.logical_now()).timestamp()
    due = await broker.client.zscore(f"{P}tasks:delayed", "a")
    assert due / 1e6 - now <= 5
    assert await broker.client.xlen(f"{P}tasks:normal:small") == 0
    status = await results.status("a")
    assert status is not None and (status.state, status.blocker) == ("waiting", WHY)


async def test_explain_says_to_upgrade_the_workers(broker: Broker) -> None:
    """Also before a worker has handed it on: live workers advertise what they read."""
    with_ = Leases(broker.url, "test", "small-a", worker_ttl=9, lock_ttl=3, timeout_seconds=2)
    info, known = json.dumps({"name": "7@pod", "size": "small", "concurrency": 4}), {"x:T": "1"}
    with_.ask(lambda: BeatReport(info, "", known, knowledge(known), {}))
    with_.renew([])
    with_.advertise()
    with_.close()
    await submit(broker, "a")
    cannot = f"no live small worker reads tasks of format {FORMAT + 1} (1 worker up to"
    for told in ("queued", "waiting, handed back"):
        found = explain(await TaskFacts(broker.client, "test").read("a"))
        assert found.cause == "unknown"
        assert found.text.startswith(f"{told}: {cannot} {FORMAT}). Upgrade the workers"), found.text
        await take(broker)


async def test_a_newer_task_is_not_cancelled_at_once(broker: Broker) -> None:
    """Newer code, which knows what belongs to it, ends it."""
    await submit(broker, "a", due=2**52)
    assert await broker.cancel(["a"], "by a test", order="by a test") == ["cancelling"]
    assert (await record(broker, "a"))["state"] == "delayed"
    await broker.promote()  # at once: it need not wait for its time
    assert (await record(broker, "a"))["state"] == "queued"
    await records.hdel(broker.client, f"{P}t:a", "v")
    assert await take(broker) == []
    assert (await broker.client.get(f"{P}r:a")).startswith(b"cancelled|")


async def test_a_newer_task_does_not_expire(broker: Broker) -> None:
    """Its deadline is left to newer code."""
    await submit(broker, "a", terms="start_by|1|")
    await broker.client.zadd(f"{P}deadlines", {"a": 1})
    await broker.promote()
    assert (await record(broker, "a"))["state"] == "queued"
    assert await broker.client.zscore(f"{P}deadlines", "a") > 1


@pytest.mark.parametrize("cancel", ["", "by a test"])
async def test_a_newer_task_of_a_dead_worker_is_queued_again(broker: Broker, cancel: str) -> None:
    """However many workers died with it, and also if it was cancelled."""
    await broker.submit([Submission("a", "x:T", "normal:small", b"?")])
    deliveries, _ = await broker.fetch("small-gone", "small", 1)
    await records.hset(
        broker.client, f"{P}t:a", mapping={"v": FORMAT + 1, "deaths": 1000, "cancel": cancel}
    )
    await lapse(broker, deliveries[0])
    assert (await broker.reclaim("small-a1", "small", new_cursors()))[0] == 1
    after = await record(broker, "a")
    assert (after["state"], after["deaths"]) == ("queued", "1001")


async def test_a_newer_dying_task_stays_dying(broker: Broker) -> None:
    """Until a worker that can read it writes it to SQL."""
    await submit(broker, "a")
    (delivery,) = (await broker.fetch("small-a1", "small", 1))[0] or [None]
    assert delivery is None
    await records.hset(broker.client, f"{P}t:a", "state", "dying")
    await make_due(broker, "a")
    assert await take(broker) == []
    assert (await record(broker, "a"))["state"] == "dying"
    assert await broker.client.zscore(f"{P}tasks:delayed", "a") is not None


async def test_a_newer_waiter_is_queued(broker: Broker) -> None:
    """A promotion does not read its locks: newer code does."""
    await broker.submit([Submission("b", "x:T", "normal:small", b"?", LOCKS)])
    await submit(broker, "a", locks=LOCKS)
    await records.hdel(broker.client, f"{P}t:a", "v")
    assert await take(broker) == ["b"]
    assert (await record(broker, "a"))["state"] == "waiting"
    await records.hset(broker.client, f"{P}t:a", "v", FORMAT + 1)
    await make_due(broker, "a")  # the lock is still held, as far as this code knows
    assert (await record(broker, "a"))["state"] == "queued"
    assert await take(broker) == []
    assert (await record(broker, "a"))["blocker"] == WHY


async def test_a_newer_task_keeps_its_reservation(broker: Broker) -> None:
    """A promotion postpones the check of a reservation that lapsed."""
    await submit(broker, "a", locks=LOCKS)
    await records.hset(broker.client, f"{P}t:a", "places", "x")
    await make_due(broker, "a")
    after = await record(broker, "a")
    assert (after["state"], after["places"]) == ("queued", "x")
    assert await broker.client.zscore(f"{P}tasks:delayed", "a") > 1


async def test_a_newer_task_is_replaced_by_newer_code(broker: Broker) -> None:
    """A later task of its key only orders its cancellation."""
    terms = "unique|latest|0|abcd"
    await submit(broker, "a", terms=terms)
    await broker.submit([Submission("b", "x:T", "normal:small", b"?", "", 0, "", terms)])
    after = await record(broker, "a")
    assert (after["state"], after["cancel"]) == ("queued", "(replaced by b)")
    assert await take(broker) == ["b"]
