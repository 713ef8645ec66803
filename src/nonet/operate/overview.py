"""What is wrong in a namespace now, and what goes on there: ``task-run overview``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from nonet.base.actor import who
from nonet.base.errors import NonetError, NotFoundError, ServerUnreachableError, masked
from nonet.base.streams import Size
from nonet.config.settings import Settings
from nonet.operate.audited import audited
from nonet.operate.lists import Remember, always
from nonet.operate.queues import active_of, streams_of
from nonet.operate.workflows import failed_workflows, stuck_workflows
from nonet.rules.findings.explanation import HANDED_OVER_WITHIN
from nonet.rules.findings.finding import Finding, Seen, with_seen
from nonet.rules.findings.overview import troubles
from nonet.rules.findings.refusal import Waiters
from nonet.rules.findings.situation import Crew, Deaths, Overview, RedisState, Running, Situation
from nonet.rules.findings.throughput import seconds_to_empty
from nonet.rules.fingerprints import fingerprint_of, location_of
from nonet.rules.periodic import EntryStatus
from nonet.rules.permissions import Action
from nonet.rules.reasons import Reason
from nonet.rules.viewing import for_viewer
from nonet.stores.namespace.events import Event
from nonet.stores.namespace.figures import Figures
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.obstacles import known
from nonet.stores.queue.places import TaskFilter
from nonet.stores.queue.results import error_line
from nonet.stores.queue.workers import WorkerStatus
from nonet.stores.stores import Stores
from nonet.tasks.handles import EndedTask

_LOOK_BACK = timedelta(hours=1)
_FAILED = ("dead", "expired")
_CRASHES = (Reason.CRASH, Reason.WORKER_LOST)
_CRASHED = ("TaskCrashed", "MemoryLimitExceeded", "CpuLimitExceeded")
_MOST = 1000  # deaths and events that are counted
_MOST_SUSPECTS = 100  # tasks of lost workers whose classes are read
# A database that is frozen does not answer. An overview must. On a busy machine the imports for SQL
# take seconds.
_SQL_SECONDS = 5.0
_LONGEST = 3
# How old parts may be for callers that remember them.
_WORKERS_SECONDS = 3.0
_SERVER_SECONDS = 5.0
_SLOW_SECONDS = 10.0
_SQL_KEPT_SECONDS = 30.0


async def find(
    stores: Stores, settings: Settings, *, is_viewer: bool = False, remember: Remember = always
) -> Overview:
    """Read what is wrong, and what goes on; see `nonet.Nonet.overview`.

    Args:
        is_viewer: make it of what a viewer sees, see `nonet.rules.viewing`.
        remember: keeps what changes slowly, for callers that read an overview every few seconds.
    """
    situation, figures, workers = await look(stores, settings, remember)
    if is_viewer:
        situation = for_viewer(situation)
    recent = await remember(("throughput",), _SLOW_SECONDS, stores.counts.throughput)
    alive = [worker for worker in workers if worker.alive]
    began = time.perf_counter()
    at = await stores.broker.now()
    round_trip = time.perf_counter() - began
    server = situation.server
    leads = figures.leader and server.leader
    return Overview(
        at=at,
        findings=tuple(await marked(stores, troubles(situation))),
        streams=tuple(situation.streams),
        workers=Counter(worker.size for worker in alive),
        slots=sum(worker.concurrency for worker in alive),
        queued=sum(load.queued for load in situation.streams),
        running=sum(load.running for load in situation.streams),
        waiting=figures.waiting,
        delayed=figures.delayed,
        dying=figures.dying,
        leader=figures.leader.partition("/")[0],
        memory_bytes=int(server.info.get("used_memory", 0)),
        memory_limit=int(server.info.get("maxmemory", 0)),
        longest=await _longest(stores, alive),
        empty_in_seconds=seconds_to_empty(situation.streams, situation.active, recent.class_rates),
        throughput=recent,
        submitted=await remember(("submitted",), _SLOW_SECONDS, stores.counts.submitted),
        crews=tuple(situation.crews),
        leader_age=server.leader_silent if leads else None,
        redis=RedisState.of(server.info, round_trip),
        sql=server.sql,
    )


async def marked(stores: Stores, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the marks of those who have seen them; these go last."""
    try:
        marks = await stores.seen_marks.of([item.identity for item in findings])
    except NonetError:  # a finding says what is wrong with Redis
        return list(findings)
    return with_seen(findings, marks)


