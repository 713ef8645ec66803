"""`Site`: one namespace with real daemons, a client and the journal of what was executed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import preloaded
import pytest
import redis
from daemons import Daemon
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import BaseTask, Handle, Nonet, Size, TaskFailed
from nonet.daemon.service import Stop
from nonet.rules.letters import DeadLetter
from nonet.stores.connection.redis import with_parts
from nonet.stores.sql.dead_letters import DeadLetters

NAMESPACE = "acceptance"
PREFIX = f"{{{NAMESPACE}}}:"
PROBES = "acceptance.probe_tasks"
STREAM = "tasks:normal:small"
LEASE = 2.0
# At once: a pointer without its record is void, a record without its pointer is queued again.
_QUEUE = with_parts(
    """-- @include base
local entry = redis.call('XADD', P .. ARGV[3], '*', 'id', ARGV[1], 'gen', '1')
local record = {pointer = ARGV[3] .. ' ' .. entry}
for i = 4, #ARGV, 2 do
  record[ARGV[i]] = given(ARGV[i + 1])
end
records.put(ARGV[1], record, ARGV[2])
records.write_all()
"""
)
LOCK_TTL = 1.0
# For a test that waits until something ends with its worker, its lock or its leader.
SHORT = {
    "NONET_LEASE": str(LEASE),
    "NONET_LOCK_TTL": str(LOCK_TTL),
    "NONET_WORKER_TTL": str(LEASE),
    "NONET_LEADER_TTL": "1",
}
# Nothing ends by itself while a test lasts, however slow the machine is.
LONG = {
    "NONET_LEASE": "600",
    "NONET_LOCK_TTL": "500",
    "NONET_WORKER_TTL": "60",
    "NONET_LEADER_TTL": "500",
}


@dataclass(frozen=True)
class Event:
    """One line of the journal."""

    id: str
    attempt: int
    fence: int
    event: str
    task: str
    pid: int
    at: float
    details: Mapping[str, Any]


class Site:
    """Starts daemons that end with the test, and sees what they do.

    Attributes:
        redis: a synchronous client.
    """

    def __init__(self, server: RedisServer, home: Path) -> None:
        self._home = home
        self._server = server
        self._journal = home / "journal"
        self._daemons: list[Daemon] = []
        self._gates = 0
        self.settings: dict[str, str] = {
            "NONET_REDIS_URL": server.url,
            "NONET_NAMESPACE": NAMESPACE,
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_TASKS": PROBES,
            **SHORT,
            "PROBE_JOURNAL": str(self._journal),
            "PROBE_REDIS": server.url,
        }
        # Results may be cut where they are not text.
        self.redis = server.client(encoding_errors="replace")

    def close(self) -> None:
        """Kill every daemon."""
        for daemon in self._daemons:
            daemon.kill()
        self.redis.close()

    def worker(
        self, *options: str, size: str = "small", wait: bool = True, **environment: str
    ) -> Daemon:
        """A ``task-worker``; variables beside the site's own as keywords."""
        return self._start("task-worker", "--size", size, *options, wait=wait, **environment)

    def scheduler(self, *options: str, wait: bool = True, **environment: str) -> Daemon:
        """A ``task-scheduler``."""
        return self._start("task-scheduler", *options, wait=wait, **environment)

    def changed_worker(self, module: str, *options: str, **constants: float) -> Daemon:
        """A small worker in which constants of a module have other values."""
        changes = "".join(f"{module}.{name} = {value}\n" for name, value in constants.items())
        code = f"import {module}\n{changes}from nonet_worker import main\nmain()"
        return self.program("python", "-c", code, "--size", "small", *options).wait_ready()

    def program(self, *command: str, **environment: str) -> Daemon:
        """Another command of this environment, e.g. ``python -c CODE``."""
        return self._start(*command, wait=False, **environment)

    async def type(self, command: str, columns: int = 80) -> str:
        """Return what a command prints on stdout; it must succeed."""
        variables = {**self.settings, "COLUMNS": str(columns)}
        done = await asyncio.to_thread(
            preloaded.run, *shlex.split(command), variables=variables, cwd=self._home
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def app(self, **options: Any) -> Nonet:
        """The application of this test's process, not yet open."""
        chosen = {
            "redis_url": self.settings["NONET_REDIS_URL"],
            "namespace": NAMESPACE,
            "tasks": tuple(self.settings["NONET_TASKS"].split(",")),
            "state_dir": self._home / "state",
        }
        return Nonet.from_settings(**{**chosen, **options})

    def gate(self) -> str:
        """The path of a new gate, closed."""
        self._gates += 1
        return str(self._home / f"gate-{self._gates}")

    def write(self, name: str, text: str) -> str:
        """A file beside the logs; its path."""
        path = self._home / name
        path.write_text(text)
        return str(path)

    @staticmethod
    def open(gate: str) -> None:
        """Let everything pass that waits at a gate."""
        Path(gate).touch()

    def journal(self, event: str | None = None, **wanted: Any) -> list[Event]:
        """The events so far, optionally of one kind, task or id."""
        if not self._journal.exists():
            return []
        # The last line may be half written.
        lines = self._journal.read_text().rpartition("\n")[0].splitlines()
        events = [_event(json.loads(line)) for line in lines]
        return [
            item
            for item in events
            if event in (None, item.event)
            and all(getattr(item, name) == value for name, value in wanted.items())
        ]

    def policy_calls(self) -> list[list[Any]]:
        """What the inspecting retry policy was asked."""
        text = Path(f"{self._journal}.policy").read_text()
        return [json.loads(line) for line in text.splitlines()]

    async def begin(self, app: Nonet, task: BaseTask, **options: Any) -> Handle[Any]:
        """Submit a task, and wait until it was executed."""
        handle = await app.submit(task, **options)
        await self.started(handle)
        return handle

    async def started(self, id: str, times: int = 1) -> list[Event]:
        """Wait until a task was executed so often."""
        return await self.until_event("start", times, id=id)

    async def until_event(self, event: str, times: int = 1, **wanted: Any) -> list[Event]:
        """Wait until an event was written so often."""
        return await until(
            lambda: found if len(found := self.journal(event, **wanted)) >= times else [],
            f"{event!r} was written {times} times",
        )

    async def until_beats(self, worker: Daemon, times: int) -> None:
        """Wait until a worker has renewed its leases so often."""
        record, seen = self.key(f"w:{worker.incarnation}"), set[str]()
        await until(
            lambda: seen.add(self.redis.hget(record, "beat")) or len(seen) > times,
            f"the worker has beaten {times} times",
        )

    def key(self, name: str) -> str:
        """A key of the namespace."""
        return PREFIX + name

    def pending(self) -> int:
        """Deliveries in the hands of workers."""
        return sum(
            self.redis.xpending(stream, "workers")["pending"]
            for stream in self._streams()
            if self.redis.xinfo_groups(stream)
        )

    def entries(self) -> int:
        """Entries in all streams: queued and running tasks."""
        return sum(self.redis.xlen(stream) for stream in self._streams())

    def consumers(self, stream: str) -> set[str]:
        """Workers that have read a stream; empty if there is no such stream yet."""
        if not self.redis.exists(stream):
            return set()
        return {item["name"] for item in self.redis.xinfo_consumers(stream, "workers")}

    def queue_raw(
        self, id: str | bytes, envelope: bytes, stream: str = STREAM, **fields: Any
    ) -> None:
        """Queue a record with an envelope, and other fields, that no client would make."""
        record = {"state": "queued", "gen": "1", "name": "?", "stream": "normal:small"}
        record |= {"attempt": 0, "ticket": 1, "group": "", **fields}
        pairs = [part for pair in record.items() for part in pair]
        self.redis.eval(_QUEUE, 1, self.key(""), id, envelope, stream, *pairs)

    def quarantined(self) -> list[dict[bytes, bytes]]:
        """What was put aside, oldest first."""
        with redis.Redis.from_url(self.settings["NONET_REDIS_URL"]) as client:
            return [fields for _, fields in client.xrange(self.key("quarantine"))]

    def parked(self, id: str) -> bool:
        """Whether a task is in the delayed set: delayed, waiting or dying."""
        return self.redis.zscore(self.key("tasks:delayed"), id) is not None

    def hurry(self, id: str) -> None:
        """Make a task that waits for a moment due at once."""
        self.redis.zadd(self.key("tasks:delayed"), {id: 1}, xx=True)

    def live(self) -> list[str]:
        """Ids of all tasks that have not ended."""
        return [key.removeprefix(self.key("t:")) for key in self.redis.scan_iter(self.key("t:*"))]

    async def all_ended(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until no task lives, then see that nothing of them is left behind."""
        await until(lambda: not self.live(), "every task has ended", seconds=seconds)
        assert (self.entries(), self.pending()) == (0, 0)
        assert self.redis.zcard(self.key("tasks:delayed")) == 0

    def settles(self) -> Settles:
        """Count settlements from now on."""
        return Settles(self.redis)

    def _streams(self) -> list[str]:
        found = self.redis.scan_iter(self.key("*"), count=1000, _type="STREAM")
        return [key for key in found if not key.endswith((":quarantine", ":events"))]

    def _start(self, *command: str, wait: bool, **environment: str) -> Daemon:
        log = self._home / f"{Path(command[0]).name}-{len(self._daemons)}.log"
        chosen = {**self.settings, **environment}
        if chosen["NONET_REDIS_URL"] == self._server.url:  # each kind of process as its own user
            chosen["NONET_REDIS_URL"] = self._server.url_for(command[0])
        daemon = Daemon(*command, environment=chosen, log=log)
        self._daemons.append(daemon)
        return daemon.wait_ready() if wait else daemon


class Settles:
    """How often each task was settled for good: every settle writes its result key once."""

    def __init__(self, client: redis.Redis) -> None:
        client.config_set("notify-keyspace-events", "K$")
        self._client = client
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.psubscribe(f"__keyspace@0__:{PREFIX}r:*")
        self._pubsub.get_message(timeout=1)

    def __call__(self) -> Counter[str]:
        """Count by task id."""
        # A sentinel: what was settled before it has been seen when it arrives.
        sentinel = f"{PREFIX}r:sentinel"
        self._client.set(sentinel, "", px=1)
        found: Counter[str] = Counter()
        while True:
            message = self._pubsub.get_message(timeout=5)
            assert message, "the keyspace event of the sentinel is missing"
            if message["data"] != "set":
                continue
            id = message["channel"].partition(":r:")[2]
            if id == "sentinel":
                break
            found[id] += 1
        self._pubsub.close()
        self._client.config_set("notify-keyspace-events", "")
        return found


async def run(app: Nonet, task: BaseTask, **options: Any) -> Any:
    """Submit a task, and return its result."""
    return await (await app.submit(task, **options)).result(timeout=WAIT_SECONDS)


async def failure(app: Nonet, task: BaseTask | str, **options: Any) -> TaskFailed:
    """Return the error with which a task ends; submit it first unless an id is given."""
    id = task if isinstance(task, str) else await app.submit(task, **options)
    with pytest.raises(TaskFailed) as failed:
        await app.result(id, timeout=WAIT_SECONDS)
    return failed.value


async def eventually(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until an asynchronous condition is true; its value."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := await condition()):  # noqa: ASYNC110  # other processes change it
            await asyncio.sleep(0.05)
    return found


async def letters(url: str) -> list[DeadLetter]:
    """The dead letters of the namespace."""
    store = DeadLetters(url, NAMESPACE)
    try:
        return list(await store.list(limit=10_000))
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def working(app: Nonet) -> AsyncIterator[Nonet]:
    """Open an application, with a small worker in this process."""
    async with app, app.injector() as injector:
        stop = Stop()
        work = asyncio.create_task(app.worker(Size.SMALL, injector).run(stop))
        try:
            yield app
        finally:
            stop.drain()
            await work


def stop(*daemons: Daemon) -> list[int]:
    """Ask daemons to stop, and return their exit codes."""
    for daemon in daemons:
        daemon.terminate()
    return [daemon.wait() for daemon in daemons]


async def submit_all(app: Nonet, tasks: Iterable[BaseTask], **options: Any) -> list[str]:
    """Submit many tasks; their ids."""
    return [str(handle) for handle in await app.submit_many(tasks, **options)]


async def result_states(app: Nonet, ids: Iterable[str]) -> Counter[str]:
    """How many tasks are in each state."""
    return Counter([(await app.status(id)).state for id in ids])


@contextlib.contextmanager
def no_variables() -> Any:
    """Remove the ``NONET_`` variables of the shell that runs the tests."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("NONET_")}
    yield
    os.environ.update(kept)


def _event(line: dict[str, Any]) -> Event:
    own = {name: line.pop(name) for name in Event.__annotations__ if name != "details"}
    return Event(**own, details=line)
