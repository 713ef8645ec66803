"""What the doctor finds in a real namespace, and on which servers daemons start."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import records
from clients import broker_at
from servers import RedisServer
from shell import paste
from stores.beats import beat

from nonet.base import keys
from nonet.base.errors import ConfigurationError
from nonet.operate.doctor import diagnose
from nonet.rules.findings.diagnosis import Finding, Row, examine, examine_entry
from nonet.rules.findings.overview import troubles
from nonet.rules.findings.servers import Replication, Server, examine_server
from nonet.rules.findings.situation import Situation
from nonet.stores.connection.redis import script
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.stores.namespace.sessions import Link, Session, Sessions
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workflows import NewWorkflow, Workflows
from nonet.tasks.locks import ConcurrencyLimiter, MutexLock, RateLimiter, SharedRWLock, encode_locks

MUTEX = "lock:mutex:job:7"
LOCKS = encode_locks(
    [
        MutexLock("job", 7),
        SharedRWLock("job", 8),
        ConcurrencyLimiter("job", 9, limit=1),
        RateLimiter("job", 10, limit=5, window_seconds=60),
    ]
)
SCRIPTS = Path(__file__).parents[3] / "src" / "nonet" / "stores" / "scripts"


def task(id: str, locks: str = "", **fields: object) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", locks, **fields)  # type: ignore[arg-type]


async def findings(broker: Broker) -> list[Finding]:
    rows = [row async for row in Inspection(broker, "test").rows()]
    return [found for row in rows if (found := examine(row, lease=45)) is not None]


async def busy(broker: Broker, redis_url: str) -> None:
    """A namespace in which something of everything is alive."""
    beat(redis_url)
    groups = Groups(broker.client, "test")
    await groups.open(
        "g", "", policy="all_done", ttl_seconds=60, total=1, callback=task("cb"), on_failure=None
    )
    await broker.submit([task("child", group="g")])
    await groups.seal("g", "")
    terms = ["step flow s - -", "step flow - - - s0"]
    steps = [task(f"flow:{place}", terms=term) for place, term in enumerate(terms)]
    workflows = Workflows(broker)
    await workflows.submit([NewWorkflow("flow", "", "", steps, True)], 60)
    await broker.submit([task("r", LOCKS), task("w", LOCKS), task("d", due_us=2**52), task("bad")])
    deliveries, _ = await broker.fetch("small-a", "small", 10)
    for delivery in deliveries:
        if delivery.id == "bad":
            await broker.settle(delivery, "dying", b"doc")
    await broker.submit([task("done"), task("retried"), task("queued")])
    (done, retried), _ = await broker.fetch("small-a", "small", 2)
    await broker.settle(done, "done", b"result")
    await broker.settle(retried, "retry", b"error")
    await broker.hold("hold-1", encode_locks([MutexLock("job", 11)]))
    await broker.hold("hold-2", LOCKS, wait=True)
    await broker.scripts.run("wait", "queued", "client-1")  # a client awaits its result
    logins, now = Sessions(broker.client, "test", b"secret"), time.time()
    await logins.begin(Session("alice", "file", "", "", "", now, now + 60, "digest"), 60)
    await logins.offer("code", Link("alice", now + 60))
    await logins.attempt("alice", 60)


async def test_a_busy_namespace_is_healthy(broker: Broker, redis_url: str) -> None:
    """Tasks of every state, locks, groups and holds: no finding."""
    await busy(broker, redis_url)
    assert await findings(broker) == []


Damage = Callable[[Any], Awaitable[object]]


def missing(key: str) -> Damage:
    return lambda redis: redis.delete(f"{{test}}:{key}")


def other_type(key: str) -> Damage:
    async def do(redis: Any) -> None:
        await redis.delete(f"{{test}}:{key}")
        await redis.rpush(f"{{test}}:{key}", "x")

    return do


async def point_again(redis: Any) -> None:
    """To the task `queued`, from a second and a third stream."""
    gen = await records.hget(redis, "{test}:t:queued", "gen")
    for name in ("tasks:realtime:large", "woken:normal:small"):
        await redis.xadd(f"{{test}}:{name}", {"id": "queued", "gen": gen})


async def point_to_delayed(redis: Any) -> None:
    """To the delayed task, with its own pointer."""
    gen = await records.hget(redis, "{test}:t:d", "gen")
    entry = await redis.xadd("{test}:tasks:normal:small", {"id": "d", "gen": gen})
    await records.hset(redis, "{test}:t:d", "pointer", b"tasks:normal:small " + entry)


async def lose_stream(redis: Any) -> None:
    """Of what runs on a worker that lives; it has not beaten since."""
    await redis.delete("{test}:tasks:normal:small", "{test}:woken:normal:small")


MISSED: dict[str, tuple[Damage, str]] = {
    "task of a lock": (missing("t:r"), "lock: "),
    "waiter": (lambda redis: redis.zadd(f"{{test}}:queue:{MUTEX}", {"ghost": 1}), "queue: "),
    "child": (missing("t:child"), "waits for task child, which does not exist"),
    "registrations": (missing("workers"), "worker: "),
    "task of an entry": (missing("t:queued"), "stream: "),
    "deadline": (lambda redis: redis.zadd("{test}:deadlines", {"gone": 9e15}), "task: "),
    "unknown key": (lambda redis: redis.set("{test}:odd", 1), "is not a key of Nonet"),
    "in three streams": (point_again, "which is elsewhere"),
    "queued and delayed": (
        lambda redis: redis.zadd("{test}:tasks:delayed", {"queued": 2**52}),
        "is queued, but also in the delayed set",
    ),
    "delayed and queued": (point_to_delayed, "is delayed, but also in a stream"),
    "running without entry": (lose_stream, "is running on worker small-a, which does not have it"),
    "unique key": (lambda redis: redis.set("{test}:u:key", "|gone"), "key: belongs to a task"),
    "record": (other_type("t:d"), "has the wrong type for its name (list)"),
    "open": (lambda redis: redis.sadd("{test}:open:nobody", "g"), "no record"),
    "step": (missing("t:flow:0"), "waits for step flow:0, which does not exist"),
    "step that all have left": (missing("m:flow:1"), "waits for no step, but was not released"),
    "workflow": (missing("f:flow"), "waits for other steps, but its workflow is gone"),
    "rest": (missing("f:flow"), "belongs to a workflow that is gone"),
    "steps": (missing("f:flow:live"), "has no step left to run, but has not ended"),
    "due": (other_type("tasks:delayed"), "has the wrong type for its name (list)"),
}


@pytest.mark.parametrize("name", MISSED)
async def test_every_damage_is_found(broker: Broker, redis_url: str, name: str) -> None:
    """Each is a finding that names it, and the doctor reads on to the end."""
    await busy(broker, redis_url)
    damage, said = MISSED[name]
    await damage(broker.client)
    diagnosis = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=0)
    found = [f"{finding.kind}: {finding.problem}" for finding in diagnosis.problems]
    assert any(said in text for text in found), found


async def test_a_running_task_needs_no_entry(broker: Broker, redis_url: str) -> None:
    """As long as its worker reports it with each beat."""
    await busy(broker, redis_url)
    await lose_stream(broker.client)
    now = (await broker.logical_now()).timestamp()
    await records.hset(broker.client, "{test}:t:r", "kept", str(round(now * 1e6)))
    found = [finding.what for finding in await findings(broker) if finding.kind == "task"]
    assert "r" not in found and "queued" in found


async def test_large_keys_are_walked_in_pages(broker: Broker, redis_url: str) -> None:
    """One missing child among thousands is found, and no call reads many at once."""
    await busy(broker, redis_url)
    await broker.submit([task(f"c{i:04}", group="g") for i in range(3000)])
    await broker.submit([task(f"d{i:04}", due_us=2**52) for i in range(2500)])
    for id in ("c2998", "d2499"):
        await broker.client.delete(f"{{test}}:t:{id}", f"{{test}}:b:{id}")
    await broker.client.zadd(f"{{test}}:queue:{MUTEX}", {f"w{i}": i for i in range(3000)})
    rows = [row async for row in Inspection(broker, "test").rows()]
    found = [finding for row in rows if (finding := examine(row, lease=45))]
    assert "waits for task c2998, which does not exist" in {finding.problem for finding in found}
    assert {"stream", "task"} <= {finding.kind for finding in found}
    waiters = {row[2] for row in rows if row[0] == "waiter"}
    assert waiters >= {f"w{i}" for i in range(3000)}
    most = 0
    for what in ("keys", "g:g:pending", f"queue:{MUTEX}"):
        _, *page = await broker.scripts.run("inspect", what, "0", 200)
        most = max(most, len(page))
    assert most < 1000


async def test_only_lasting_problems_count(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look finds one more that the next one does not, and one that stays."""
    looks, read = 0, Inspection.rows

    async def rows(self: Inspection) -> AsyncIterator[Row]:
        nonlocal looks
        looks += 1
        await broker.client.delete(f"{{test}}:odd-{looks - 1}")
        await broker.client.set(f"{{test}}:odd-{looks}", 1)
        async for row in read(self):
            yield row

    monkeypatch.setattr(Inspection, "rows", rows)
    healthy = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=20)
    assert healthy.is_healthy
    await broker.client.set("{test}:other", 1)
    diagnosis = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=1)
    assert [finding.what for finding in diagnosis.problems] == ["{test}:other"]


