"""Who holds and who waits: locks and limiters, why a task does not run, and taking a lock away."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nonet.base.errors import InvalidArgumentsError, MalformedMessageError, NotFoundError
from nonet.base.keys import prefix
from nonet.messages.message import HARD_LIMIT_BYTES, decode_envelope
from nonet.rules.crashes import CRASH_LIMIT
from nonet.rules.explanation import Facts, LockHolder, Needs, Peer, Refusal
from nonet.rules.pauses import Pause
from nonet.stores.connection.clock import logical_now, microseconds
from nonet.stores.connection.redis import AsyncRedis, Scripts, literal, server_errors
from nonet.stores.queue.records import whole_envelope
from nonet.stores.queue.results import error_line, parse_ended, read_error

# Locks that one script looks at, so that it never holds up Redis.
_BATCH = 50
# Entries of a stream that are read to find the place of a task in it.
_LOOKS = 1000
_KINDS = {
    "M": "mutex",
    "W": "reader/writer",
    "R": "reader/writer",
    "C": "concurrency",
    "L": "rate",
}
_SIDES = {b"W": "writer", b"R": "readers"}
_NAME = re.compile(r"(lock:(mutex|rw)|limiter:(conc|rate)):[^:\s]+(:[^:\s]*)+")


@dataclass(frozen=True, slots=True)
class LockWaiter:
    """Who waits for a lock.

    Attributes:
        id, task: of the task; ``hold`` is code that is no task.
        waiting_seconds: since it was refused first.
        is_woken: it was told, and takes the lock as soon as a worker has fetched it.
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
        holding: how many hold it; `holders` names some of them. Nobody holds a rate limiter.
        used, limit: of a limiter; the limit that holds now, None if it is off or not known.
        window_seconds: of a rate limiter.
        back_seconds: until the first grant of a rate limiter leaves the window.
        waiting: how many wait, `woken` of them are told; `waiters` names some, in their order.
        longest_wait_seconds: of those who wait.
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

    @property
    def is_held(self) -> bool:
        """Whether there is anything to be released."""
        return bool(self.holding or self.used)


@dataclass(frozen=True, slots=True)
class Released:
    """What a forced release did.

    Attributes:
        voided: attempts and holds that lost a structural lock; the tasks run again.
        dropped: slots or items that a limiter was emptied of; `spared` held the slots, and run on.
        woken: ids of those who waited and may run now.
    """

    lock: str
    voided: tuple[LockHolder, ...]
    spared: tuple[LockHolder, ...]
    dropped: int
    woken: tuple[str, ...]


