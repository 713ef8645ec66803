"""Whatever is put into Redis: no worker dies of it, grows by it, or makes others wait."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from acceptance.probe_tasks import Quick
from acceptance.site import STREAM, Site
from daemons import Daemon
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import Nonet, TaskFailed
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode

MIB = 1024 * 1024
BOMB = b"\x91" * (10 * MIB)
FLAT_BOMB = b"\xdd" + (10 * MIB).to_bytes(4, "big") + b"\x80" * (10 * MIB)
PICKLE = pickle.dumps({"args": [1, 2, 3]})


def envelope(id: str, **changes: Any) -> bytes:
    made = Envelope(FORMAT, id, "probe_tasks:Quick", {"value": 1}, {}, 1.5)
    return encode(msgspec.structs.replace(made, **changes))


# Entries of a stream that point to nothing: all are put into the quarantine.
NO_POINTERS: dict[str, dict[Any, Any]] = {
    "other field": {"data": "x"},
    "binary field": {b"\xff\xfe": b"\x00\x01"},
    "pickle": {"data": PICKLE},
    "misnamed": {"id": "a", "generation": "1"},
    "one more field": {"id": "a", "gen": "1", "more": "x"},
    "10 MB bomb": {"data": BOMB},
    "10 MB field name": {b"x" * (10 * MIB): "1"},
    "100,000 fields": {f"f{number}": "x" for number in range(50_000)},
    "json": {"task": json.dumps({"id": "a", "args": [1]})},
}
# Pointers to no task, or to an older generation: dropped, as each requeue leaves such behind.
VOID: dict[str, dict[Any, Any]] = {
    "no such task": {"id": "nobody", "gen": "1"},
    "no number": {"id": "nobody", "gen": "1e999"},
    "no utf-8": {"id": b"\xff\x00\xfe", "gen": "1"},
    "empty": {"id": "", "gen": ""},
    "10 MB id": {"id": b"x" * (10 * MIB), "gen": "1"},
    "wrong generation": {"id": "kept", "gen": "7"},
}
# Envelopes of records that are fine: the task ends dead, the envelope goes into the quarantine.
ENVELOPES: dict[str, bytes] = {
    "none": b"",
    "no-msgpack": b"\xc1\xc1\xc1",
    "json": json.dumps([1, "json", "probe_tasks:Quick", {}, {}, 0]).encode(),
    "pickle": PICKLE,
    "gzip-bomb": gzip.compress(b"\x90" * (10 * MIB)),
    "nested": b"\x91" * 100_000 + b"\xc0",
    "nested-keys": b"\x81\x91" * 500 + b"\xc0" * 501,
    "nested-10-mb": BOMB,
    "flat-10-mb": FLAT_BOMB,
    "flat": b"\xdd" + (200_000).to_bytes(4, "big") + b"\x80" * 200_000,
    "claims-4-billion": b"\xdd\xff\xff\xff\xff" * 1000,
    "cut-off": envelope("cut-off")[:-4],
    "wrong-types": msgspec.msgpack.encode([1, 2, 3, 4, 5, 6]),
    "unknown-extension": msgspec.msgpack.encode(
        [1, "i", "probe_tasks:Quick", {"value": msgspec.msgpack.Ext(99, b"x")}, {}, 0.0]
    ),
    "broken-pattern": msgspec.msgpack.encode(
        [1, "i", "probe_tasks:Quick", {"value": msgspec.msgpack.Ext(10, b"s0:(")}, {}, 0.0]
    ),
    "swapped": envelope("another"),
    "never-submitted": envelope("never-submitted", submitted=float("nan")),
    "no-version": envelope("no-version", version=0),
    "odd-name": envelope("odd-name", name="probe_tasks:\x1b[2J"),
    "half-signed": b"\xc1\x01\xff" + b"x" * 100,
    "in-a-list": msgspec.msgpack.encode([envelope("in-a-list")]),
}
# Fields of records that no script writes; with a good envelope.
FIELDS: dict[str, dict[Any, Any]] = {
    "attempt": {"attempt": "x"},
    "deaths": {"deaths": b"\xff"},
    "fraction": {"attempt": "1.5"},
}


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(redis_server, tmp_path)
    yield made
    made.close()


def memory(daemon: Daemon, kind: str = "VmRSS") -> int:
    """Bytes that a process has in memory now; ``VmHWM``: the most that it ever had."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (kilobytes,) = re.findall(rf"^{kind}:\s+(\d+) kB$", status, re.M)
    return int(kilobytes) * 1024


async def next_task_runs(app: Nonet) -> None:
    assert await (await app.submit(Quick(7))).result(timeout=WAIT_SECONDS) == 7


async def test_thirty_kinds_of_garbage_are_quarantined_or_dropped(site: Site) -> None:
    """All of it is put aside or dropped; the worker neither dies nor grows; good tasks run."""
    worker = site.worker()
    async with site.app() as app:
        kept = await app.submit(Quick(1), id="kept")
        assert await kept.result(timeout=WAIT_SECONDS) == 1
        await next_task_runs(app)
        before = memory(worker)
        for fields in (*NO_POINTERS.values(), *VOID.values()):
            site.redis.xadd(site.key(STREAM), fields)
        for id, data in ENVELOPES.items():
            site.queue_raw(id, data)
        for id, fields in FIELDS.items():
            site.queue_raw(id, envelope(id), **fields)
        site.queue_raw(b"\xff\xfe", envelope("x"))
        await next_task_runs(app)
        await until(lambda: site.entries() == 0, "the streams are empty")
        for id in (*ENVELOPES, *FIELDS):
            with pytest.raises(TaskFailed) as raised:
                await app.result(id, timeout=WAIT_SECONDS)
            assert raised.value.reason == "quarantined", id
    assert len(NO_POINTERS) + len(VOID) + len(ENVELOPES) + len(FIELDS) + 1 >= 30
    assert worker.alive
    assert memory(worker, "VmHWM") - before < 100 * MIB
    assert len(site.journal("start")) == 3
    found = site.quarantined()
    tasks = {item[b"task"] for item in found} - {b""}
    assert tasks == {id.encode() for id in (*ENVELOPES, *FIELDS)} | {b"\xff\xfe"}
    assert len(found) == len(NO_POINTERS) + len(tasks)
    assert sum(len(item[b"bytes"]) for item in found) < 3 * MIB
    assert site.live() == [] and site.pending() == 0
