"""Read the registered workers: their reports and their deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct

from nonet.base.amounts import format_bytes
from nonet.base.durations import span
from nonet.base.plain import counted
from nonet.stores.connection.redis import AsyncRedis, Scripts
from nonet.stores.connection.unreadable import readable, readable_value

State = Literal["working", "idle", "draining", "vetoing", "silent", "lost"]
# The `off` of a worker that is stopping.
DRAINS = "it drains"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Limits of one script call, so that it never blocks Redis: workers, and tasks of a worker.
_PAGE = 20
_TASKS = 20
# A registration lasts three beats (`Settings.renew_interval`). One of them may be late.
_SILENT_AFTER = 2 / 3


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A delivery that a worker has.

    Attributes:
        task: full class name; empty if the task is gone.
        since: when it was delivered.
    """

    id: str
    task: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A registered worker.

    Attributes:
        worker: incarnation id, unique to this process.
        name: ``pid@host``, which an earlier process may have had too.
        state: ``working``, ``idle``, ``draining``, ``vetoing`` (it fetches nothing, see `off`),
            ``silent`` (a beat is overdue) or ``lost`` (its registration has ended).
        concurrency: its slots.
        running: number of its deliveries; `tasks` lists some of them.
        threads: how many ``def`` tasks it runs at a time; None: its slots are the only limit.
        rss: memory of its process and of its children, in bytes.
        lag_ms: longest stall of its event loop since the previous beat.
        since: start of the process by its own clock.
        off: why it fetches nothing now, or empty.
        held_by, held_seconds: class whose code held the interpreter lock in the last hour, so that
            leases and locks were not renewed, and for how long; 0: none.
        blocked_by, blocked_seconds: class whose code blocked the event loop of this process for a
            second or more in the last ten minutes, and for how long; 0: none.
        fetches_at_most: how many tasks it fetches at once, because larger replies of Redis were
            lost; None: no limit.
        drained_by: who asked it to drain, or empty. It reads that within a second.
        beat_seconds: seconds since its last beat.
        alive: False if its registration expired although it did not unregister.
        loop: implementation of its event loop, ``uvloop`` or ``asyncio``; empty: not reported.
        config: version of the published configuration that it applies; empty: none.
        config_problem: why it does not apply the newest version it has seen; empty if it does.
    """

    worker: str
    name: str
    size: str
    concurrency: int
    version: str
    beat_seconds: float
    alive: bool
    config: str = ""
    config_problem: str = ""
    loop: str = ""
    state: State = "idle"
    running: int = 0
    tasks: tuple[RunningTask, ...] = ()
    rss: int | None = None
    lag_ms: int | None = None
    since: datetime | None = None
    off: str = ""
    drained_by: str = ""
    fetches_at_most: int | None = None
    held_by: str = ""
    held_seconds: float = 0.0
    blocked_by: str = ""
    blocked_seconds: float = 0.0
    threads: int | None = None

    def __str__(self) -> str:
        return self.name or self.worker

    @property
    def slots(self) -> str:
        """How many of its slots are in use, and its threads once they may all be."""
        used = f"{self.running}/{self.concurrency}"
        if self.threads is None or not self.threads < self.running < self.concurrency:
            return used
        return f"{used}, {counted(self.threads, 'thread')}"

    @property
    def memory(self) -> str:
        """Its memory in words; empty: not reported."""
        return "" if self.rss is None else format_bytes(self.rss)

    @property
    def lag(self) -> str:
        """The longest stall of its event loop in words; empty: not reported."""
        return "" if self.lag_ms is None else f"{self.lag_ms} ms"

    @property
    def beat(self) -> str:
        """When it reported last, in words."""
        return f"{span(self.beat_seconds)} ago"

    @property
    def applies(self) -> str:
        """The configuration that it applies, and why not the newest."""
        return ": ".join(part for part in (self.config, self.config_problem) if part)

    @property
    def classes(self) -> str:
        """The classes of its tasks, most frequent first; not all tasks may be known."""
        counts = Counter(task.task or "gone" for task in self.tasks)
        known = [f"{name} {count}" for name, count in counts.most_common(3)]
        return ", ".join(known + ["…"] * (self.running > len(self.tasks) or len(counts) > 3))


class Reported(Struct, frozen=True):
    """The report of a worker with each beat, see `WorkerStatus`.

    Attributes:
        sql: why it cannot write dead letters, or empty.
        keys: ids of its encryption keys.
        threads: how many ``def`` tasks it runs at a time; None: its slots are the only limit.
        tenants: how many attempts run, by tenant; None: tenants are not distinguished.
        held: which code held the interpreter lock last, and for how many seconds.
        blocked: which code blocked the event loop last, and for how many seconds.
    """

    name: str = ""
    size: str | None = None
    concurrency: int = 0
    version: str = ""
    config: str = ""
    config_problem: str = ""
    loop: str = ""
    rss: int | None = None
    lag_ms: int | None = None
    since: float | None = None
    sql: str = ""
    keys: tuple[str, ...] = ()
    tenants: dict[str, int] | None = None
    fetches_at_most: int | None = None
    threads: int | None = None
    held: tuple[str, float] | None = None
    blocked: tuple[str, float] | None = None


_REPORTED = msgspec.json.Decoder(Reported)


async def registered(scripts: Scripts) -> list[WorkerStatus]:
    """Read the registered workers of a namespace, by size and name."""
    names = await scripts.client.zrange(f"{scripts.prefix}workers", 0, -1)
    found: list[WorkerStatus] = []
    # Read pages by name, not by rank, because each beat moves its worker to the end.
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        now, *rows = await scripts.run("show_workers", _TASKS, *page)
        # A worker without a beat has not reported since Redis lost its data, and is soon forgotten.
        beating = ((row[0], row, int(now)) for row in rows if row[3])
        found += readable("workers", "ZREM", beating, _status)
    return sorted(found, key=lambda item: (item.size, item.name, item.worker))


def _status(worker: bytes, row: Sequence[Any], now: int) -> WorkerStatus:
    _, expiry, raw, beat, off, drain, running, tasks = row
    info = reported(worker, raw)
    held_by, held_seconds = info.held or ("", 0.0)
    blocked_by, blocked_seconds = info.blocked or ("", 0.0)
    ends, heard = int(float(expiry)), int(beat)
    name, why = worker.decode(errors="replace"), off.decode(errors="replace")
    drained_by = drain.decode(errors="replace")
    return WorkerStatus(
        worker=name,
        name=info.name,
        size=name.partition("-")[0] if info.size is None else info.size,
        concurrency=info.concurrency,
        version=info.version,
        beat_seconds=(now - heard) / 1e6,
        alive=ends > now,
        config=info.config,
        config_problem=info.config_problem,
        loop=info.loop,
        state=_state(now, heard, ends, DRAINS if drained_by else why, running),
        running=running,
        tasks=tuple(
            RunningTask(
                id.decode(errors="replace"),
                task.decode(errors="replace"),
                _instant(int(since) / 1e6 if since else None),
            )
            for id, task, since in tasks
        ),
        rss=info.rss,
        lag_ms=info.lag_ms,
        since=_instant(info.since),
        off=why,
        drained_by=drained_by,
        fetches_at_most=info.fetches_at_most,
        held_by=held_by,
        held_seconds=held_seconds,
        blocked_by=blocked_by,
        blocked_seconds=blocked_seconds,
        threads=info.threads,
    )


async def known_classes(scripts: Scripts, worker: str) -> dict[str, str]:
    """Return the classes that a worker knows, each with the version of its distribution."""
    knows = await scripts.client.hget(f"{scripts.prefix}w:{worker}", "knows")
    key = f"{scripts.prefix}names:{(knows or b'').decode(errors='replace')}"
    found = await scripts.client.hgetall(key)
    return {
        name.decode(errors="replace"): version.decode(errors="replace")
        for name, version in sorted(found.items())
    }


async def drain(scripts: Scripts, workers: Sequence[str], who: str) -> int:
    """Ask workers, by their ids, to finish their tasks and end; safe to repeat.

    Returns:
        How many were asked for the first time; workers that are gone do not count.
    """
    answer = await scripts.run("drain", who, *workers) if workers else []
    return sum(found == 1 for found in answer)


def _state(now: int, heard: int, ends: int, off: str, running: int) -> State:
    """Return the state of a worker as one word.

    >>> [_state(now, 0, 30, "", 1) for now in (10, 21, 31)]
    ['working', 'silent', 'lost']
    >>> [_state(1, 0, 30, off, 0) for off in ("", DRAINS, "memory is short")]
    ['idle', 'draining', 'vetoing']
    """
    if ends <= now:
        return "lost"
    if now - heard > (ends - heard) * _SILENT_AFTER:
        return "silent"
    if off:
        return "draining" if off == DRAINS else "vetoing"
    return "working" if running else "idle"


async def incarnations(client: AsyncRedis, prefix: str, name: str) -> list[str]:
    """Return the incarnations of registered workers with a name, or `name` as an incarnation."""
    known = await client.zrange(f"{prefix}workers", 0, -1)
    names = await worker_names(
        client, prefix, (worker.decode(errors="replace") for worker in known)
    )
    return [worker for worker, found in names.items() if found == name] or [name]


async def worker_names(client: AsyncRedis, prefix: str, workers: Iterable[str]) -> dict[str, str]:
    """Return the name of each worker by its incarnation, as ``task-run workers`` shows it.

    A worker that Redis has forgotten keeps its incarnation.
    """
    known = sorted({worker for worker in workers if worker})
    if not known:
        return {}
    async with client.pipeline(transaction=False) as pipe:
        for worker in known:
            pipe.hget(f"{prefix}w:{worker}", "info")
        infos = await pipe.execute()
    return {
        worker: worker_name(worker.encode(), info or b"")
        for worker, info in zip(known, infos, strict=True)
    }


def worker_name(worker: bytes, info: bytes) -> str:
    """``pid@host`` of a worker if it reports that, else its incarnation or the holder."""
    return reported(worker, info).name or worker.decode(errors="replace")


def reported(worker: bytes, info: bytes) -> Reported:
    """What a worker reports of itself; empty before its first report."""
    if not info:
        return Reported()
    key = f"w:{worker.decode(errors='replace')}"
    return readable_value(key, "HDEL", "info", lambda: _REPORTED.decode(info), Reported())


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