async def test_the_diagnosis_counts_what_was_read(broker: Broker) -> None:
    """Tasks and stream entries, not the rows of a script."""
    await broker.submit([task("a"), task("b")])
    diagnosis = await diagnose(Inspection(broker, "test"), lease=45, wait_seconds=0)
    assert diagnosis.looked_at == {"tasks": 2, "stream entries": 2}


@pytest.mark.parametrize("lasts", [True, False])
async def test_durable_tasks_count_if_they_stay(broker: Broker, lasts: bool) -> None:
    """Rows that a relay takes meanwhile are no problem."""
    left = iter([(3, 60.0), (2, 60.0), (2, 61.0)] if lasts else [(3, 60.0), (0, 0.0)])

    async def overdue() -> tuple[int, float]:
        return next(left, (2, 62.0) if lasts else (0, 0.0))

    diagnosis = await diagnose(
        Inspection(broker, "test"), lease=45, wait_seconds=1.5, overdue=overdue
    )
    assert [finding.what for finding in diagnosis.problems] == ["durable tasks"] * lasts


def test_the_doctor_knows_every_key_of_the_table() -> None:
    """A new kind of key is inspected, or listed as one that needs no inspection."""
    types = "STREAM|ZSET|HASH|STRING|LIST|SET"
    heads = re.findall(rf"^    ([a-z]+)\S* +(?:{types}) ", keys.__doc__ or "", re.M)
    known = set(re.findall(r"\b(\w+) = \{(?:false|'\w+'), ", script("inspect")[0]))
    assert set(heads) <= known | {"tasks", "lock", "limiter"}
    parts = re.findall(rf"^    f:WORKFLOW:([a-z]+) +(?:{types}) ", keys.__doc__ or "", re.M)
    listed = re.search(r"PARTS_OF_WORKFLOW = \{(.*)\}", script("inspect")[0])
    assert listed is not None and set(parts) == set(re.findall(r"(\w+) =", listed[1]))


