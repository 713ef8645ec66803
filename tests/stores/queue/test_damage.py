"""What somebody else has done to the keys of a task is named, and ends the task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from nonet.operate.doctor import diagnose
from nonet.rules.explanation import explain
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import MutexLock, encode_locks

NOW = timedelta(0)
MUTEX = encode_locks([MutexLock("job", 7)])
LONG = b"e" * 200  # in a key of its own


def task(id: str, locks: str = "", due_us: int = 0, group: str = "") -> Submission:
    return Submission(id, "p:T", "normal:small", LONG, locks, due_us, group)


async def queued(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX)])


async def delayed(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX, due_us=2**52)])


async def waiting(broker: Broker) -> None:
    await broker.submit([task("holder", MUTEX), task("a", MUTEX)])
    await broker.fetch("small-a", "small", 10)


async def running(broker: Broker) -> None:
    await broker.submit([task("a", MUTEX)])
    await broker.fetch("small-a", "small", 10)


async def dying(broker: Broker) -> None:
    await running(broker)
    gen, fence = await broker.client.hmget("{test}:t:a", "gen", "fence")
    row = ("a", gen, fence, "tasks:normal:small", "0-1", "dying", b"document", "", 0, 1, 0)
    await broker.scripts.run("settle", broker.keeping, 30_000, 0, *row)


STATES = (queued, delayed, waiting, running, dying)


async def other_type(broker: Broker, key: str) -> None:
    await broker.client.delete(f"{{test}}:{key}")
    await broker.client.zadd(f"{{test}}:{key}", {"x": 1})


async def field(broker: Broker, name: str, value: str) -> None:
    await broker.client.hset("{test}:t:a", name, value)


async def without(broker: Broker, name: str) -> None:
    await broker.client.hdel("{test}:t:a", name)


DAMAGES: dict[str, Callable[[Broker], Awaitable[None]]] = {
    "its record is a Redis zset, not a hash": lambda b: other_type(b, "t:a"),
    "its envelope is a Redis zset, not a string": lambda b: other_type(b, "b:a"),
    "its list of locks is a Redis zset, not a string": lambda b: other_type(b, "l:a"),
    "its history is a Redis zset, not a list": lambda b: other_type(b, "h:a"),
    "its error is a Redis zset, not a string": lambda b: other_type(b, "e:a"),
    "its checkpoint is a Redis zset, not a string": lambda b: other_type(b, "c:a"),
    "it has no state": lambda b: without(b, "state"),
    "it has no stream": lambda b: without(b, "stream"),
    "it has no gen": lambda b: without(b, "gen"),
    "it has the state 'done'": lambda b: field(b, "state", "done"),
    "it belongs to the stream 'urgent:tiny'": lambda b: field(b, "stream", "urgent:tiny"),
    "its attempt is '-1', which is no number": lambda b: field(b, "attempt", "-1"),
    "its gen is '1e999', which is no number": lambda b: field(b, "gen", "1e999"),
    "its start_by is 'soon'": lambda b: field(b, "start_by", "soon"),
}


async def named(broker: Broker) -> list[str]:
    """What the doctor says of the task."""
    diagnosis = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=0)
    return [item.problem for item in diagnosis.problems if item.what == "a"]


@pytest.mark.parametrize("state", STATES, ids=[state.__name__ for state in STATES])
@pytest.mark.parametrize("problem", DAMAGES)
async def test_a_damaged_task_is_named_and_ends(
    broker: Broker, redis_url: str, state: Callable[[Broker], Awaitable[None]], problem: str
) -> None:
    """Who asks is told the damage; one walk of a worker ends the task, with its bytes kept."""
    results = Results(broker.client, broker.scripts, redis_url, "test")
    await state(broker)
    await DAMAGES[problem](broker)
    assert any(problem in said for said in await named(broker))
    assert problem in explain(await TaskFacts(broker.client, "test").read("a")).text
    assert await results.status("a") is not None
    assert {item.id async for item in results.live()} <= {"a", "holder"}
    assert {item.id async for item in results.delayed_tasks()} <= {"a"}
    await broker.mend(NOW)
    assert await named(broker) == []
    ended = await results.status("a")
    assert ended is not None and (ended.state, ended.reason) == ("dead", "quarantined")
    ((_, kept),) = await broker.client.xrange("{test}:quarantine")
    assert (kept[b"task"], kept[b"reason"].decode()[9 : 9 + len(problem)]) == (b"a", problem)
    assert not await broker.client.exists(*(f"{{test}}:{part}:a" for part in "tblehc"))
    await results.aclose()


@pytest.mark.parametrize("place", ["stream", "delayed", "pending"])
async def test_a_deleted_record_is_counted_and_those_who_wait_are_told(
    broker: Broker, redis_url: str, place: str
) -> None:
    """A pointer to a task that Redis does not know leaves a count, wherever it is met."""
    await {"stream": queued, "delayed": delayed, "pending": running}[place](broker)
    await broker.scripts.run("wait", "a", "client")
    await broker.client.delete("{test}:t:a")
    if place == "delayed":
        await broker.mend(NOW)
    elif place == "pending":
        await broker.disown("small-a", "small", [])
    else:
        await broker.fetch("small-b", "small", 10)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") == b"1"
    assert await broker.client.lrange("{test}:wake:client", 0, -1) == [b"a"]


async def test_a_known_end_is_no_unknown_task(broker: Broker) -> None:
    """A pointer to a task that has ended a moment ago is void, as always, and is not counted."""
    await queued(broker)
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, "done")
    await broker.client.xadd("{test}:tasks:normal:small", {"id": "a", "gen": delivery.gen})
    await broker.fetch("small-a", "small", 1)
    assert await broker.client.hget("{test}:counters", "tasks:unknown") is None


async def test_the_end_of_a_task_takes_its_damaged_keys_along(broker: Broker) -> None:
    """If nobody has met the damage before, the task is done, and leaves nothing but its result."""
    await broker.submit([task("a", MUTEX)])
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await other_type(broker, "l:a")
    assert await broker.settle(delivery, "done") == "OK"
    assert await broker.client.keys("{test}:[tblehc]:a") == []


GROUP: dict[str, Callable[[Broker], Awaitable[object]]] = {
    "state": lambda b: b.client.hset("{test}:g:g", "state", "odd"),
    "failed": lambda b: b.client.hset("{test}:g:g", "failed", "x"),
    "ttl": lambda b: b.client.hdel("{test}:g:g", "ttl"),
    "its key": lambda b: other_type(b, "g:g"),
    "pending": lambda b: other_type(b, "g:g:pending"),
    "results": lambda b: other_type(b, "g:g:results"),
    "callback": lambda b: other_type(b, "g:g:callback"),
    "stream of the callback": lambda b: b.client.hset("{test}:g:g:callback", "stream", "x"),
}


@pytest.fixture
async def groups(broker: Broker) -> Groups:
    """With one group, which waits for a single child."""
    opened = Groups(broker.client, "test")
    ends = {"callback": task("callback"), "on_failure": task("failure")}
    await opened.open("g", "", policy="all_success", ttl_seconds=60, total=1, **ends)
    await broker.submit([task("a", group="g")])
    await opened.seal("g", "")
    return opened


async def run_all(broker: Broker) -> list[str]:
    """What a worker runs from now on: a walk follows each look, and much time each walk."""
    ran = []
    for _ in range(3):
        for delivery in (await broker.fetch("small-a", "small", 10))[0]:
            ran.append(delivery.id)
            await broker.settle(delivery, "done")
        await broker.mend(NOW)
        if await broker.client.hexists("{test}:g:g", "missing"):
            await broker.client.hset("{test}:g:g", "missing", 1)
    return ran


@pytest.mark.parametrize("what", GROUP)
async def test_a_damaged_group_fails(broker: Broker, groups: Groups, what: str) -> None:
    """Its `on_failure` is submitted, once; the callback never is."""
    await GROUP[what](broker)
    await broker.mend(NOW)
    assert sorted(await run_all(broker)) == ["a", "failure"]
    status = await groups.status("g")
    assert (status.state, status.outcome) == ("fired", "failed")


@pytest.mark.parametrize("what", GROUP)
@pytest.mark.usefixtures("groups")
async def test_a_damaged_group_fires_once(broker: Broker, what: str) -> None:
    """Also if its last child ends before a walk has seen the damage."""
    await GROUP[what](broker)
    first, *then = await run_all(broker)
    assert first == "a" and then in (["callback"], ["failure"])
    assert await broker.client.pttl("{test}:g:g") > 0