@audited(Action.NOTE, "finding {kind} {what}: seen for {lasts}", thing="{kind} {what}")
async def see(
    stores: Stores, settings: Settings, kind: str, what: str, lasts: timedelta
) -> Finding:
    """Mark a finding as seen: until an end it is below the others, for all operators.

    Args:
        kind, what: of the finding.
        lasts: how long; zero: it is no longer seen.

    Raises:
        NotFoundError: there is no such finding now.
    """
    situation, *_ = await look(stores, settings)
    found = [item for item in troubles(situation) if (item.kind, item.what) == (kind, what)]
    if not found:
        text = f"no finding is about {kind} {what} now: 'task-run overview' shows the findings"
        raise NotFoundError(text)
    if lasts:
        mark = Seen(who(), await stores.broker.now() + lasts, found[0].severity)
        await stores.seen_marks.put(found[0].identity, mark, lasts)
        until = f"seen until {mark.until:%Y-%m-%d %H:%M:%SZ}"
    else:
        await stores.seen_marks.remove(found[0].identity)
        mark, until = None, "not seen"
    await stores.events.log("finding-seen", who(), f"{kind} {what}: {until}")
    return replace(found[0], seen=mark)


async def look(
    stores: Stores, settings: Settings, remember: Remember = always
) -> tuple[Situation, Figures, Sequence[WorkerStatus]]:
    """Read the situation of a namespace, and the figures and workers that it is made of."""
    now, wall = await stores.broker.logical_now(), await stores.broker.now()
    reader = _Reader(remember)
    figures = await stores.measures.figures(count_accepted=False)
    workers = await remember(("workers",), _WORKERS_SECONDS, stores.results.workers)
    sql = await remember(("sql",), _SQL_KEPT_SECONDS, lambda: _sql_state(stores, settings))
    kept = await reader.read("durable tasks", lambda: _kept(stores, settings, sql), (0, 0.0))
    sql = reader.problems.pop("durable tasks", sql)  # it may have frozen since it was checked
    inspect = Inspection(stores.broker, settings.namespace).server
    server = await remember(("server",), _SERVER_SECONDS, lambda: inspect(sql))
    deaths = await reader.read("history", lambda: _deaths(stores, now))
    alive = [worker.worker for worker in workers if worker.alive]
    foreign, locked = await reader.read(
        "tasks handed on", lambda: stores.measures.handed_on(alive), ({}, {})
    )
    entries = await reader.read("schedules", stores.periodic.statuses)
    lost = await reader.read("events", lambda: _lost_workers(stores, now, workers))
    situation = Situation(
        server=msgspec.structs.replace(server, sql=sql),
        at=now,
        dying=figures.dying,
        dying_error=await reader.read("dying tasks", lambda: _dying_error(stores, figures), ""),
        kept=kept,
        quarantined=figures.quarantined,
        streams=streams_of(figures),
        active=active_of(figures),
        **_of_workers(workers),
        waiters=await reader.read("locks", lambda: _waiters(stores)),
        pauses=await reader.read("pauses", stores.controls.load, seconds=0),
        deaths=deaths,
        failing=await reader.read("figures", lambda: _failing(stores, deaths)),
        lost_workers=[classes for _, classes in lost],
        lost_since=min((at for at, _ in lost), default=None),
        tenants=await reader.read("tenants", stores.tenants.live, {}),
        foreign=foreign,
        locked=locked,
        paused_entries=[entry for entry in entries if entry.paused],
        late=_late(entries, wall),
        pipelines=await reader.read("pipelines", stores.pipelines.read),
        failed_workflows=await reader.read(
            "failed workflows", lambda: failed_workflows(stores.workflows, now)
        ),
        stuck_workflows=await reader.read(
            "workflows", lambda: stuck_workflows(stores.workflows, now)
        ),
        full=await reader.read("ceilings", lambda: _full(stores), {}),
        unreadable=reader.problems,
    )
    return situation, figures, workers