def test_every_command_of_the_scripts_is_probed() -> None:
    """A daemon asks for each permission before it starts."""
    used = set()
    for path in SCRIPTS.rglob("*.lua"):
        if path.stem != "probe":
            used |= set(re.findall(r"\bcall\('([A-Z]+)'", path.read_text()))
    probed = set(re.findall(r"\btry(?:_without_key)?\('([A-Z]+)'", script("probe")[0]))
    assert used <= probed | {"TIME"}


async def test_probing_leaves_nothing(broker: Broker) -> None:
    """A user with all rights is denied nothing, and no key stays."""
    before = {key async for key in broker.client.scan_iter()}
    await Inspection(broker, "test").check(allow_eviction=False)
    assert {key async for key in broker.client.scan_iter()} == before


@asynccontextmanager
async def user_without(broker: Broker, command: str) -> AsyncIterator[str]:
    """The URL of a user who may not use this command."""
    commands = ["+@all", f"-{command}"]
    await broker.client.acl_setuser(
        "limited", enabled=True, nopass=True, keys=["*"], commands=commands, reset=True
    )
    host = broker.client.connection_pool.connection_kwargs
    yield f"redis://limited:x@{host['host']}:{host['port']}/0"
    await broker.client.acl_deluser("limited")


@pytest.mark.parametrize("command", ["xclaim", "blpop", "zpopmax", "info", "hset", "xgroup"])
async def test_a_missing_permission_is_named(broker: Broker, command: str) -> None:
    """A daemon does not start without a command that it needs; INFO is not one."""
    async with user_without(broker, command) as url, aclosing(broker_at(url)) as limited:
        if command == "info":
            await Inspection(limited, "test").check(allow_eviction=False)
        else:
            with pytest.raises(ConfigurationError, match=command):
                await Inspection(limited, "test").check(allow_eviction=False)


