"""Shows the holders and waiting tasks of locks, and releases locks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nonet.base.durations import span
from nonet.base.errors import InvalidArgumentsError, NotFoundError
from nonet.rules.findings.refusal import LockHolder, Refusal, Waiters, lasting, named
from nonet.rules.limits import Limit
from nonet.stores.connection.clock import logical_now, microseconds
from nonet.stores.connection.redis import AsyncRedis, RedisStore, literal
from nonet.stores.connection.unreadable import readable, readable_hash, whole
from nonet.stores.queue.workers import worker_name
from nonet.tasks.locks import KINDS, LockKind

# The default of NONET_LOCK_TTL.
LOCK_TTL_MS = 30_000
# Locks that one script reads, so that it does not block Redis.
_BATCH = 50
# Contended locks whose waiters one script counts.
_COUNTED, _MOST_COUNTED = 500, 10_000
# Keys that one SCAN examines.
_SCANNED = 1000
# Waiters of a contended lock whose classes are read.
_NAMED = 5
_PREFIXES = {kind.prefix: kind for kind in KINDS.values()}  # of a reader/writer lock the reader's
_NAME = re.compile(rf"({'|'.join(_PREFIXES)}):[^:\s]+(:[^:\s]*)+")


@dataclass(frozen=True, slots=True)
class LockWaiter:
    """A task or hold that waits for a lock.

    Attributes:
        id, task: id and class of the task; the class is ``hold`` for code that is not a task.
        waiting_seconds: time since its first refusal.
        is_woken: it was woken, and takes the lock as soon as a worker fetches it.
    """

    id: str
    task: str
    waiting_seconds: float
    is_woken: bool


@dataclass(frozen=True, slots=True)
class LockStatus:
    """A lock or limiter that is held or waited for.

    Attributes:
        lock: its name.
        kind: ``mutex``, ``reader/writer``, ``concurrency``, ``rate``.
        side: of a reader/writer lock that is held: ``writer`` or ``readers``.
        holding: number of holders, of which `holders` names some. A rate limiter has none.
        used, limit: of a limiter, now; the limit is None if it is off or unknown.
        window_seconds: of a rate limiter.
        back_seconds: until the first grant of a rate limiter leaves the window.
        waiting: number of waiting tasks, including `woken` ones; `waiters` names some in order.
        declared: the limit that its tasks declare, whatever is configured.
        longest_wait_seconds: of the waiting tasks.
    """

    lock: str
    kind: str
    side: str
    holding: int
    used: int | None
    limit: int | None
    window_seconds: float | None
    back_seconds: float | None
    waiting: int
    woken: int
    longest_wait_seconds: float | None
    holders: tuple[LockHolder, ...]
    waiters: tuple[LockWaiter, ...]
    declared: Limit | None = None

    @property
    def is_held(self) -> bool:
        """Whether there is anything to be released."""
        return bool(self.holding or self.used)

    @property
    def kind_in_use(self) -> str:
        """The side of a reader/writer lock that is held, else the kind."""
        return self.side or self.kind

    @property
    def usage(self) -> str | None:
        """How much of a limiter is used, for people."""
        if self.used is None:
            return None
        window = f" in {self.window_seconds:g} s" if self.window_seconds else ""
        return f"{self.used} of {'?' if self.limit is None else self.limit}{window}"

    @property
    def held_by(self) -> str:
        """The holders, for people."""
        if self.back_seconds is not None:
            return f"next token in {span(self.back_seconds)}"
        return _some([f"{named(one)}, {lasting(one)}" for one in self.holders], self.holding)

    @property
    def longest(self) -> str | None:
        """The longest wait, for people."""
        return None if self.longest_wait_seconds is None else span(self.longest_wait_seconds)

    @property
    def in_order(self) -> str:
        """The next waiters, for people."""
        waiters = [one.id + (" (woken)" if one.is_woken else "") for one in self.waiters]
        return _some(waiters, self.waiting)


@dataclass(frozen=True, slots=True)
class Released:
    """The result of a forced release.

    Attributes:
        voided: attempts and holds that lost a structural lock; the tasks run again.
        dropped: slots or items removed from a limiter, whose holders continue to run.
        woken: ids of waiting tasks that may run now.
    """

    lock: str
    voided: tuple[LockHolder, ...]
    dropped: int
    woken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of locks that are held or waited for.

    Attributes:
        is_all: False: only some of the keys were scanned.
    """

    names: set[str]
    is_all: bool


