"""How tasks are written today, as `golden.json` has it. Run as a program it writes that file."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import records
from clients import broker_at
from msgspec.structs import replace

from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import (
    Envelope,
    ErrorDocument,
    Reference,
    ResultDocument,
    Usage,
    encode,
    pack,
)
from nonet.base.messages.signing import Signer
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.periodic import Change, Periodic
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workflows import NewWorkflow, Workflows
from nonet.tasks.locks import (
    ConcurrencyLimiter,
    ExclusiveRWLock,
    LockedObjectType,
    MutexLock,
    RateLimiter,
    SharedRWLock,
    encode_locks,
)

GOLDEN = Path(__file__).with_name("golden.json")
JOB = LockedObjectType.JOB
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAR = 2**52  # µs: never due here
VALUES = {
    "big": 2**70,
    "surrogate": "\udc80",
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5),
    "timedelta": timedelta(days=1, microseconds=1),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "path": PurePosixPath("/a"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "plain": [None, True, 1.5, b"x", {"a": 1}],
}
LOCKS = [
    MutexLock(JOB, "a:b"),
    SharedRWLock(JOB, "a", ttl_ms=90_000),
    ExclusiveRWLock(JOB, "b", "c"),
    RateLimiter(JOB, "a", limit=3, window_seconds=60, n_items=2),
    ConcurrencyLimiter(JOB, "a", limit=8),
]
SEVEN = encode_locks([MutexLock(JOB, "7")])


USAGE = Usage(wall=11.5, cpu=12.5, rss=13)
# Each field of them has a value of its own, so that it shows if two are swapped.
ENVELOPE = Envelope(
    version=FORMAT,
    id="a",
    name="x:T",
    args=pack(VALUES),
    labels={"vo": "lhcb"},
    submitted=1.5,
    parent="p",
    group="g",
    min_version="1.4",
    trace="00-01-02-01",
    resubmitted_from=17,
    is_step=True,
)
RESULT = ResultDocument(
    name="x:T",
    attempt=2,
    finished=1.5,
    value=pack(7),
    error_type="Error",
    error="text",
    reason="retries",
    note="note",
    usage=USAGE,
    crashes=3,
    deaths=4,
    traceback="trace",
    progress=0.5,
    doing="half",
)
ERROR = ErrorDocument(
    reason="retries",
    error_type="Error",
    error="text",
    traceback="trace",
    attempt=2,
    at=1.5,
    usage=USAGE,
)
DOCUMENTS = (ENVELOPE, RESULT, ERROR, USAGE)


def an_envelope(id: str, args: dict[str, Any] | None = None) -> bytes:
    """The envelope of an ordinary task."""
    ordinary = {"trace": "", "resubmitted_from": 0, "is_step": False}
    return encode(replace(ENVELOPE, id=id, args=pack(args or {}), **ordinary))


def documents() -> dict[str, bytes | str]:
    """What Python writes."""
    inputs = pack({"one": Reference("3"), "added": [Reference("0.1", added=True)]})
    return {
        "envelope": an_envelope("a", VALUES),
        "envelope of a step": encode(replace(ENVELOPE, args=inputs)),
        "envelope, signed": Signer({"one": b"k" * 32}, "test").signed(an_envelope("a")),
        "result": encode(RESULT),
        "error": encode(ERROR),
        "locks": encode_locks(LOCKS),
    }


async def filled(broker: Broker) -> None:
    """Submit tasks of every kind; let a worker take, save, settle and park some of them."""

    async def submit(id: str, stream: str = "normal:small", **more: Any) -> None:
        await broker.submit([Submission(id, "x:T", stream, **{"envelope": b"?", **more})])

    for id in ("ended", "retried", "saver"):
        await submit(id)
    await submit("small", "normal:large", envelope=an_envelope("small"))
    await submit("big", "normal:large", envelope=an_envelope("big", VALUES))
    await submit("everything", locks=encode_locks(LOCKS))
    await submit("locked", locks=SEVEN)
    await submit("waiting", locks=SEVEN)
    await submit("delayed", due_us=FAR)
    await submit("child", "normal:large", group="g")
    await submit("terms", "normal:large", terms=f"start_by|{FAR}|1\nunique|done|0|abcd")
    await submit("until-start", "normal:large", terms="unique|start|0|bcde")
    await submit("for-a-while", "normal:large", terms="unique|done|9000000000|cdef")
    await submit("repeat", "normal:large", terms="letter|0af3")
    deliveries, _ = await broker.fetch("small-a1", "small", 100, room=100)
    held = {each.id: each for each in deliveries}
    assert held.keys() == {"ended", "retried", "saver", "everything", "locked"}
    await broker.checkpoint(held["saver"], b"page 3")
    later = timedelta(seconds=5000)
    assert await broker.settle(held["ended"], "done", b"document") == "OK"
    retried = await broker.settle(held["retried"], "retry", b"document", text="why", delay=later)
    assert retried == "OK"
    await Controls(broker.client, "test").pause(["task:x:Other"], "me", "why")
    await opened_group(broker)
    await submitted_workflow(broker)
    await planned_entry(broker)


async def opened_group(broker: Broker) -> None:
    """Open a group that a program seals."""
    callback = Submission("callback", "x:Callback", "realtime:small", b"c", SEVEN)
    failure = Submission("failure", "x:Failure", "realtime:large", b"f", SEVEN)
    terms: dict[str, Any] = {"policy": "all_success", "ttl_seconds": 60, "total": 1}
    groups = Groups(broker.client, "test")
    await groups.open("g", "", callback=callback, on_failure=failure, **terms)
    await groups.seal("g", "")


async def submitted_workflow(broker: Broker) -> None:
    """Submit a workflow of three steps."""
    terms = ["step w s - -", "step w s - - s0\nstart_by|+9000000000|1", "step w - - 9000000 s1"]
    steps = [
        Submission(f"w:{place}", "x:T", "normal:small", an_envelope(f"w:{place}"), terms=term)
        for place, term in enumerate(terms)
    ]
    workflows = Workflows(broker)
    await workflows.submit([NewWorkflow("w", "title", "parent", steps, True)], 600)


async def planned_entry(broker: Broker) -> None:
    """Plan a periodic entry, and fire an occurrence of it."""
    term = await Leadership(broker, "test").lead("leader", 3000, "{}") or ""
    periodic, later = Periodic(broker, "test"), NOON + timedelta(hours=1)
    change = Change("new", "e", "x:T", NOON, prints=("s", "a"), next=later, shown={"task": "x:T"})
    await periodic.plan(term, [change])
    task = Submission("occurrence", "x:T", "normal:large", b"?")
    after = later + timedelta(hours=1)
    assert await periodic.fire(term, "e", later, task, missed=2, following=after) == "FIRED"


async def snapshot(broker: Broker) -> dict[str, dict[str, str]]:
    """Type and name of each key → what is in it."""
    found = {}
    for key in await broker.client.keys(f"{broker.prefix}*"):
        kind = (await broker.client.type(key)).decode()
        kind = "record" if key.startswith(f"{broker.prefix}t:".encode()) else kind
        value = await READERS[kind](broker.client, key)
        name = key.decode().removeprefix(broker.prefix)
        told = {readable(field): readable(text) for field, text in value}
        found[f"{kind} {readable(name)}"] = told
    return found


async def _of_stream(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    """Entries in their order, then which consumer has which of them."""
    found = [
        (f"{number} {field.decode()}", value)
        for number, (_, fields) in enumerate(await client.xrange(key))
        for field, value in fields.items()
    ]
    for group in await client.xinfo_groups(key):
        name = group["name"].decode()
        pending = await client.xpending_range(key, name, "-", "+", 100)
        found.append((f"group {name}", ",".join(each["consumer"].decode() for each in pending)))
    return found


async def _of_string(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    return [("", await client.get(key))]


async def _of_record(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    found = records.paired(await records.hgetall(client, key.decode()))
    return [*sorted(found.items()), ("", await records.hget(client, key.decode(), "envelope"))]


async def _of_list(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    return list(enumerate(await client.lrange(key, 0, -1)))


async def _of_hash(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    return list((await client.hgetall(key)).items())


async def _of_set(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    return [(member, "") for member in await client.smembers(key)]


async def _of_zset(client: Any, key: bytes) -> list[tuple[Any, Any]]:
    found = await client.zrange(key, 0, -1, withscores=True)
    return [(member, f"{score:.0f}") for member, score in found]


READERS: dict[str, Callable[[Any, bytes], Awaitable[list[tuple[Any, Any]]]]] = {
    "record": _of_record,
    "string": _of_string,
    "list": _of_list,
    "hash": _of_hash,
    "set": _of_set,
    "zset": _of_zset,
    "stream": _of_stream,
}


def readable(value: Any) -> str:
    """Text of which each character is a byte, with times as T."""
    data = value if isinstance(value, bytes) else str(value).encode("latin-1")
    data = re.sub(rb"\xcb\x41[\xd0-\xdf].{6}", b"T", data, flags=re.DOTALL)  # seconds, packed
    return re.sub(r"\b\d{13,16}(-\d+)?\b", "T", data.decode("latin-1"))


async def written(broker: Broker) -> dict[str, Any]:
    """All that `golden.json` has, as it is written now."""
    await filled(broker)
    return {
        "format": FORMAT,
        "documents": {name: readable(value) for name, value in documents().items()},
        "keys": await snapshot(broker),
    }


async def write() -> None:
    """Write the file."""
    sys.path.append(str(Path(__file__).parents[1]))
    from servers import RedisServer

    with RedisServer() as server:
        broker = broker_at(server.url)
        server.client().hset(
            "{test}:epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )
        made = await written(broker)
        await broker.aclose()
    GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(write())
