"""``task-run events``: by kind, and as they come."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
from cli.terminal import TaskRun
from servers import RedisServer
from waits import WAIT_SECONDS

import nonet
from nonet.base.keys import EVENT_KINDS
from nonet.stores.namespace.events import Events
from nonet.stores.queue.broker import Broker


class Follower:
    """A ``task-run events --follow`` beside the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        self._out, self._err = process.stdout, process.stderr

    async def line(self) -> str:
        async with asyncio.timeout(WAIT_SECONDS):
            return (await self._out.readline()).decode().rstrip("\n")

    async def text(self) -> str:
        return str(json.loads(await self.line())["text"])

    async def said(self) -> str:
        async with asyncio.timeout(WAIT_SECONDS):
            return (await self._err.readline()).decode().rstrip("\n")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            rest, _ = await self._process.communicate()
        assert rest == b""
        return self._process.returncode or 0


async def follow(task_run: TaskRun, *options: object) -> Follower:
    return Follower(await task_run.start("events", "--follow", *options))


def log(task_run: TaskRun, text: str, kind: str = "limit-set") -> None:
    """Write an event."""
    now, _ = task_run.redis.time()
    task_run.redis.xadd("{cli}:events", {"kind": kind, "at": now, "who": "me", "text": text})


async def test_events_are_shown_as_they_come(task_run: TaskRun) -> None:
    """The last ones come first, then each new one in a line; a signal is no error."""
    for text in ("a", "b"):
        log(task_run, text)
    machine, person = await follow(task_run, "--limit", 1, "--json"), await follow(task_run)
    assert await machine.text() == "b"
    for text in ("a", "b"):
        assert (await person.line()).endswith(f"  {text}")
    for text in ("c", "d"):
        log(task_run, text)
        event = json.loads(await machine.line())
        assert event.keys() == {"at", "kind", "who", "text"}
        assert (event["kind"], event["text"]) == ("limit-set", text)
        line = await person.line()
        assert "limit-set" in line and line.endswith(f"  {text}")
    assert await machine.end(signal.SIGINT) == 0
    assert await person.end(signal.SIGTERM) == 0


async def test_kind_chooses_events(task_run: TaskRun) -> None:
    """`--kind` finds them behind many others, and the limit counts only them."""
    for text in ("a", "b", "c"):
        log(task_run, text)
    log(task_run, "unset", kind="limit-unset")
    with task_run.redis.pipeline() as pipe:
        for n in range(1100):
            pipe.xadd("{cli}:events", {"kind": "noise", "at": n, "who": "me", "text": "-"})
        pipe.execute()
    ended = await task_run("events", "--kind", "limit-set", "--limit", 2, "--json")
    assert [event["text"] for event in ended.json["items"]] == ["c", "b"]
    assert (await task_run("events", "--kind", "epoch")).err == "no event\n"
    follower = await follow(task_run, "--kind", "limit-unset", "--json")
    assert await follower.text() == "unset"
    log(task_run, "d")
    log(task_run, "unset again", kind="limit-unset")
    assert await follower.text() == "unset again"
    assert await follower.end() == 0


def test_every_kind_is_known() -> None:
    """The list of kinds is what scripts and commands write."""
    source = Path(nonet.__file__).parent
    scripts = "".join(path.read_text() for path in source.rglob("*.lua"))
    written = {
        kind
        for first in re.findall(r"log_event\(([^,]*'[^,]*),", scripts)
        for kind in re.findall(r"'([a-z-]+)'", first)
    }
    dlq = set(re.findall(r'"(dlq-\w+)"', (source / "operate/dead_letters.py").read_text()))
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
async def test_following_survives_an_outage_of_redis(tmp_path: Path) -> None:
    """It continues after a flush and after a restart without data, and reports the outage."""
    with RedisServer() as redis, closing(TaskRun(redis, tmp_path)) as run:
        log(run, "a")
        follower = await follow(run, "--json")
        assert await follower.text() == "a"
        run.redis.flushall()
        log(run, "b")
        assert await follower.text() == "b"
        redis.kill()
        assert (await follower.said()).endswith("; waiting for it")
        redis.restart(keep_data=False)
        assert await follower.said() == "Redis answers again"
        log(run, "c")
        assert await follower.text() == "c"
        redis.kill()
        await follower.said()
        assert await follower.end(signal.SIGINT) == 0


async def test_an_older_data_set_hides_no_event(broker: Broker) -> None:
    """After a flush or a clock that was set back, ids are lower than those seen before."""
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