def _of_workers(workers: Sequence[WorkerStatus]) -> dict[str, Any]:
    """Return the part of a situation that the reports of workers have."""
    return {
        "crews": [_crew(size, workers) for size in Size],
        "stalls": {
            worker.name: (worker.blocked_by, worker.blocked_seconds)
            for worker in workers
            if worker.blocked_seconds
        },
        "holds": {
            worker.name: (worker.held_by, worker.held_seconds)
            for worker in workers
            if worker.held_seconds
        },
        "narrow": {
            worker.name: most
            for worker in workers
            if worker.alive and (most := worker.fetches_at_most) is not None
        },
    }


class _Reader:
    """Reads parts. A part that fails becomes a problem: the others are still shown."""

    def __init__(self, remember: Remember) -> None:
        self.problems: dict[str, str] = {}
        self._remember = remember

    async def read(
        self,
        what: str,
        source: Callable[[], Awaitable[Any]],
        otherwise: Any = (),
        seconds: float = _SLOW_SECONDS,
    ) -> Any:
        try:
            if not seconds:
                return await source()
            return await self._remember(("look", what), seconds, source)
        except (NonetError, TimeoutError) as error:
            self.problems[what] = str(error)
            return otherwise


async def _sql_state(stores: Stores, settings: Settings) -> str:
    try:
        async with _answering(settings):
            return await stores.sql_state()
    except ServerUnreachableError as error:
        return str(error)


@asynccontextmanager
async def _answering(settings: Settings) -> AsyncIterator[None]:
    """Stop waiting for the database after some seconds."""
    try:
        async with asyncio.timeout(_SQL_SECONDS):
            yield
    except TimeoutError:
        where = masked(settings.sql_url())
        problem = f"database {where} does not answer within {_SQL_SECONDS:g} s"
        raise ServerUnreachableError(problem) from None


def _crew(size: str, workers: Iterable[WorkerStatus]) -> Crew:
    live = [worker for worker in workers if worker.size == size and worker.alive]
    reasons = [
        worker.off or ("a heartbeat is overdue" * (worker.state == "silent")) for worker in live
    ]
    return Crew(
        size,
        len(live),
        slots=sum(worker.concurrency for worker in live),
        busy=sum(worker.running for worker in live),
        idle_reason=reasons[0] if live and all(reasons) else "",
    )


async def _dying_error(stores: Stores, figures: Figures) -> str:
    """Class and error of the task that has been dying for longest."""
    if not figures.dying:
        return ""
    page = await stores.results.page(TaskFilter(states=("dying",)), limit=1)
    return f"{page.rows[0].name}, {page.rows[0].error}" if page.rows else ""


async def _kept(stores: Stores, settings: Settings, sql: str) -> tuple[int, float]:
    if sql not in ("current", "ahead"):
        return 0, 0.0
    async with _answering(settings):
        return await (await stores.outbox()).overdue(HANDED_OVER_WITHIN)


async def _waiters(stores: Stores) -> list[Waiters]:
    found = await stores.locks.contended()
    refusals = await known(stores.broker.client, stores.namespace, [it.refusal for it in found])
    return [replace(it, refusal=refusal) for it, refusal in zip(found, refusals, strict=True)]


async def _failing(stores: Stores, deaths: Sequence[Deaths]) -> frozenset[str]:
    """The classes of these deaths of which nothing was done in the last hour."""
    figures = await stores.counts.figures() if deaths else ()
    names = {item.task for item in deaths}
    return frozenset(
        item.name
        for item in figures
        if item.name in names and item.total.failed == item.total.ended
    )


