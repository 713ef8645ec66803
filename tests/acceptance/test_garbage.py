"""Garbage kills no worker and holds up no task; newer tasks are handed on: promises 16 and 17."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from acceptance.extra_tasks import Newer
from acceptance.probe_tasks import Gated, Quick
from acceptance.site import PROBES, STREAM, Site
from daemons import until

from nonet import TaskFailed
from nonet.messages.formats import FORMAT
from nonet.messages.message import VERSION, Envelope, encode

BOTH = f"{PROBES},acceptance.extra_tasks"
NESTED = b"\x91" * 100_000 + b"\xc0"
MANY_ARRAYS = b"\xdd\x00\x03\xd0\x90" + b"\x90" * 250_000
ENVELOPES = {
    "empty": b"",
    "no msgpack": b"\xc1\xc1\xc1",
    "text": b"hello",
    "nested": NESTED,
    "many arrays": MANY_ARRAYS,
    "cut off": msgspec.msgpack.encode([1, "id", "probe_tasks:Quick", {}, {}, 0.0])[:-4],
    "wrong types": msgspec.msgpack.encode([1, 2, 3, 4, 5, 6]),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "too long": msgspec.msgpack.encode([1, "i", "x" * 300_000, {}, {}, 0.0]),
    "unknown extension": msgspec.msgpack.encode(
        [1, "i", "probe_tasks:Quick", {"value": msgspec.msgpack.Ext(99, b"x")}, {}, 0.0]
    ),
}
POINTERS: dict[str, dict[Any, Any]] = {
    "other field": {"data": "x"},
    "binary": {b"\xff\xfe": b"\x00\x01"},
    "wrong name": {"id": "a", "generation": "1"},
    "too many fields": {"id": "a", "gen": "1", "more": "x"},
    "no such task": {"id": "nobody", "gen": "1"},
    "odd generation": {"id": "nobody", "gen": "not a number"},
    "binary id": {"id": b"\xff\x00\xfe", "gen": "1"},
    "empty": {"id": "", "gen": ""},
}


async def _next_task_runs(site: Site, app: Any) -> None:
    assert await (await app.submit(Quick(7))).result(timeout=10) == 7


async def test_garbage_in_a_stream_is_put_aside(site: Site) -> None:
    """Entries that are no pointers go to quarantine with their bytes; the worker goes on."""
    worker = site.worker()
    async with site.app() as app:
        for fields in POINTERS.values():
            site.redis.xadd(site.key(STREAM), fields)
        await _next_task_runs(site, app)
        await until(lambda: site.entries() == 0, "the garbage is gone from the stream")
    assert site.pending() == 0
    assert [item[b"reason"] for item in site.quarantined()] == [b"not a task pointer"] * 4
    assert b"\x00\x01" in site.quarantined()[1][b"bytes"]
    assert worker.alive


async def test_undecodable_envelopes_are_put_aside(site: Site) -> None:
    """A record whose envelope is garbage ends dead, quarantined, without being tried again."""
    worker = site.worker()
    async with site.app() as app:
        for name, envelope in ENVELOPES.items():
            site.queue_raw(name.replace(" ", "-"), envelope)
        await _next_task_runs(site, app)
        for name in ENVELOPES:
            with pytest.raises(TaskFailed) as raised:
                await app.result(name.replace(" ", "-"), timeout=10)
            assert raised.value.reason == "quarantined", name
        await site.all_ended()
    raw = {item[b"task"]: item[b"bytes"] for item in site.quarantined()}
    assert raw.pop(b"too-long") == ENVELOPES["too long"][: 64 * 1024]
    assert raw == {
        name.replace(" ", "-").encode(): envelope
        for name, envelope in ENVELOPES.items()
        if name != "too long"
    }
    assert worker.alive


async def test_broken_records_hold_up_nobody(site: Site) -> None:
    """Records of a wrong type or without their fields do not keep others from running."""
    worker = site.worker("--concurrency", "10")
    async with site.app() as app:
        site.redis.set(site.key("t:a-string"), "x")
        site.redis.xadd(site.key(STREAM), {"id": "a-string", "gen": "1"})
        site.redis.hset(site.key("t:bare"), mapping={"state": "queued", "gen": "1"})
        site.redis.xadd(site.key(STREAM), {"id": "bare", "gen": "1"})
        handles = await app.submit_many([Quick(n) for n in range(5)])
        assert [await handle.result(timeout=10) for handle in handles] == list(range(5))
        await until(lambda: site.entries() == 0, "the broken ones are gone from the stream")
    assert worker.alive
    assert {event.attempt for event in site.journal()} == {1}
    site.redis.delete(site.key("t:a-string"), site.key("t:bare"))


async def test_one_that_cannot_be_started_holds_up_none(site: Site) -> None:
    """Lines of locks that nobody can read end one task; those fetched behind it run, once."""
    async with site.app() as app:
        handles = await app.submit_many([Quick(n) for n in range(5)])
        site.redis.set(site.key(f"l:{handles[1]}"), "M|z")
        worker = site.worker("--concurrency", "10")
        with pytest.raises(TaskFailed) as raised:
            await handles[1].result(timeout=10)
        assert raised.value.reason == "quarantined"
        assert [await handles[n].result(timeout=10) for n in (0, 2, 3, 4)] == [0, 2, 3, 4]
        await site.all_ended()
    assert worker.alive
    assert [event.attempt for event in site.journal("start")] == [1] * 4


async def test_entry_that_was_only_read_is_not_lost(site: Site) -> None:
    """A task whose entry was read but not handed over (a script cut short) runs, as its first."""
    async with site.app() as app:
        handle = await app.submit(Quick(3))
        site.redis.xgroup_create(site.key(STREAM), "workers", "0")
        site.redis.xreadgroup("workers", "ghost", {site.key(STREAM): ">"})
        site.worker()
        assert await handle.result(timeout=10) == 3
        await site.all_ended()
    assert [event.attempt for event in site.journal("start")] == [1]


async def test_unknown_task_is_handed_on(site: Site) -> None:
    """A worker of the old release gives a newer task back; one of the new release runs it."""
    old = site.worker("--concurrency", "1")
    async with site.app(tasks=tuple(BOTH.split(","))) as app:
        handle = await app.submit(Newer(1))
        await until(lambda: site.parked(handle), "the task is handed on")
        status = await handle.status()
        assert (status.state, status.attempt) == ("waiting", 0)
        assert "extra_tasks:Newer" in status.blocker
        new = site.worker(NONET_TASKS=BOTH)
        assert await handle.result(timeout=10) == new.pid
        await site.all_ended()
    assert [event.attempt for event in site.journal("start", id=handle)] == [1]
    assert not site.redis.exists(site.key("quarantine"))
    assert old.alive


async def test_a_newer_envelope_is_handed_on(site: Site) -> None:
    """Also one that this release cannot read: it waits for a newer worker, and holds up nobody."""
    worker = site.worker()
    newer = [FORMAT + 1, "newer", "probe_tasks:Quick", msgspec.msgpack.Ext(99, b"x"), None]
    async with site.app() as app:
        site.queue_raw("newer", msgspec.msgpack.encode(newer))
        await until(lambda: site.parked("newer"), "the task is handed on")
        status = await app.status("newer")
        assert (status.state, status.attempt) == ("waiting", 0)
        assert f"task format {FORMAT + 1}, read here up to {FORMAT}" in status.blocker
        assert await (await app.submit(Quick(7))).result(timeout=10) == 7
        await app.cancel(["newer"])
        await site.all_ended()
    assert not site.redis.exists(site.key("quarantine"))
    assert worker.alive


async def test_a_newer_record_is_handed_on(site: Site) -> None:
    """Whatever is in it; all who look say what to do, and whoever can read it executes it."""
    worker, _ = site.worker(), site.scheduler()
    advice = f"task format {FORMAT + 1}, read here up to {FORMAT}: upgrade the workers"
    async with site.app() as app:
        envelope = Envelope(VERSION, "newer", "probe_tasks:Quick", {"value": 7}, {}, 1.5)
        site.queue_raw("newer", encode(envelope), name="probe_tasks:Quick", v=FORMAT + 1)
        await until(lambda: site.parked("newer"), "the task is handed on")
        status = await app.status("newer")
        assert (status.state, status.attempt, status.blocker) == ("waiting", 0, advice)
        assert [item.blocker async for item in app.live()] == [advice]
        assert "Upgrade the workers" in (await app.explain("newer")).text
        assert await (await app.submit(Quick(1))).result(timeout=10) == 1
        assert (await app.doctor()).is_healthy
        assert not site.journal("start", id="newer")
        site.redis.hdel(site.key("t:newer"), "v")
        site.redis.hset(site.key("t:newer"), "unfit", "-")  # this worker is one that can read it
        site.hurry("newer")
        assert await app.result("newer", timeout=10) == 7
        await site.all_ended()
    assert not site.redis.exists(site.key("quarantine"))
    assert worker.alive


async def test_arguments_do_not_show(site: Site) -> None:
    """Neither logs nor status show what a task's arguments are."""
    worker = site.worker("--debug")
    async with site.app() as app:
        secret = site.gate()
        handle = await app.submit(Gated(secret))
        await site.started(handle)
        status = await handle.status()
        site.open(secret)
        await handle.result(timeout=10)
    assert secret not in repr(status)
    assert secret not in worker.log
