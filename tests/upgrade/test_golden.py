"""How tasks are written today, against a golden file. Run as a program it writes that file anew."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from nonet.formats import FORMAT
from nonet.locks import (
    ConcurrencyLimiter,
    ExclusiveRWLock,
    LockedObjectType,
    MutexLock,
    RateLimiter,
    SharedRWLock,
    encode_locks,
)
from nonet.message import Envelope, ErrorDocument, ResultDocument, Usage, encode, pack
from nonet.signing import Signer
from nonet.stores.broker import Broker
from nonet.stores.submissions import Submission

GOLDEN = Path(__file__).with_name("golden.json")
JOB = LockedObjectType.JOB
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
    SharedRWLock(JOB, "a", ttl_ms=1000),
    ExclusiveRWLock(JOB, "b", "c"),
    RateLimiter(JOB, "a", limit=3, window_seconds=60, n_items=2),
    ConcurrencyLimiter(JOB, "a", limit=8),
]


def an_envelope(id: str, args: dict[str, Any] | None = None, trace: str = "") -> bytes:
    packed = pack(args or {})
    return encode(Envelope(FORMAT, id, "x:T", packed, {"vo": "lhcb"}, 1.5, "p", "g", "1.4", trace))


def documents() -> dict[str, bytes | str]:
    """What Python writes."""
    return {
        "envelope": an_envelope("a", VALUES),
        "envelope, traced": an_envelope("a", trace="00-01-02-01"),
        "envelope, signed": Signer({"one": b"k" * 32}, "test").signed(an_envelope("a")),
        "result": encode(
            ResultDocument("x:T", 2, 1.5, pack(7), "E", "text", "retries", "note", Usage(1, 2, 3))
        ),
        "error": encode(ErrorDocument("retries", "E", "text", "trace", 2, 1.5, Usage(1, 2, 3))),
        "locks": encode_locks(LOCKS),
    }


async def records(broker: Broker) -> dict[str, dict[str, str]]:
    """What the scripts make of tasks; times as T."""
    locks, later = encode_locks([MutexLock(JOB, "7")]), 2**52
    tasks = {
        "small": Submission("small", "x:T", "normal:small", an_envelope("small")),
        "large": Submission("large", "x:T", "normal:small", an_envelope("large", VALUES)),
        "locked": Submission("locked", "x:T", "normal:small", b"?", locks),
        "waiting": Submission("waiting", "x:T", "normal:small", b"?", locks),
        "delayed": Submission("delayed", "x:T", "normal:small", b"?", "", later),
        "child": Submission("child", "x:T", "normal:large", b"?", "", 0, "group"),
        "terms": Submission(
            *("terms", "x:T", "normal:large", b"?", "", 0, ""),
            f"start_by|{later}|1\nunique|done|0|abcd",
        ),
    }
    for task in tasks.values():
        await broker.submit([task])
    made = await snapshot(broker)
    deliveries, _ = await broker.fetch("small-a1", "small", 10)
    made |= {f"{key}, fetched": value for key, value in (await snapshot(broker)).items()}
    first = deliveries[0]
    await broker.settle(first, "retry", b"document", text="why", delay=timedelta(seconds=5))
    await broker.settle(deliveries[1], "done", b"document")
    made |= {f"{key}, settled": value for key, value in (await snapshot(broker)).items()}
    return made


async def snapshot(broker: Broker) -> dict[str, dict[str, str]]:
    found = {}
    for key in sorted(await broker.client.keys(f"{broker.prefix}[tblehcru]:*")):
        name = key.decode().removeprefix(broker.prefix)
        kind = await broker.client.type(key)
        if kind == b"hash":
            value = await broker.client.hgetall(key)
        elif kind == b"list":
            value = dict(enumerate(await broker.client.lrange(key, 0, -1)))
        else:
            value = {b"": await broker.client.get(key)}
        found[name] = {readable(field): readable(text) for field, text in sorted(value.items())}
    return found


def readable(value: Any) -> str:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return re.sub(r"\b\d{13,16}(-\d+)?\b", "T", text)


async def written(broker: Broker) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "documents": {name: readable(value) for name, value in documents().items()},
        "records": await records(broker),
    }


async def test_tasks_are_written_as_before(broker: Broker) -> None:
    """What others have to read has not changed; or it has, and so has the number."""
    golden, now = json.loads(GOLDEN.read_text()), await written(broker)
    advice = (
        "how tasks are written has changed. If older code could not read it: raise FORMAT in "
        "src/nonet/formats.py, keep a reader, and add a fixture; see tests/upgrade/README.md"
    )
    assert now["format"] >= golden["format"], "a format is never used again"
    assert now == golden, advice


async def write() -> None:
    from servers import RedisServer

    with RedisServer() as server:
        broker = Broker(server.url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
        server.client().hset("{test}:epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        made = await written(broker)
        await broker.aclose()
    GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(write())