class LockBoard(RedisStore):
    """The locks of one namespace, over a broker's connection.

    Args:
        lock_ttl_ms: lease of a lock that declares none.
    """

    def __init__(self, client: AsyncRedis, namespace: str, lock_ttl_ms: int = LOCK_TTL_MS) -> None:
        self._lock_ttl_ms = lock_ttl_ms
        super().__init__(client, namespace)

    async def some(self, names: Sequence[str], *, show: int = 5) -> list[LockStatus]:
        """Return locks by their names, in this order; leave out names of no lock.

        Args:
            show: how many holders and waiters of each to name, 1 at least.
        """
        found: list[LockStatus] = []
        valid = [name for name in names if _NAME.fullmatch(name)]
        for start in range(0, len(valid), _BATCH):
            found += (await self._look(valid[start : start + _BATCH], show))[0]
        return found

    async def names(self, *, keys: int | None = None) -> Names:
        """Return the names of locks that are held or waited for, in no order.

        All keys of the namespace must be scanned, as no index of held locks is kept.

        Args:
            keys: scan about this many keys at most; None: all.
        """
        # Matches lock:…, limiter:… and queue:…, and few other keys.
        pattern = f"{literal(self._prefix)}[lq][oiu]*"
        found, cursor, scanned = set[str](), 0, 0
        while scanned == 0 or (cursor and (keys is None or scanned < keys)):
            cursor, page = await self._client.scan(cursor, match=pattern, count=_SCANNED)
            scanned += _SCANNED
            for key in page:
                name = _lock_of(key.decode(errors="replace").removeprefix(self._prefix))
                if name:
                    found.add(name)
        return Names(found, cursor == 0)

    async def waiting(self) -> dict[str, int]:
        """Return how many tasks wait for each contended lock, of 10,000 locks at most."""
        found: dict[str, int] = {}
        for start in range(0, _MOST_COUNTED, _COUNTED):
            flat = await self._scripts.run("contended", start, _COUNTED)
            names = [name.decode(errors="replace") for name in flat[::2]]
            found |= dict(zip(names, flat[1::2], strict=True))
            if len(names) < _COUNTED:
                break
        return {name: n for name, n in found.items() if n and _NAME.fullmatch(name)}

    async def contended(self, most: int = 500) -> list[Waiters]:
        """Return the locks that tasks wait for, without a scan of all keys.

        Args:
            most: look at this many locks at most.
        """
        watched = await self._client.zrange(f"{self._prefix}watch", 0, most - 1)
        # The set also has the queues of paused tasks, which belong to no lock.
        found = await self.some([name.decode(errors="replace") for name in watched], show=_NAMED)
        return [waiters_of(item) for item in found if item.waiting]

    async def get(self, name: str, *, show: int = 5) -> LockStatus:
        """Return one lock, which may be free.

        Raises:
            InvalidArgumentsError: the name is not that of a lock.
        """
        ((found, *_), _) = await self._look([_checked(name)], show)
        return found

    async def named(self, names: Sequence[str], *, show: int = 5) -> list[LockStatus]:
        """Return some locks, which may be free."""
        return (await self._look(names, show))[0] if names else []

    async def tasks(self, name: str, most: int) -> tuple[list[str], int]:
        """Return the ids of tasks that hold a lock or wait for it, and how many there are.

        Args:
            most: name at most so many holders, and as many waiters.

        Raises:
            InvalidArgumentsError: the name is not that of a lock.
        """
        found = await self.get(name, show=most)
        ids = [item.id for item in found.holders] + [item.id for item in found.waiters]
        return list(dict.fromkeys(ids)), found.holding + found.waiting

    async def object_types(self) -> set[str]:
        """Return the object types of the locks that are held or waited for."""
        return {object_type_of(name) for name in (await self.names()).names}

    async def counters(self) -> dict[str, int]:
        """Return how often incidents happened, e.g. refused settles."""
        found = await self._client.hgetall(f"{self._prefix}counters")
        return readable_hash("counters", found, whole)

    async def release(self, name: str, who: str) -> Released:
        """Take a lock from all of its holders, and offer it to the waiting tasks.

        Holders of a structural lock are voided, and their tasks run again. A limiter is only
        emptied. The release is written to the event stream. Many holders take several scripts:
        after an error only some may have lost the lock, so release it again.

        Args:
            who: ``user@host pid``.

        Raises:
            InvalidArgumentsError: the name is not that of a lock.
            NotFoundError: the lock has no holder.
        """
        # Spare holders that are admitted from now on: they have a later fence.
        _, fence = await self._look([_checked(name)], 1)
        dropped, more = 0, 1
        rows: list[Any] = []
        while more:
            answer = await self._scripts.run("break_lock", name, fence, who)
            dropped, rows = dropped + answer[0], rows + answer[1]
            woken, more = answer[2:]
        if not dropped and not rows:
            raise NotFoundError(not_held(name))
        now = await logical_now(self._client, self._prefix)
        holders = holders_of(rows, microseconds(now), self._lock_ttl_ms)
        return Released(
            name,
            voided=() if _kind_named(name).limiter else holders,
            dropped=dropped,
            woken=tuple(id.decode().partition(" ")[0] for id in woken),
        )

    async def _look(self, names: Sequence[str], show: int) -> tuple[list[LockStatus], int]:
        """Some locks, and the last fence before they were read."""
        now, fence, *rows = await self._scripts.run("show_locks", show, *names)
        found = list[LockStatus]()
        for row in rows:
            one = (row[0], row, int(now), self._lock_ttl_ms)
            found += readable(row[0].decode(errors="replace"), "DEL", [one], _lock)
        return found, int(fence)