async def test_an_evicting_server_is_refused_unless_allowed(broker: Broker) -> None:
    """Redis must not drop tasks to make room."""
    await broker.client.config_set("maxmemory-policy", "volatile-lru")
    try:
        with pytest.raises(ConfigurationError, match=r"volatile-lru.*NONET_ALLOW_EVICTION"):
            await Inspection(broker, "test").check(allow_eviction=False)
        await Inspection(broker, "test").check(allow_eviction=True)
    finally:
        await broker.client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.server
async def test_printed_commands_of_redis_do_what_they_say() -> None:
    """Pasted into a shell they change a setting or delete a key, and nothing without the URL."""
    odd = "it's $HOME"
    with RedisServer("--maxmemory-policy", "volatile-lru") as server, server.client() as redis:
        redis.config_set("appendonly", "no")
        for key in (keys := ["{test}:t:" + odd, "{test}:tasks:delayed", "{test}:t:a"]):
            redis.rpush(key, 1)
        redis.hset("{test}:limits", mapping={odd: 1, "a": 1})
        state = Server(redis.info(), replication=Replication(7.0))
        found = [
            *itertools.chain(*examine_server(state)),
            *troubles(Situation(state, narrow={"w": 3})),
        ]
        found += [examine(["type", key, "list"], lease=45) for key in keys[:2]]
        found += [examine_entry("{test}:", "limits", odd, "HDEL", "no")]
        commands = [item.command for item in found if item and item.command.startswith("redis-cli")]
        assert len(commands) == 8  # every call of remedies.of_redis; the policy is in both lists
        with pytest.raises(AssertionError):
            await paste(commands, "")
        await paste(commands, server.url)
        assert {*redis.keys()} == {keys[2], "{test}:limits"}
        assert redis.hkeys("{test}:limits") == ["a"]
        wanted = {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "repl-diskless-sync-delay": "0",
        }
        assert redis.config_get(*wanted) == wanted


async def test_the_report_of_the_leader_is_read(broker: Broker) -> None:
    """Broken entries, its memory and a refused configuration, while it leads."""
    leadership, inspection = Leadership(broker, "test"), Inspection(broker, "test")
    info = {"broken": {"p:T||default": "ValueError: no"}, "remembers": "process"}
    term = await leadership.lead("a", 30, json.dumps(info)) or ""
    await Publication(broker.client, "test").report(term, "c.yaml:1: bad")
    server = await inspection.server()
    assert (server.leader, server.broken, server.remembers) == ("a", *info.values())
    assert server.config_problem == "c.yaml:1: bad"
    await broker.client.hset("{test}:leader", mapping={"info": json.dumps(info), "expiry": 1})
    server = await inspection.server()
    assert (server.leader, server.broken, server.remembers) == ("", {}, "")


async def test_a_wrong_count_is_found(broker: Broker) -> None:
    """More, or fewer, tasks than a stream has records."""
    await broker.submit([task("a"), task("b")])
    rows = [row async for row in Inspection(broker, "test").rows() if row[0] == "count"]
    assert rows == []
    await broker.client.hset("{test}:active", mapping={"normal:small|p:T": 5, "x:y|gone": 1})
    rows = [row async for row in Inspection(broker, "test").rows() if row[0] == "count"]
    assert rows == [["count", "normal:small", 5, 2], ["count", "x:y", 1, 0]]
    finding = examine(rows[0], lease=45)
    assert finding is not None and "counts 5 tasks, but there are 2" in finding.problem