class LockBoard:
    """The locks of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str, crash_limit: int = CRASH_LIMIT) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)
        self._crash_limit = crash_limit

    async def in_use(self, object_type: str | None = None, *, show: int = 5) -> list[LockStatus]:
        """Everything that is held or waited for; what most wait for comes first.

        Args:
            object_type: only locks of this kind of object, as registered or in CamelCase.
            show: how many holders and waiters of each to name, 1 at least.
        """
        names = sorted(await self._names(object_type))
        found: list[LockStatus] = []
        for start in range(0, len(names), _BATCH):
            found += (await self._look(names[start : start + _BATCH], show))[0]
        seen = (item for item in found if item.is_held or item.waiting)
        return sorted(seen, key=lambda item: (-item.waiting, item.lock))

    async def get(self, name: str, *, show: int = 5) -> LockStatus:
        """One lock, also one that is free.

        Raises:
            InvalidArgumentsError: that is no name of a lock.
        """
        ((found, *_), _) = await self._look([_checked(name)], show)
        return found

    async def counters(self) -> dict[str, int]:
        """How often things happened that operators should know of, e.g. refused settles."""
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}counters")
        return {name.decode(): int(count) for name, count in found.items()}

    async def release(self, name: str, who: str) -> Released:
        """Take a lock from all who hold it now, and offer it to those who wait.

        Tasks that held a mutex or a side of a reader/writer lock are voided and run again; a
        limiter is only emptied. Written to the event stream. Done in several scripts if there
        are many: after an error a part of them may have lost it; release it again.

        Args:
            who: ``user@host pid``.

        Raises:
            InvalidArgumentsError: that is no name of a lock.
            NotFoundError: nobody holds it.
        """
        # Whoever is admitted from now on has a later fence, and is left alone by a repeat.
        _, fence = await self._look([_checked(name)], 1)
        dropped, more = 0, 1
        rows: list[Any] = []
        while more:
            answer = await self._scripts.run("break_lock", name, fence, who)
            dropped, rows = dropped + answer[0], rows + answer[1]
            woken, more = answer[2:]
        if not dropped and not rows:
            raise NotFoundError(nobody_holds(name))
        now = await logical_now(self._client, self._prefix)
        holders = _holders(rows, microseconds(now))
        is_limiter = name.startswith("limiter:")
        return Released(
            name,
            voided=() if is_limiter else holders,
            spared=holders if is_limiter else (),
            dropped=dropped,
            woken=tuple(id.decode().partition(" ")[0] for id in woken),
        )

    async def facts(self, id: str, *, show: int = 5) -> Facts:
        """What keeps a task from running, for `nonet.rules.explanation.explain`.

        Raises:
            NotFoundError: there is no such task.
        """
        answer = await self._scripts.run("explain", id, show, _LOOKS)
        if not answer:
            raise NotFoundError(
                f"task {id} is unknown: never submitted here, its result has expired "
                "(NONET_RESULT_TTL), or Redis has lost it"
            )
        found = dict(zip((name.decode() for name in answer[::2]), answer[1::2], strict=True))
        if found["state"] == b"group":
            raise NotFoundError(f"{id} is a group, not a task: 'task-run groups {id}' shows it")
        if found["state"] == b"hold":
            raise NotFoundError(
                f"{id} is code that holds locks, not a task: 'task-run locks' shows them"
            )
        facts = _facts(id, found, await self._needs(id, found["state"]))
        return replace(facts, crash_limit=self._crash_limit)

    async def _needs(self, id: str, state: bytes) -> Needs:
        """What a task that does not run asks of its worker; nothing if its envelope is gone."""
        if state not in (b"queued", b"delayed", b"waiting"):
            return Needs()
        async with server_errors(self._client):
            names = ("name", "b", "v")
            name, kept, format = await self._client.hmget(f"{self._prefix}t:{id}", *names)
            data = await self._client.getrange(f"{self._prefix}b:{id}", 0, HARD_LIMIT_BYTES)
        if kept:
            data = whole_envelope(id, name or b"", kept)
        written = int(format) if format and format.isdigit() else 1
        with suppress(MalformedMessageError):
            envelope = decode_envelope(data)
            return Needs(max(envelope.version, written), envelope.min_version)
        return Needs(written)

    async def _look(self, names: Sequence[str], show: int) -> tuple[list[LockStatus], int]:
        """Some locks, and the last fence before that look."""
        now, fence, *rows = await self._scripts.run("show_locks", show, *names)
        # A row of two is a key of a wrong type.
        return [_lock(row, int(now)) for row in rows if len(row) > 2], int(fence)

    async def _names(self, object_type: str | None) -> set[str]:
        # lock:…, limiter:… and queue:…; few others begin so.
        pattern = f"{literal(self._prefix)}[lq][oiu]*"
        wanted = None if object_type is None else _folded(object_type)
        names = set()
        async with server_errors(self._client):
            async for key in self._client.scan_iter(match=pattern, count=1000):
                name = _lock_of(key.decode(errors="replace").removeprefix(self._prefix))
                if name and wanted in (None, _folded(_object_type(name))):
                    names.add(name)
        return names


def nobody_holds(name: str) -> str:
    """What to say of a lock that is free, or whose name is not written as Redis has it."""
    return (
        f"nobody holds {name}: 'task-run locks' lists what is held; parts of a name are "
        "percent-encoded as shown there (a:b is a%3Ab)"
    )


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgumentsError(
            name, ["is no name of a lock: take it from 'task-run locks', e.g. lock:mutex:job:7"]
        )
    return name


def _lock_of(key: str) -> str | None:
    """The lock that a key belongs to.

    >>> _lock_of("lock:rw:job:7:w"), _lock_of("queue:limiter:conc:job:7"), _lock_of("leader")
    ('lock:rw:job:7', 'limiter:conc:job:7', None)
    """
    if key.startswith("lock:rw:"):
        return key[:-2] if key.endswith((":w", ":r")) else None
    name = key.removeprefix("queue:")
    return name if _NAME.fullmatch(name) else None


def _object_type(name: str) -> str:
    """What kind of object a lock protects.

    >>> _object_type("lock:mutex:job:7"), _object_type("limiter:conc:@lhcb:task:Audit")
    ('job', 'task')
    """
    parts = name.split(":")[2:]
    return parts[1] if parts[0].startswith("@") else parts[0]


def _folded(object_type: str) -> str:
    return object_type.replace("_", "").lower()


def _lock(row: Sequence[Any], now: int) -> LockStatus:
    name, kind, holding, used, limit, window, back, waiting, woken, since, holders, waiters = row
    limiter = kind in (b"C", b"L")
    return LockStatus(
        lock=name.decode(),
        kind=_KINDS[kind.decode()],
        side=_SIDES.get(kind, "") if holding else "",
        holding=holding,
        used=used if limiter else None,
        limit=int(limit) if limit != b"" else None,
        window_seconds=int(window) / 1000 if window != b"" else None,
        back_seconds=_until(back, now) if back else None,
        waiting=waiting,
        woken=woken,
        longest_wait_seconds=_since(since, now) if since else None,
        holders=_holders(holders, now),
        waiters=tuple(
            LockWaiter(id.decode(), task.decode(), _since(first, now) if first else 0.0, told == 1)
            for id, task, first, told in waiters
        ),
    )


def _holders(rows: Sequence[Sequence[Any]], now: int) -> tuple[LockHolder, ...]:
    return tuple(
        LockHolder(
            id=id.decode(),
            task=task.decode(),
            worker=_process(worker, info),
            held_seconds=_since(started, now) if started else None,
            ttl_seconds=_until(expiry, now),
            is_live=live == 1,
            is_left=left == 1,
        )
        for id, expiry, task, worker, info, started, live, left in rows
    )


def _facts(id: str, found: dict[str, Any], needs: Needs) -> Facts:
    now = int(found["now"])
    text = {
        name: value.decode(errors="replace")
        for name, value in found.items()
        if isinstance(value, bytes) and name not in ("ended", "failed")
    }
    if "ended" in found:
        return _ended_facts(id, found["ended"], now)
    due, offset = text.get("due"), int(found.get("offset", 0))
    failed = read_error(found.get("failed"))
    return Facts(
        id=id,
        state=text["state"],
        name=text.get("name", ""),
        needs=needs,
        now=(now - offset) / 1e6,
        stream=text.get("stream", ""),
        used=int(text.get("attempt", 0)),
        error=error_line(failed.error_type, failed.error) if failed else text.get("error", ""),
        crashes=int(text.get("crashes", 0)),
        blocker=text.get("blocker", ""),
        due=(int(due) - offset) / 1e6 if due else None,
        worker=_process(found.get("worker", b""), found.get("info", b"")),
        is_worker_alive=int(text.get("alive_until", 0)) > now,
        running_seconds=_since(found.get("started", found["now"]), now),
        is_parked="parked" in found,
        refusal=_refusal(found, text, now) if "lock" in found else None,
        place=text.get("place", ""),
        ahead=int(text.get("ahead", 0)),
        workers=int(text.get("workers", 0)),
        idle=int(text.get("idle", 0)),
        promoters=int(text.get("promoters", 0)),
        handed_on=int(text.get("handed", 0)),
        peers=tuple(_peer(row) for row in found.get("peers", [])),
        cancel=text.get("cancel", ""),
        start_by=(int(text["start_by"]) - offset) / 1e6 if "start_by" in text else None,
        paused=Pause.decode(text["paused"], text.get("pause", "")) if "paused" in text else None,
        damage=text.get("damage", ""),
    )


def _ended_facts(id: str, value: bytes, now: int) -> Facts:
    ended = parse_ended(value)
    document = ended.document
    error = ""
    if ended.state in ("cancelled", "expired"):
        error = document.error.removeprefix("cancelled ") if document else ""
    elif ended.state != "done":
        reason = document.reason if document else ""
        kind = f"{document.error_type}: {document.error}" if document else "no error is kept"
        error = f"{kind} ({reason})" if reason else kind
    return Facts(id=id, state=ended.state, now=now / 1e6, is_ended=True, error=error)


def _refusal(found: dict[str, Any], text: dict[str, str], now: int) -> Refusal:
    return Refusal(
        lock=text["lock"],
        kind=text["kind"],
        is_held=text.get("held") == "1",
        is_impossible=text.get("impossible") == "1",
        ahead=int(text.get("ahead", 0)),
        first=text.get("first", ""),
        holding=int(text.get("holding", 0)),
        holders=_holders(found.get("holders", []), now),
        used=int(text.get("used", 0)),
        limit=int(text.get("limit", 0)),
        window_seconds=int(text.get("window", 0)) / 1000,
        items=int(text.get("items", 1)),
        back_in=_until(found["back"], now) if "back" in found else None,
    )


def _peer(row: Sequence[Any]) -> Peer:
    worker, info, off, knows, is_known, version = row
    layout = knows.decode().partition("-")[0]
    return Peer(
        name=_process(worker, info),
        off=off.decode(errors="replace"),
        layout=int(layout) if layout.isdigit() else None,
        version=version.decode(errors="replace") if is_known else None,
        build=str(_told(info).get("version", "")),
        sql=str(_told(info).get("sql", "")),
    )


def _process(worker: bytes, info: bytes) -> str:
    """``pid@host`` of a worker if it says so, else its incarnation, or who holds."""
    return str(_told(info).get("name") or worker.decode(errors="replace"))


def _told(info: bytes) -> dict[str, Any]:
    """What a worker says of itself; nothing if that cannot be read."""
    try:
        told = json.loads(info or b"{}")
    except (ValueError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def _since(instant: bytes, now: int) -> float:
    return max(0.0, (now - int(instant)) / 1e6)


def _until(instant: bytes, now: int) -> float:
    return max(0.0, (int(instant) - now) / 1e6)
