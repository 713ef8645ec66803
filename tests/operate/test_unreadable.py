"""One malformed entry hides no other: each list, each key that it reads, each malformed entry.

The doctor names each of them, with the command that removes it.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import records
from stores.beats import Reports, leases_of
from stores.namespace.test_periodic import NOON, change

from nonet import BaseTask, MutexLock, Nonet, Size
from nonet.base.errors import MalformedMessageError, NonetError
from nonet.operate import workflows
from nonet.operate.readers import READERS, unreadable
from nonet.rules.limits import Limit, LimitAddress
from nonet.rules.pipelines import Replica, RowFigures
from nonet.stores.namespace.sessions import Session
from nonet.stores.queue.leases import Counted
from nonet.stores.queue.places import TaskFilter
from nonet.tasks.workflows import Workflow

PREFIX = "{test}:"


class Small(BaseTask):
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", "one")]

    async def execute(self) -> None: ...


GARBAGE = [
    *(b"", b"x", b"\xff", b"9" * 30, b"9" * 400, b"-1", b"nan"),
    *(b"|", b"[" * 5000, b"{}", b"null", b"5", b"\x81"),
]
PIECES = [b"", b"x", b"\xff", b"9" * 30]
JSON_VALUES: list[Any] = [None, 5, "x", [], {}, 1e300]
# Of an id, its record, and the set of all of that kind.
INDEXES = {"g:": "groups", "f:": "workflows:running", "w:": "workers", "t:": "tasks:delayed"}


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    made = Nonet.from_settings(redis_url=redis_url, namespace="test", state_dir=tmp_path, tasks=())
    made.registry.add(Small, "test")
    async with made as opened:
        await fill(opened, redis_url)
        yield opened


async def fill(nonet: Nonet, redis_url: str) -> None:
    """Put one good entry in each list."""
    stores, client = nonet.stores, nonet.broker.client
    term = await stores.leadership.lead("leader", 3600, "{}") or ""
    info = json.dumps({"name": "w", "size": "small"})
    leases = leases_of(redis_url, "small-w", info, worker_ttl=3600)
    leases.renew(())
    leases.close()
    with Reports(redis_url) as reports:
        reports.add(Counted({"test:Small": {0: 1}}, {"lhcb": {0: 1}}, 1))
    await stores.events.log("pause", "ann", "an event")
    await stores.periodic.plan(term, [change("new", last=NOON)])
    await stores.publication.publish(term, "v1", "{}", source="s", revision="", who="ann")
    await stores.limits.publish(term, {LimitAddress("task", "Small"): Limit(3)}, "ann")
    await stores.ceilings.publish(term, {"namespace": 1000}, "ann")
    await stores.controls.pause(["task:Audit"], "ann", "why")
    await stores.filters.save(("mine", "tasks", "task=Small", "ann"), 50)
    await stores.pipelines.report("process", {"rows": Replica("p")})
    await stores.pipelines.report_rows("rows", RowFigures(datetime.now(UTC), due=1))
    await stores.demands.publish(term, {"small": 1})
    await nonet.submit(Small(), id="running", labels={"vo": "lhcb"})
    await nonet.broker.fetch("small-w", "small", 1)
    await nonet.submit(Small(), id="waits")
    await nonet.broker.fetch("small-w", "small", 1)
    await nonet.submit(Small(), id="later", delay=3600)
    await nonet.submit(Small(), id="gone", delay=3600)
    await nonet.cancel("gone")
    await nonet.client.spawn_with_callback([Small()], Small())
    workflow = Workflow("a workflow")
    workflow.step(Small())
    await workflow.submit(id="flow")
    kept = {"at": 1, "reason": "", "stream": "", "entry": "", "task": "t", "size": 1, "bytes": "b"}
    await client.xadd("{test}:quarantine", kept)


# What names the rows of a list; those of the others are names.
NAMES = {
    **dict.fromkeys(("groups", "history", "tasks", "workflows"), "id"),
    **dict.fromkeys(("classes", "pipelines", "tenants"), "name"),
    "ceilings": "scope",
    "configuration": "version",
    "demand": "size",
    "events": "text",
    "limits": "address",
    "pauses": "what",
    "quarantine": "task_id",
    "schedules": "entry",
    "workers": "worker",
}


async def listed(nonet: Nonet) -> dict[str, set[str]]:
    """The names of what each list has."""
    found = {}
    for name, read in READERS.items():
        rows = await read(nonet.stores)
        if name == "locks":
            rows = [row.refusal.lock for row in rows]
        found[name] = {str(getattr(row, NAMES.get(name, ""), row)) for row in rows}
    page = await nonet.stores.results.page(TaskFilter(), limit=10_000)
    found["page"] = {row.id for row in page.rows}
    found["steps"] = {*(await workflows.drawing(nonet.client, "flow")).graph}
    found["names"] = {*(await nonet.stores.locks.names()).names}
    return found


def malformed(value: bytes) -> Iterator[bytes]:
    """Values of which some are not what a reader of `value` expects, and some just are."""
    yield from GARBAGE
    for sign in (b"\t", b"|", b" ", b":"):
        parts = value.split(sign)
        if len(parts) > 1:
            yield from (sign.join(parts[:at]) for at in range(1, len(parts)))
            for at, piece in itertools.product(range(len(parts)), PIECES):
                yield sign.join([*parts[:at], piece, *parts[at + 1 :]])
    with suppress(ValueError):
        found = json.loads(value)
        for name in found if isinstance(found, dict) else ():
            yield json.dumps({key: one for key, one in found.items() if key != name}).encode()
            yield from (json.dumps({**found, name: other}).encode() for other in JSON_VALUES)


Command = tuple[str | bytes | float, ...]


async def damages(client: Any, key: str) -> list[Command]:
    """Commands that add malformed entries to a key: copies of its entries, each with one fault."""
    name, kind = key.removeprefix(PREFIX), (await client.type(key)).decode()
    index = INDEXES.get(name[:2], "")
    if kind == "hash" and index and ":" not in name[2:]:
        score = await client.zscore(PREFIX + index, name[2:])
        return [] if score is None else of_record(await client.hgetall(key), name, index, score)
    if kind == "hash":
        found = await client.hgetall(key)
        values = [one for value in list(found.values())[:3] for one in malformed(value)]
        made: list[Command] = [("HSET", key, f"bad{n}", one) for n, one in enumerate(values)]
        field, value = next(iter(found.items()))
        return made + [("HSET", key, one, value) for one in malformed(field) if one not in found]
    if kind == "stream":
        entries = await client.xrange(key, count=1)
        fields = entries[0][1] if entries else {b"id": b"x", b"gen": b"1"}
        made = [("XADD", key, "*", "x", "y"), ("XADD", key, "*", b"\xff", b"\xff")]
        for field, value in fields.items():
            others = [each for item in fields.items() if item[0] != field for each in item]
            made += [("XADD", key, "*", *others)] if others else []
            made += [("XADD", key, "*", field, one, *others) for one in malformed(value)]
        return made
    if kind == "list":
        return [("RPUSH", key, one) for one in malformed(await client.lindex(key, -1))]
    if kind == "zset":
        (member, score), *_ = await client.zrange(key, 0, 0, withscores=True)
        return [("ZADD", key, "NX", score, one) for one in malformed(member)]
    if kind == "set":
        return [("SADD", key, one) for one in malformed(await client.srandmember(key))]
    return []


def of_record(fields: dict[bytes, bytes], name: str, index: str, score: float) -> list[Command]:
    """Copies of a record, each with one malformed field or without one."""
    made: list[Command] = []
    for field, value in fields.items():
        others = [each for item in fields.items() if item[0] != field for each in item]
        for more in ([], *([field, one] for one in malformed(value))):
            id = f"{'small-' if name[0] == 'w' else ''}bad{len(made)}"
            made += [("HSET", f"{PREFIX}{name[:2]}{id}", *others, *more)] if others or more else []
            made.append(("ZADD", PREFIX + index, score, id))
    return made


async def run(client: Any, commands: Sequence[Command]) -> None:
    async with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        await pipe.execute()


# Readers ask for their members by name only, or find the record of each elsewhere.
BY_NAME = (
    r"config|epoch|leader|ends:.*|[fg]:.*:.*|t:flow:0|wake:.*|watch|workers"
    r"|workflows:.*"
)


async def restore(client: Any, dumps: Mapping[str, bytes]) -> None:
    await client.flushall()
    await run(client, [("RESTORE", key, 0, dump) for key, dump in dumps.items()])


async def check(nonet: Nonet, before: Mapping[str, set[str]]) -> set[str]:
    """Hold all lists against what they had before the damage; return what the doctor names."""
    after = await listed(nonet)
    lost = {name: names for name in before if (names := before[name] - after[name])}
    assert not lost
    await nonet.overview()
    return {problem.what for problem in (await nonet.doctor(wait=0)).problems}


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_a_malformed_entry_hides_no_other(nonet: Nonet, *, each: bool) -> None:
    """In whatever key it is, or in all at once; the doctor names the key."""
    client = nonet.broker.client
    keys = sorted([key.decode() async for key in client.scan_iter(f"{PREFIX}*")])
    dumps = {key: await client.dump(key) for key in keys}
    before = await listed(nonet)
    assert all(before.values()), before
    assert await unreadable(nonet.stores, has_sql=False) == []
    await restore(client, dumps)
    known = await check(nonet, before)
    commands = {key: found for key in keys if (found := await damages(client, key))}
    for key, some in commands.items():
        await run(client, some)
        if each:
            named = await check(nonet, before)
            assert named > known or re.fullmatch(BY_NAME, key.removeprefix(PREFIX)), key
            await restore(client, dumps)
    if not each:
        assert len(await check(nonet, before)) > len(known) + len(commands)


@pytest.mark.parametrize("value", [b"", b"x", b"\xff", b"9" * 30])
async def test_a_malformed_value_is_no_error(nonet: Nonet, value: bytes) -> None:
    """Of the hashes with one value for the namespace, each field may be malformed."""
    client = nonet.broker.client
    for key in ("config", "leader"):
        fields = await client.hkeys(f"{PREFIX}{key}")
        await client.hset(f"{PREFIX}{key}", mapping=dict.fromkeys(fields, value))
    await listed(nonet)
    await nonet.overview()
    await nonet.doctor(wait=0)


async def test_a_malformed_record_of_a_running_task_hides_no_other(nonet: Nonet) -> None:
    """Whatever field it is in; a question for that task alone is refused or answered."""
    client, key = nonet.broker.client, f"{PREFIX}t:running"
    for field, value in records.paired(await records.hgetall(client, key)).items():
        for other in (b"x", b"\xff"):
            await records.hset(client, key, field, other)
            rows = await READERS["tasks"](nonet.stores)
            assert {"waits", "later"} <= {row.id for row in rows}, (field, other)
            await nonet.overview()
            await nonet.doctor(wait=0)
            with suppress(NonetError):
                await nonet.status("running")
        await records.hset(client, key, field, value)


async def test_a_malformed_session_is_over(nonet: Nonet) -> None:
    """The others of its user are listed."""
    sessions, client = nonet.stores.sessions(b"secret"), nonet.broker.client
    now = time.time()
    session = Session("ann", "file", "", "::1", "Firefox", now, now + 3600, digest="good")
    await sessions.begin(session, 3600)
    key, index = f"{PREFIX}web:session:", f"{PREFIX}web:sessions:ann"
    for number, value in enumerate(malformed(await client.get(f"{key}good"))):
        await client.set(f"{key}bad{number}", value)
        await client.zadd(index, {f"bad{number}": now + 3600, value: now + 3600})
    assert session in await sessions.of("ann")
    assert await sessions.find("bad1") is None


async def test_the_doctor_says_how_to_delete_an_entry(nonet: Nonet) -> None:
    """Its commands delete the malformed entries, and no others."""
    client = nonet.broker.client
    before = await listed(nonet)
    for key in ("events", "quarantine", "limits", "periodic:entries", "pipelines", "watch"):
        await run(client, await damages(client, f"{PREFIX}{key}"))
    problems = await unreadable(nonet.stores, has_sql=False)
    assert len(problems) > 100
    for problem in problems:
        if problem.hint == "delete it":
            _, _, _, *command = shlex.split(problem.command)  # redis-cli -u URL
            await client.execute_command(*command)
    left = await unreadable(nonet.stores, has_sql=False)
    assert not [problem for problem in left if problem.hint == "delete it"]
    after = await listed(nonet)
    assert all(before[name] <= after[name] for name in before)


async def test_a_record_in_an_unknown_state_hides_no_other(nonet: Nonet) -> None:
    """It is left out of the list of live tasks."""
    client = nonet.broker.client
    await records.hset(
        client, f"{PREFIX}t:odd", mapping={"state": "x", "gen": "1", "stream": "normal:small"}
    )
    await client.zadd(f"{PREFIX}tasks:delayed", {"odd": 1e15})
    page = await nonet.client.list_tasks()
    ids = {task.id for task in page.rows}
    assert {"running", "waits", "later"} <= ids
    assert "odd" not in ids


async def test_a_malformed_group_or_workflow_is_named(nonet: Nonet) -> None:
    """When a caller asks for it alone."""
    client = nonet.broker.client
    await client.hset(f"{PREFIX}g:odd", "state", "open")
    with pytest.raises(MalformedMessageError, match=r"g:odd is malformed"):
        await nonet.stores.groups.status("odd")
    await client.hset(f"{PREFIX}f:odd", "state", "running")
    with pytest.raises(MalformedMessageError, match=r"f:odd is malformed"):
        await nonet.stores.workflows.status("odd")


@pytest.mark.parametrize("value", ["x", "", "1e3", "9" * 400])
async def test_a_malformed_count_does_not_stop_the_walk(nonet: Nonet, value: str) -> None:
    """The walk deletes what is no number, and counts the tasks anew."""
    broker = nonet.broker
    known = "normal:small|test:Small"
    before = await broker.client.hgetall(f"{PREFIX}active")
    assert known.encode() in before
    for field in (known, "bad", "normal:small|bad"):
        await broker.client.hset(f"{PREFIX}active", field, value)
    await broker.mend(timedelta(0))
    assert await broker.client.hgetall(f"{PREFIX}active") == before
