"""Somebody damages live tasks, in every way that leaves no valid value, and all others go on.

`Batch` submits a task of each kind again and again, beside one of each that stays as it is, brings
them into their states, and damages one key or field of each of the others.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from acceptance.damage_tasks import Durable, Plain, Retried
from acceptance.site import LEASE, LOCK_TTL, Site
from daemons import until

from nonet import BaseTask, MutexLock, Nonet, ResultUnavailable, TaskFailed
from nonet.base.errors import NotFoundError

TASKS = ("acceptance.damage_tasks",)
SLOTS = 40
#: A task that was damaged has ended after so many seconds, and with it all others.
WITHIN = 60.0
_LONG = "x" * 200  # its envelope is in a key of its own
_GARBAGE = (b"\xff\x00", b"-5", b"1e999", b"nan", b"abc|def", b"M|z", b" ", b"\n", b"{}", b"|")
_KEYS = ("t", "b", "l", "e", "h", "c")
_GROUP_KEYS = ("", ":pending", ":results", ":callback", ":on_failure")
_TYPES: dict[bytes, Callable[[Any, bytes], Any]] = {
    b"string": lambda client, key: client.set(key, b"\xff another type"),
    b"list": lambda client, key: client.rpush(key, b"x"),
    b"set": lambda client, key: client.sadd(key, b"x"),
    b"zset": lambda client, key: client.zadd(key, {b"x": 1}),
    b"hash": lambda client, key: client.hset(key, b"x", b"x"),
    b"stream": lambda client, key: client.xadd(key, {b"x": b"x"}),
}


class Violation(AssertionError):
    """What must never happen."""


@dataclass
class Victim:
    """A task that is damaged.

    Attributes:
        how: what was done to it.
        number: what it would return.
        is_deleted: its whole record is gone.
    """

    id: str
    kind: str
    number: int
    how: str = ""
    is_deleted: bool = False


@dataclass
class Batch:
    """Tasks that live at the same time, on the daemons of a site.

    Args:
        count: of victims.
    """

    site: Site
    app: Nonet
    count: int
    random: random.Random
    within: float = WITHIN
    victims: list[Victim] = field(default_factory=list)
    spared: dict[str, int] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    _submitted: int = 0

    def __post_init__(self) -> None:
        self.client = redis.Redis.from_url(self.site.settings["NONET_REDIS_URL"])
        self.unknown = self.counted()

    def key(self, name: str) -> bytes:
        return self.site.key(name).encode()

    def counted(self) -> int:
        """How many pointers led to unknown tasks."""
        return int(self.client.hget(self.key("counters"), "tasks:unknown") or 0)

    async def run(self) -> Counter[str]:
        """One batch from its first submission to the last end; how the victims ended."""
        gate = self.site.gate()
        async with self._held():
            await self._bring_into_states(gate)
            self.random.shuffle(self.victims)
            self.victims.sort(key=lambda item: item.kind == "running")  # they free slots for others
            for victim in self.victims:
                self._damage(victim)
            for group in self.groups:
                self._damage_group(group)
            strays = self._point_to_nobody()
            await self._ask()
            self.site.open(gate)
        ends = await self._judge(strays)
        self.client.close()
        return ends

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """While the lock is held for which some of them wait."""
        async with self.app.hold(MutexLock("job", "held"), wait=30):
            yield

    async def _bring_into_states(self, gate: str) -> None:
        each = max(1, self.count // 8)
        await self._submit("retrying", [lambda n: Retried(n)], each)
        await self._submit("waiting", [lambda n: Plain(n, lock="held")], each)
        await until(
            lambda: sum(self.site.parked(item.id) for item in self.victims) == 2 * each,
            "some wait for a lock, and some for a retry",
        )
        plain, long = (lambda n: Plain(n)), (lambda n: Plain(n, text=_LONG))
        running = [
            lambda n: Plain(n, gate=gate),
            lambda n: Plain(n, gate=gate, lock=f"own-{n}", text=_LONG),
        ]
        durable = [lambda n: Durable(n), lambda n: Durable(n, lock=f"own-{n}")]
        # All slots are taken by them: the rest is queued until the gate opens.
        ids = await self._submit("running", running, SLOTS // 2)
        await until(lambda: self._are_running(ids), "all slots are taken")
        await self._submit("delayed", [plain, long], each, after=timedelta(seconds=4))
        await self._submit("queued", [plain, long, lambda n: Plain(n, lock=f"own-{n}")], each)
        await self._submit("durable", durable, each)
        await self._open_groups(each // 2)

    async def _submit(
        self,
        kind: str,
        makes: list[Callable[[int], BaseTask]],
        count: int,
        after: timedelta | None = None,
    ) -> list[str]:
        """Of each task that is damaged there is one that is spared."""
        numbers = range(self._submitted, self._submitted + 2 * count)
        self._submitted += len(numbers)
        tasks = [makes[number // 2 % len(makes)](number) for number in numbers]
        at_time = None if after is None else datetime.now(UTC) + after
        handles = await self.app.submit_many(tasks, at_time=at_time)
        for number, handle in zip(numbers, handles, strict=True):
            if number % 2:
                self.spared[str(handle)] = number
            else:
                self.victims.append(Victim(str(handle), kind, number))
        return [str(handle) for handle in handles]

    def _are_running(self, ids: list[str]) -> bool:
        return all(self.client.hget(self.key(f"t:{id}"), "state") == b"running" for id in ids)

    async def _open_groups(self, count: int) -> None:
        for number in range(count):
            children = [Plain(number), Plain(number, text=_LONG)]
            ends = {"callback": Plain(1), "on_failure": Plain(2)}
            group = str(await self.app.client.spawn_with_callback(children, **ends))
            if number % 2:
                self.groups[group] = ""
            else:
                self.victims.append(Victim(f"{group}.0", "child", number))
                self.spared[f"{group}.1"] = number

    # ---- damage ---------------------------------------------------------------------------------

    def _damage(self, victim: Victim) -> None:
        keys = [name for name in _KEYS if self.client.exists(self.key(f"{name}:{victim.id}"))]
        if not keys:  # it was faster
            self.spared[victim.id] = victim.number
            return
        name = self.random.choice([*keys, *["t"] * 4])
        key = self.key(f"{name}:{victim.id}")
        how = self.random.choice(["type", "delete", "garbage", "garbage", "garbage"])
        if name == "t" and how == "garbage":
            victim.how = self._damage_field(key)
            return
        victim.how = f"{name}: {how}"
        victim.is_deleted = name == "t" and how == "delete"
        self._damage_key(key, how)

    def _damage_key(self, key: bytes, how: str) -> None:
        """At once, and not after the end of the task: who comes in between must see a key."""
        with self.client.pipeline(transaction=True) as pipe, suppress(redis.WatchError):
            pipe.watch(key)
            actual: bytes = pipe.type(key)
            if actual == b"none":
                return
            pipe.multi()
            pipe.delete(key)
            if how == "type":
                _TYPES[self.random.choice([name for name in _TYPES if name != actual])](pipe, key)
            elif how == "garbage" and actual == b"list":
                pipe.rpush(key, self._bytes())
            elif how == "garbage":
                pipe.set(key, self._bytes())
            pipe.execute()

    def _damage_field(self, key: bytes) -> str:
        name = self.random.choice([b"state", b"stream", *self.client.hkeys(key)])
        choice = self.random.random()
        if choice < 0.3:
            self.client.hdel(key, name)
            return f"without {name!r}"
        value = self._bytes()
        if name in (b"state", b"stream") and choice < 0.6:
            value = b"done" if name == b"state" else b"urgent:tiny"
        # Not after its end: that would make a record.
        self.client.eval(_SET_FIELD, 1, key, name, value)
        return f"{name!r} is {value!r}"

    def _damage_group(self, group: str) -> None:
        if self.client.hget(self.key(f"g:{group}"), "state") != b"sealed":  # it was faster
            return
        suffix = self.random.choice(_GROUP_KEYS)
        key = self.key(f"g:{group}{suffix}")
        if self.client.type(key) == b"hash" and self.random.random() < 0.6:
            self.groups[group] = suffix + self._damage_field(key)
        else:
            how = self.random.choice(["type", "delete"])
            self.groups[group] = f"{suffix}: {how}"
            self._damage_key(key, how)

    def _point_to_nobody(self) -> int:
        count = 10
        for number in range(count):
            fields = {"id": f"nobody-{self.random.random()}", "gen": str(number)}
            self.client.xadd(self.key("tasks:normal:small"), fields)
        return count

    def _bytes(self) -> bytes:
        long = b"\xff" + self.random.randbytes(self.random.randint(1, 40))
        return self.random.choice([long, long, *_GARBAGE])

    # ---- what must hold -------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Whoever asks gets an answer, whatever the answer is."""
        async for _ in self.app.live():
            pass
        async for _ in self.app.client.results.delayed_tasks():
            pass
        for victim in self.victims:
            for ask in (self.app.status, self.app.explain):
                try:
                    await ask(victim.id)
                except NotFoundError:
                    continue
                except Exception as error:
                    raise Violation(f"{ask.__name__} of {victim}: {error!r}") from error

    async def _judge(self, strays: int) -> Counter[str]:
        began = time.monotonic()
        while left := self._left():
            if time.monotonic() - began > self.within:
                raise Violation(f"after {self.within:.0f} s there are {self._named(left)}")
            await asyncio.sleep(0.1)
        ends = Counter[str]()
        for id, number in self.spared.items():
            if (end := await self._end(id)) != f"done {number}":
                raise Violation(f"{id}, which nobody has damaged, has ended: {end}")
        for victim in self.victims:
            if victim.id in self.spared:
                continue
            end = await self._end(victim.id)
            ends[end.split()[0]] += 1
            self._judge_victim(victim, end)
        for group, how in self.groups.items():
            await self._judge_group(group, how)
        gone = sum(item.is_deleted and item.kind not in _FOUND_AGAIN for item in self.victims)
        if self.counted() - self.unknown < strays + gone:
            raise Violation(f"{self.counted() - self.unknown} counted of {strays} + {gone}")
        await self._see_nothing_left()
        return ends

    def _judge_victim(self, victim: Victim, end: str) -> None:
        if victim.kind == "durable" and victim.is_deleted and end != f"done {victim.number}":
            raise Violation(f"{victim} was not submitted again: {end}")
        if end == "unknown" and not victim.is_deleted:
            raise Violation(f"{victim} had a record, and nobody knows how it ended")
        if end.startswith("dead quarantined") and victim.kind != "child":
            entries = self.client.xrange(self.key("quarantine"))
            if not any(fields[b"task"] == victim.id.encode() for _, fields in entries):
                raise Violation(f"nothing is kept of {victim}")

    async def _judge_group(self, group: str, how: str) -> None:
        ended = [await self._end(f"{group}.{end}") for end in ("callback", "failure")]
        if sum(end != "unknown" for end in ended) > 1:
            raise Violation(f"group {group} ({how}) has fired twice: {ended}")

    async def _end(self, id: str) -> str:
        try:
            return f"done {await self.app.result(id, timeout=WITHIN)}"
        except TaskFailed as error:
            return f"dead {error.reason}"
        except ResultUnavailable:
            return "unknown"

    def _left(self) -> list[str]:
        found = [key.decode() for key in self.client.scan_iter(self.key("t:*"), count=1000)]
        groups = self.client.scan_iter(self.key("g:*"), count=1000)
        return found + [key.decode() for key in groups if self.client.pttl(key) == -1]

    def _named(self, keys: list[str]) -> str:
        told = {item.id: str(item) for item in self.victims} | self.groups
        ids = [key.partition("}:")[2][2:].split(":")[0] for key in keys]
        return "; ".join(
            f"{key}: {told.get(id, id)}" for key, id in zip(keys[:5], ids, strict=False)
        )

    def _entries(self) -> list[str]:
        """Pointers that are left; what stands in place of a key of a group expires with it."""
        told = {item.id.encode(): str(item) for item in self.victims}
        found = []
        for key in self.client.scan_iter(self.key("*"), count=1000, _type="STREAM"):
            if not key.startswith((self.key("quarantine"), self.key("events"), self.key("g:"))):
                for entry, fields in self.client.xrange(key, count=5):
                    whose = told.get(fields.get(b"id", b""), fields)
                    found.append(f"{key!r} {entry!r} {whose}")
        return found

    async def _see_nothing_left(self) -> None:
        """Soon there is no pointer, and nothing that the doctor would say."""
        ends_at = time.monotonic() + WITHIN
        while left := self._entries():
            if time.monotonic() > ends_at:
                raise Violation(f"entries are left: {left}")
            await asyncio.sleep(0.1)
        # Counts of what was deleted come right with the second walk that misses it. It goes through
        # all keys, results of earlier batches too.
        while problems := (await self.app.doctor()).problems:
            if time.monotonic() > ends_at:
                raise Violation(f"the doctor finds {problems[:5]}")
            await asyncio.sleep(0.5)


# Records that are deleted while their tasks run, or wait, are not always met by a pointer.
_FOUND_AGAIN = ("durable", "running", "waiting", "child")
_SET_FIELD = """
return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""


@asynccontextmanager
async def damaged(site: Site, **environment: str) -> AsyncIterator[Nonet]:
    """The application, with a scheduler and a worker that has `SLOTS` slots."""
    site.settings["NONET_TASKS"] = ",".join(TASKS)
    site.scheduler(**environment)
    site.worker("--concurrency", str(SLOTS), **environment)
    async with site.app(tasks=TASKS, lease=LEASE, lock_ttl=LOCK_TTL) as app:
        yield app
        await asyncio.sleep(0)