async def _deaths(stores: Stores, now: datetime) -> list[Deaths]:
    """Count the failures of the last hour by their cause."""
    newest: dict[tuple[str, str], tuple[EndedTask, str]] = {}
    first: dict[tuple[str, str], datetime] = {}
    numbers: Counter[tuple[str, str]] = Counter()
    for task in await stores.history.ended(states=_FAILED, since=_LOOK_BACK, limit=_MOST):
        if task.reason == Reason.EXPECTED:
            continue
        location = location_of(task.traceback)
        cause = fingerprint_of(task.name, task.error_type, task.reason, location)
        newest.setdefault((cause, task.state), (task, location))  # they are read newest first
        first[cause, task.state] = task.ended
        numbers[cause, task.state] += 1
    return [
        Deaths(
            task=task.name,
            state=task.state,
            size=task.stream.rpartition(":")[2],
            error=error_line(task.error_type, task.error),
            number=numbers[key],
            id=task.id,
            seconds_ago=(now - task.ended).total_seconds(),
            first_ago=(now - first[key]).total_seconds(),
            cause=key[0],
            location=location,
            is_crash=task.reason in _CRASHES or task.error_type in _CRASHED,
        )
        for key, (task, location) in newest.items()
    ]


async def _lost_workers(
    stores: Stores, now: datetime, workers: Iterable[WorkerStatus]
) -> list[tuple[datetime, list[str]]]:
    """Return when each worker died, and the classes that ran in it.

    A worker that was only frozen has registered again, and does not count.
    """
    alive = {worker.name: worker.since for worker in workers if worker.alive}
    events = await stores.events.last(_MOST, kind="worker-lost", since=now - _LOOK_BACK)
    lost = [(event.at, _tasks_of(event)) for event in events if not _is_back(event, alive)]
    ids = list(dict.fromkeys(id for _, tasks in lost for id in tasks))[:_MOST_SUSPECTS]
    names = {item.id: item.name for item in await stores.results.statuses(ids)}
    if ids:
        failed = await stores.history.ended(states=_FAILED, since=_LOOK_BACK, limit=_MOST)
        names |= {task.id: task.name for task in failed}
    return [(at, [names[id] for id in tasks if id in names]) for at, tasks in lost]


def _tasks_of(lost: Event) -> list[str]:
    """The ids of the first tasks of a worker that died."""
    return lost.text.partition(": ")[2].partition(" and ")[0].split(", ")


def _is_back(lost: Event, alive: Mapping[str, datetime | None]) -> bool:
    """Whether the worker that was reported lost lives, and not a new one with its name."""
    since = alive.get(lost.text.partition(" died ")[0])
    return since is not None and since < lost.at


def _late(entries: Iterable[EntryStatus], now: datetime) -> dict[str, float]:
    """The seconds by which the most overdue entry of each class is late."""
    late: dict[str, float] = {}
    for entry in entries:
        # With overlap: queue an entry waits for its last task, and is not late.
        is_held = entry.paused or entry.held_back or entry.last_state
        if entry.enabled and not is_held and entry.next is not None and entry.next < now:
            seconds = (now - entry.next).total_seconds()
            late[entry.task] = max(seconds, late.get(entry.task, 0.0))
    return late


async def _full(stores: Stores) -> dict[str, int]:
    return {
        load.scope: load.ceiling
        for load in await stores.ceilings.loads()
        if load.ceiling is not None and load.active >= load.ceiling
    }


async def _longest(stores: Stores, workers: Iterable[WorkerStatus]) -> tuple[Running, ...]:
    """The tasks that run longest."""
    now = await stores.broker.logical_now()
    tasks = [(task.since or now, worker.name, task) for worker in workers for task in worker.tasks]
    rows = sorted(tasks, key=lambda item: item[0])[: 3 * _LONGEST]
    live = {item.id: item for item in await stores.results.statuses([row[2].id for row in rows])}
    found: list[Running] = []
    for since, worker, task in rows:
        status = live.get(task.id)
        if status is not None and status.state == "running":  # a dying one is a finding
            seconds = (now - since).total_seconds()
            progress = str(status.progress or "")
            found.append(Running(task.id, task.task, worker, seconds, progress))
    return tuple(found[:_LONGEST])