def _some(texts: Sequence[str], count: int) -> str:
    more = count - len(texts)
    return "; ".join(texts) + (f" … {more} more" if more > 0 else "")


def not_held(name: str) -> str:
    """The message for a lock that is free, or whose name is not written as in Redis."""
    return (
        f"{name} is not held: 'task-run locks' lists what is held; parts of a name are "
        "percent-encoded as shown there (a:b is a%3Ab)"
    )


def is_name(text: str) -> bool:
    """Return whether a text has the form of the name of a lock.

    >>> is_name("lock:mutex:job:7"), is_name("job:7")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgumentsError(
            name,
            ["is not the name of a lock: take it from 'task-run locks', e.g. lock:mutex:job:7"],
        )
    return name


def _lock_of(key: str) -> str | None:
    """The lock that a key belongs to.

    >>> _lock_of("lock:rw:job:7:w"), _lock_of("queue:limiter:conc:job:7"), _lock_of("leader")
    ('lock:rw:job:7', 'limiter:conc:job:7', None)
    """
    name = key.removeprefix("queue:")
    if not _NAME.fullmatch(name):
        return None
    kind = _kind_named(name)
    if name == key and not (kind.exclusive or kind.limiter):  # keys of its writer and its holders
        return key[:-2] if key.endswith((":w", ":r")) else None
    return name


def _kind_named(name: str) -> LockKind:
    return _PREFIXES[":".join(name.split(":", 2)[:2])]


def object_type_of(name: str) -> str:
    """The type of the object that a lock protects.

    >>> object_type_of("lock:mutex:job:7"), object_type_of("limiter:conc:@lhcb:task:Audit")
    ('job', 'task')
    """
    parts = name.split(":")[2:]
    return parts[1] if parts[0].startswith("@") else parts[0]


def folded(object_type: str) -> str:
    """Return an object type as registered and in CamelCase alike."""
    return object_type.replace("_", "").lower()


def _lock(name: bytes, row: Sequence[Any], now: int, lock_ttl_ms: int) -> LockStatus:
    _, letter, holding, used, limit, window, back, waiting, woken, since = row[:10]
    holders, waiters, declared, declared_window = row[10:]
    kind = KINDS[letter.decode()]
    return LockStatus(
        lock=name.decode(),
        kind=kind.word,
        side=kind.side if holding else "",
        holding=holding,
        used=used if kind.limiter else None,
        limit=int(limit) if limit != b"" else None,
        window_seconds=int(window) / 1000 if window != b"" else None,
        back_seconds=seconds_until(back, now) if back else None,
        waiting=waiting,
        woken=woken,
        longest_wait_seconds=seconds_since(since, now) if since else None,
        holders=holders_of(holders, now, lock_ttl_ms),
        waiters=tuple(
            LockWaiter(
                id.decode(errors="replace"),
                task.decode(errors="replace"),
                seconds_since(first, now) if first else 0.0,
                woken == 1,
            )
            for id, task, first, woken in waiters
        ),
        declared=_limit(declared, declared_window),
    )


def _limit(limit: bytes | int, window: bytes | int) -> Limit | None:
    if limit == b"":
        return None
    return Limit(int(limit), int(window) / 1000 if window != b"" else None)


def waiters_of(found: LockStatus) -> Waiters:
    """Return the refusal that the waiters of a lock get."""
    refusal = Refusal(
        lock=found.lock,
        kind=_kind_named(found.lock).letter,
        is_held=found.is_held,
        holding=found.holding,
        holders=found.holders,
        used=found.used or 0,
        limit=found.limit or 0,
        window_seconds=found.window_seconds or 0.0,
        back_in=found.back_seconds,
    )
    tasks = tuple(dict.fromkeys(waiter.task for waiter in found.waiters if waiter.task))
    return Waiters(refusal, found.waiting, found.longest_wait_seconds or 0.0, tasks)


def holders_of(rows: Sequence[Sequence[Any]], now: int, lock_ttl_ms: int) -> tuple[LockHolder, ...]:
    """Read rows of ``lib/sight.lua``.

    Args:
        lock_ttl_ms: lease of a lock that declares none.
    """
    return tuple(
        LockHolder(
            id=id.decode(errors="replace"),
            task=task.decode(errors="replace"),
            worker=worker_name(worker, info),
            held_seconds=seconds_since(started, now) if started else None,
            ttl_seconds=(left := seconds_until(expiry, now)),
            is_live=live == 1,
            is_left=is_left == 1,
            # A lock is renewed at each third of its lease. One renewal may be late.
            is_renewed=live == 1 and dead == 0 and left > int(ttl or lock_ttl_ms) / 3000,
            fence=int(fence) if fence.isdigit() else None,
        )
        for id, expiry, task, worker, info, started, live, is_left, ttl, dead, fence in rows
    )


def seconds_since(instant: bytes, now: int) -> float:
    return max(0.0, (now - int(instant)) / 1e6)


def seconds_until(instant: bytes, now: int) -> float:
    return max(0.0, (int(instant) - now) / 1e6)
