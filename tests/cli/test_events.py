"""``task-run events``: by kind, and as they come."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.terminal import TaskRun
from servers import RedisServer

import nonet
from nonet.base.keys import EVENT_KINDS
from nonet.stores.namespace.events import Events
from nonet.stores.queue.broker import Broker

SECONDS = 20


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that this test may kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_run(own_redis: RedisServer, tmp_path: Path) -> Iterator[TaskRun]:
    """``task-run`` on a Redis of its own."""
    made = TaskRun(own_redis, tmp_path)
    yield made
    made.close()


class Follower:
    """A ``task-run events --follow`` that goes on while the test does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        self._out, self._err = process.stdout, process.stderr

    async def line(self) -> str:
        async with asyncio.timeout(SECONDS):
            return (await self._out.readline()).decode().rstrip("\n")

    async def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.line())
        return event

    async def said(self) -> str:
        async with asyncio.timeout(SECONDS):
            return (await self._err.readline()).decode().rstrip("\n")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        async with asyncio.timeout(SECONDS):
            rest, _ = await self._process.communicate()
        assert rest == b""
        return self._process.returncode or 0


async def follow(task_run: TaskRun, *options: object) -> Follower:
    return Follower(await task_run.start("events", "--follow", *options))


async def set_limit(task_run: TaskRun, key: object) -> None:
    assert (await task_run("limits", "set", "Job", key, "--concurrency", 1)).code == 0


async def test_events_are_shown_as_they_come(task_run: TaskRun) -> None:
    """The last ones first, then each new one once, a line each; Ctrl-C is no error."""
    for key in ("a", "b"):
        await set_limit(task_run, key)
    machine, person = await follow(task_run, "--limit", 1, "--json"), await follow(task_run)
    assert (await machine.event())["text"] == "concurrency job b: not set -> 1"
    for key in ("a", "b"):
        assert f"  concurrency job {key}: not set -> 1" in await person.line()
    for key in ("c", "d"):
        await set_limit(task_run, key)
        event = await machine.event()
        assert event.keys() == {"at", "kind", "who", "text"}
        assert (event["kind"], event["text"]) == (
            "limit-set",
            f"concurrency job {key}: not set -> 1",
        )
        line = await person.line()
        assert "limit-set" in line and line.endswith(f"concurrency job {key}: not set -> 1")
    assert await machine.end(signal.SIGINT) == 0
    assert await person.end(signal.SIGTERM) == 0


async def test_events_of_one_kind(task_run: TaskRun) -> None:
    """`--kind` finds them however many others came since, and the limit counts them alone."""
    for key in ("a", "b", "c"):
        await set_limit(task_run, key)
    assert (await task_run("limits", "unset", "Job", "c")).code == 0
    with task_run.redis.pipeline() as pipe:
        for n in range(1100):
            pipe.xadd("{cli}:events", {"kind": "noise", "at": n, "who": "me", "text": "-"})
        pipe.execute()
    ended = await task_run("events", "--kind", "limit-set", "--limit", 2, "--json")
    assert [event["text"][:15] for event in ended.json] == ["concurrency job"] * 2
    assert [event["text"][16] for event in ended.json] == ["b", "c"]
    assert (await task_run("events", "--kind", "epoch")).err == "no event\n"
    follower = await follow(task_run, "--kind", "limit-unset", "--json")
    assert (await follower.event())["text"].startswith("concurrency job c")
    await set_limit(task_run, "d")
    assert (await task_run("limits", "unset", "Job", "d")).code == 0
    assert (await follower.event())["text"].startswith("concurrency job d")
    assert await follower.end() == 0


@pytest.mark.parametrize(
    ("kind", "meant"),
    [("limits-set", "Did you mean limit-set"), ("nonsense", "Kinds: ceilings-published,")],
)
async def test_a_kind_that_does_not_exist_is_refused(
    task_run: TaskRun, kind: str, meant: str
) -> None:
    """A slip must not look as if nothing had happened; also when it would be followed for ever."""
    for options in ([], ["--follow"]):
        ended = await task_run("events", "--kind", kind, *options)
        assert (ended.code, ended.out) == (2, "")
        assert f"--kind {kind}: there is no such kind" in ended.err and meant in ended.err


def test_every_kind_is_known() -> None:
    """The list of kinds is what scripts and commands write."""
    source = Path(nonet.__file__).parent
    scripts = "".join(path.read_text() for path in source.rglob("*.lua"))
    written = {
        kind
        for first in re.findall(r"log_event\(([^,]*'[^,]*),", scripts)
        for kind in re.findall(r"'([a-z-]+)'", first)
    }
    dlq = set(re.findall(r'"(dlq-\w+)"', (source / "cli/commands/dead_letters.py").read_text()))
    python = "".join(path.read_text() for path in source.rglob("*.py"))
    calls = r'(?:events\.log\(|self\._log\(|\.log_event\(|"log_event",)'
    written |= set(re.findall(calls + r'\s*"([a-z-]+)"', python))
    assert {"epoch", "limit-set", "limit-unset", "quarantine-retry"} <= written and dlq
    # 'schedule-' .. verb: all that begin so.
    begun = {
        kind for kind in EVENT_KINDS if kind.startswith(tuple(k for k in written if k[-1] == "-"))
    }
    written = {kind for kind in written if kind[-1] != "-"} | begun
    assert set(EVENT_KINDS) == written | dlq


@pytest.mark.server
async def test_following_survives_redis(own_run: TaskRun, own_redis: RedisServer) -> None:
    """A flush, a crash and a restart without data: it says that Redis was away, and goes on."""
    await set_limit(own_run, "a")
    follower = await follow(own_run, "--json")
    assert "job a" in (await follower.event())["text"]
    own_run.redis.flushall()
    await set_limit(own_run, "b")
    assert "job b" in (await follower.event())["text"]
    own_redis.kill()
    assert (await follower.said()).endswith("; waiting for it")
    own_redis.restart(keep_data=False)
    assert await follower.said() == "Redis answers again"
    await set_limit(own_run, "c")
    assert "job c" in (await follower.event())["text"]
    own_redis.kill()
    await follower.said()
    assert await follower.end(signal.SIGINT) == 0


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    opened = Broker(redis_url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    yield opened
    await opened.aclose()


async def test_an_older_data_set_is_followed_from_its_start(broker: Broker) -> None:
    """Ids that are lower than those seen do not hide events, after a flush and a clock set back."""
    client = broker.client

    async def add(id: str) -> None:
        await client.xadd("{test}:events", {"kind": "k", "at": 1, "who": "me", "text": id}, id=id)

    following = Events(client, "test").follow(0)
    for id in ("1-1", "9000-0", "9000-1"):
        await add(id)
    assert await following.new() == []
    for n in range(1200):
        await add(f"9001-{n}")
    assert [event.text for event in await following.new()] == [f"9001-{n}" for n in range(1200)]
    await client.delete("{test}:events")
    for id in ("7-0", "8-0"):
        await add(id)
    assert [event.text for event in await following.new()] == ["7-0", "8-0"]
    await client.delete("{test}:events")
    assert await following.new() == await following.new() == []
    await add("1-0")
    assert [event.text for event in await following.new()] == ["1-0"]
