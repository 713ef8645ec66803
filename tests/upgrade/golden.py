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

from msgspec.structs import replace

from nonet.messages.formats import FORMAT
from nonet.messages.message import (
    Envelope,
    ErrorDocument,
    Reference,
    ResultDocument,
    Usage,
    encode,
    pack,
)
from nonet.messages.signing import Signer
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.periodic import Change, Periodic
from nonet.stores.queue.broker import Broker, new_cursors
from nonet.stores.queue.deliveries import Delivery
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


def an_envelope(
    id: str, args: dict[str, Any] | None = None, trace: str = "", repeats: int = 0
) -> bytes:
    """The envelope of another task."""
    return encode(
        replace(
            ENVELOPE,
            id=id,
            args=pack(args or {}),
            trace=trace,
            resubmitted_from=repeats,
            is_step=False,
        )
    )


def documents() -> dict[str, bytes | str]:
    """What Python writes."""
    return {
        "envelope": an_envelope("a", VALUES),
        "envelope, traced": an_envelope("a", VALUES, ENVELOPE.trace),
        "envelope of a repeat": encode(replace(ENVELOPE, is_step=False)),
        "envelope of a step": encode(
            replace(
                ENVELOPE,
                args=pack({"one": Reference("3"), "added": [Reference("0.1", added=True)]}),
                trace="",
                resubmitted_from=0,
            )
        ),
        "envelope, signed": Signer({"one": b"k" * 32}, "test").signed(an_envelope("a")),
        "result": encode(RESULT),
        "error": encode(ERROR),
        "locks": encode_locks(LOCKS),
    }


