"""The registered workers: what they say of themselves, and what they have in hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nonet.stores.connection.redis import Scripts, server_errors

# What a worker says that takes nothing because it is about to end.
DRAINS = "it drains"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Workers that one script looks at, so that it never holds up Redis; and how many tasks it names.
_PAGE = 20
_TASKS = 20
# Of three beats in the time that a registration lasts, one may be late.
_SILENT_AFTER = 2 / 3


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A delivery in the hands of a worker.

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
        worker: incarnation id; no two processes ever have the same one.
        name: ``pid@host``, which another process may have had before.
        state: ``working``, ``idle``, ``draining``, ``vetoing`` (it takes nothing, `off` says why),
            ``silent`` (a beat is overdue) or ``lost`` (its registration has ended).
        concurrency: its slots.
        running: how many deliveries it has; `tasks` names some of them.
        rss: memory of its process and of its children, in bytes.
        lag_ms: for how long its event loop was not heard of, at most, since the beat before.
        since: start of the process by its own clock.
        off: why it takes nothing now, or empty.
        beat_seconds: since its last beat.
        alive: False if it has not unregistered and its registration ran out.
        loop: who made its event loop, ``uvloop`` or ``asyncio``; empty: it has not said so.
        config: version of the published configuration that it applies; empty: none.
        config_problem: why it does not apply the newest one; empty: it does, as far as it knows.
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
    state: str = ""
    running: int = 0
    tasks: tuple[RunningTask, ...] = ()
    rss: int | None = None
    lag_ms: int | None = None
    since: datetime | None = None
    off: str = ""


async def registered(scripts: Scripts) -> list[WorkerStatus]:
    """The registered workers of a namespace, by size and name."""
    async with server_errors(scripts.client):
        names = await scripts.client.zrange(f"{scripts.prefix}workers", 0, -1)
    found: list[WorkerStatus] = []
    # Pages of names, not of ranks: each beat moves its worker to the end.
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        now, *rows = await scripts.run("show_workers", _TASKS, *page)
        # Without a beat: not heard of since Redis lost its data, and about to be forgotten.
        found += [_status(row, int(now)) for row in rows if row[3]]
    return sorted(found, key=lambda item: (item.size, item.name, item.worker))


def _status(row: Sequence[Any], now: int) -> WorkerStatus:
    worker, expiry, said, beat, off, running, tasks = row
    info = _read(said)
    ends, heard = int(float(expiry)), int(beat)
    name, why = worker.decode(errors="replace"), off.decode(errors="replace")
    return WorkerStatus(
        worker=name,
        name=info.get("name", ""),
        size=info.get("size", name.partition("-")[0]),
        concurrency=info.get("concurrency", 0),
        version=info.get("version", ""),
        beat_seconds=(now - heard) / 1e6,
        alive=ends > now,
        config=info.get("config", ""),
        config_problem=info.get("config_problem", ""),
        loop=info.get("loop", ""),
        state=_state(now, heard, ends, why, running),
        running=running,
        tasks=tuple(
            RunningTask(id.decode(), task.decode(), _instant(int(since) / 1e6 if since else None))
            for id, task, since in tasks
        ),
        rss=info.get("rss"),
        lag_ms=info.get("lag_ms"),
        since=_instant(info.get("since")),
        off=why,
    )


def _state(now: int, heard: int, ends: int, off: str, running: int) -> str:
    """One word for what a worker does.

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


def _read(said: bytes) -> dict[str, Any]:
    try:
        info = json.loads(said or b"{}")
    except ValueError:
        return {}
    return info if isinstance(info, dict) else {}


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