class Acts:
    """What happens to tasks, one act after the other, and what each changes in Redis."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._held: dict[str, Delivery] = {}

    async def play(self) -> dict[str, Any]:
        """Name of each act → key → what is in it now, or None if it is gone."""
        acts: tuple[Callable[[], Awaitable[None]], ...] = (
            *(self.submitted, self.fetched, self.settled, self.saved, self.crashed),
            *(self.worker_died, self.dying, self.cancelled, self.handed_back, self.parked),
            *(self.woken, self.held, self.group_opened, self.group_sealed, self.group_fired),
            *(self.group_failed, self.periodic, self.paused),
            *(self.workflow_submitted, self.step_done, self.step_failed, self.workflow_resumed),
        )
        before, made = await self._snapshot(), {}
        for act in acts:
            await act()
            after = await self._snapshot()
            changed = {key: value for key, value in after.items() if before.get(key) != value}
            made[act.__name__] = changed | dict.fromkeys(before.keys() - after.keys())
            before = after
        return made

    async def _submit(self, id: str, envelope: bytes = b"?", **more: Any) -> None:
        stream = more.pop("stream", "normal:small")
        await self._broker.submit([Submission(id, "x:T", stream, envelope, **more)])

    async def _fetch(self, worker: str = "small-a1") -> None:
        deliveries, _ = await self._broker.fetch(worker, "small", 100, room=100)
        self._held |= {each.id: each for each in deliveries}

    async def _settle(self, id: str, outcome: str, document: bytes = b"", **more: Any) -> None:
        assert await self._broker.settle(self._held.pop(id), outcome, document, **more) == "OK"

    async def submitted(self) -> None:
        await self._submit("small", an_envelope("small"))
        await self._submit("large", an_envelope("large", VALUES))
        await self._submit("locked", locks=SEVEN)
        await self._submit("waiting", locks=SEVEN)
        await self._submit("everything", locks=encode_locks(LOCKS))
        await self._submit("delayed", due_us=FAR)
        await self._submit("child", group="group", stream="normal:large")
        terms = f"start_by|{FAR}|1\nunique|done|0|abcd"
        await self._submit("terms", terms=terms, stream="normal:large")
        await self._submit("until-start", terms="unique|start|0|bcde", stream="normal:large")
        await self._submit("repeat", terms="letter|0af3")
        terms = "unique|done|9000000000|cdef"
        await self._submit("for-a-while", terms=terms, stream="normal:large")

    async def fetched(self) -> None:
        await self._fetch()
        assert self._held.keys() == {"small", "large", "locked", "everything", "repeat"}

    async def settled(self) -> None:
        later = timedelta(seconds=5000)
        await self._settle("small", "retry", b"document", text="why", delay=later)
        await self._settle("large", "done", b"document")
        await self._settle("repeat", "done", b"document")
        await self._settle("everything", "dead", b"document")

    async def saved(self) -> None:
        await self._submit("saver")
        await self._fetch()
        await self._broker.checkpoint(self._held["saver"], b"page 3")

    async def crashed(self) -> None:
        await self._settle("saver", "crash", b"document", text="exit code 9")
        await self._fetch()
        assert (self._held["saver"].crashes, self._held["saver"].saved) == (1, b"page 3")

    async def worker_died(self) -> None:
        saver = self._held.pop("saver")
        where = f"{self._broker.prefix}{saver.stream_key}"
        dead = ("workers", "small-a1", 0, saver.entry, "IDLE", 3_600_000)
        await self._broker.client.execute_command("XCLAIM", where, *dead)
        taken, _ = await self._broker.reclaim("small-a2", "small", new_cursors())
        assert taken == 1

    async def dying(self) -> None:
        await self._fetch()
        assert self._held["saver"].deaths == 1
        await self._settle("saver", "dying", b"document", text="no SQL")

    async def cancelled(self) -> None:
        await self._submit("running")
        await self._submit("queued", stream="normal:large")
        await self._fetch()
        ids, why = ["running", "queued", "delayed"], "by a person"
        states = await self._broker.cancel(ids, why, order=why)
        assert states == ["cancelling", "cancelled", "cancelled"]

    async def handed_back(self) -> None:
        await self._settle("running", "back")
        for id, outcome in (("back", "back"), ("suspect", "suspect"), ("unknown", "on")):
            await self._submit(id)
            await self._fetch()
            await self._settle(id, outcome, text="why", delay=timedelta(seconds=5000))

    async def parked(self) -> None:
        for number, lock in enumerate(LOCKS):
            await self._submit(f"holder-{number}", locks=encode_locks([lock]))
        await self._submit("reader", locks=encode_locks(LOCKS[1:2]))
        for number, lock in enumerate([*LOCKS[:4], ExclusiveRWLock(JOB, "a")]):
            await self._submit(f"waiter-{number}", locks=encode_locks([lock]))
        await self._fetch()

    async def woken(self) -> None:
        await self._settle("locked", "done", b"document")

    async def held(self) -> None:
        await self._broker.hold("hold-1", encode_locks([MutexLock(JOB, "8")]), "me")
        await self._broker.hold("hold-2", encode_locks([MutexLock(JOB, "8")]), "you", wait=True)

    async def group_opened(self) -> None:
        await self._submit("parent")
        await self._fetch()
        for group, parent in (("g", "parent"), ("f", "")):
            callback = Submission("callback-" + group, "x:Callback", "realtime:small", b"c", SEVEN)
            failure = Submission("failure-" + group, "x:Failure", "realtime:large", b"f", SEVEN)
            await Groups(self._broker.client, "test").open(
                group,
                parent,
                policy="all_success",
                ttl_seconds=60,
                total=1,
                callback=callback,
                on_failure=failure,
            )
            await self._submit(f"{group}.0", group=group)

    async def group_sealed(self) -> None:
        groups = Groups(self._broker.client, "test")
        await groups.seal("g", "parent")
        await groups.seal("f", "")

    async def group_fired(self) -> None:
        await self._fetch()
        await self._settle("g.0", "done", b"document")

    async def group_failed(self) -> None:
        await self._settle("f.0", "dead", b"document")

    async def periodic(self) -> None:
        term = await Leadership(self._broker, "test").lead("leader", 3000, "{}") or ""
        periodic, later = Periodic(self._broker, "test"), NOON + timedelta(hours=1)
        shown = {"task": "x:T"}
        change = Change("new", "e", "x:T", NOON, prints=("s", "a"), next=later, shown=shown)
        await periodic.plan(term, [change])
        task = Submission("occurrence", "x:T", "normal:large", b"?")
        after = later + timedelta(hours=1)
        fired = await periodic.fire(term, "e", later, task, missed=2, following=after)
        assert fired == "FIRED"
        await periodic.pause(["e"], "me", "why")

    async def paused(self) -> None:
        controls = Controls(self._broker.client, "test")
        await controls.pause(["task:x:T", "stream:background:small"], "me", "why")
        await self._submit("held-back")
        await self._fetch()

    @property
    def _workflows(self) -> Workflows:
        broker = self._broker
        return Workflows(broker.client, broker.scripts, broker.keeping)

    async def workflow_submitted(self) -> None:
        await Controls(self._broker.client, "test").resume(["task:x:T"], "me")
        terms = ["step w s - -", "step w s - - s0\nstart_by|+9000000000|1", "step w - - 9000000 s1"]
        steps = [
            Submission(f"w:{place}", "x:T", "normal:small", an_envelope(f"w:{place}"), terms=term)
            for place, term in enumerate(terms)
        ]
        await self._workflows.submit([NewWorkflow("w", "title", "parent", steps, True)], 600)
        await self._fetch()

    async def step_done(self) -> None:
        added = Submission(
            "w:0.0", "x:T", "normal:small", an_envelope("w:0.0"), terms="step w - - -"
        )
        await self._settle("w:0", "done", b"document", submissions=[added])
        await self._fetch()
        await self._settle("w:0.0", "done", b"document")

    async def step_failed(self) -> None:
        await self._fetch()
        await self._settle("w:1", "dead", b"document")

    async def workflow_resumed(self) -> None:
        await self._workflows.begin_to_resume("w", [])
        await self._workflows.resume("w")

    async def _snapshot(self) -> dict[str, dict[str, str]]:
        """Type and name of each key → what is in it."""
        prefix, found = self._broker.prefix, {}
        for key in await self._broker.client.keys(f"{prefix}*"):
            name = key.decode().removeprefix(prefix)
            if not name.startswith("wake:"):  # nobody reads one twice
                kind = (await self._broker.client.type(key)).decode()
                value = await READERS[kind](self._broker.client, key)
                told = {self._readable(field): self._readable(text) for field, text in value}
                found[f"{kind} {self._readable(name)}"] = told
        return found

    def _readable(self, value: Any) -> str:
        return readable(value).replace(self._broker.wakes.client, "CLIENT")


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
    return {
        "format": FORMAT,
        "documents": {name: readable(value) for name, value in documents().items()},
        "acts": await Acts(broker).play(),
    }


async def write() -> None:
    """Write the file."""
    sys.path.append(str(Path(__file__).parents[1]))
    from servers import RedisServer

    with RedisServer() as server:
        broker = Broker(server.url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
        server.client().hset("{test}:epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        made = await written(broker)
        await broker.aclose()
    GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(write())
