"""What a namespace reports of itself, and what an overview of it shows. Pure data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from nonet.rules.findings.finding import Finding
from nonet.rules.findings.refusal import Waiters
from nonet.rules.findings.servers import Server
from nonet.rules.findings.throughput import StreamLoad, Throughput
from nonet.rules.pauses import Pause
from nonet.rules.periodic import EntryStatus
from nonet.rules.pipelines import PipelineStatus
from nonet.rules.workflows import FailedWorkflows, StuckWorkflows

_LONGEST_ERROR = 120
_LONGEST_AGO = 3e8


@dataclass(frozen=True, slots=True)
class Deaths:
    """Tasks of one class that failed for good for one cause.

    Attributes:
        cause: what they have in common, see `nonet.rules.fingerprints`.
        location: where in the user's code the error was raised; empty: unknown.
        is_crash: their processes died.
        error: the last error in one line; `id` is that of its task.
        seconds_ago: time since the last of them; `first_ago` since the first of the last hour.
        state: ``dead`` or ``expired``.
        size: size of the workers that they need.
    """

    task: str
    error: str
    number: int
    id: str
    seconds_ago: float
    state: str = "dead"
    size: str = ""
    cause: str = ""
    location: str = ""
    is_crash: bool = False
    first_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class Crew:
    """The live workers of one size.

    Attributes:
        slots: how many tasks they run at a time; `busy` of these are taken.
        idle_reason: why none of them takes tasks; empty if one does.
    """

    size: str
    live: int
    slots: int = 0
    busy: int = 0
    idle_reason: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a namespace reports of itself.

    Attributes:
        server: what Redis, SQL and the daemons report.
        at: when it was read.
        dying: tasks whose dead letter is not in SQL yet; `dying_error` is class and error of one.
        kept: durable tasks that are overdue for their hand-over to Redis, and the age of the
            oldest in seconds.
        quarantined: entries of the quarantine.
        streams: those that have tasks.
        crews: one for each size.
        waiters: of the locks and limiters that tasks wait for.
        active: tasks that have not ended, by class and stream.
        deaths: of the last hour.
        failing: classes with tasks that failed in the last hour, and none that was done.
        lost_workers: for each worker that died in the last hour the classes that ran in it, as far
            as they are known; the first of them died at `lost_since`.
        foreign: tasks that workers have handed on and no live worker takes, by class and size.
        locked: why a worker could not decrypt the oldest of these, by class and size.
        paused_entries: periodic entries that operators paused, by themselves.
        late: periodic entries by class, and the seconds that they are overdue.
        full: scopes whose ceiling is reached, with the ceiling.
        tenants: tasks that have not ended, by tenant.
        stalls: workers whose event loop was blocked lately, with the class (empty: not known) and
            the seconds.
        holds: workers whose interpreter lock was held, each with the class that held it (empty:
            unknown) and the seconds.
        narrow: workers that lose larger replies, each with the most tasks that it fetches at once.
        pipelines: what the processes that run pipelines report.
        failed_workflows: workflows that failed within the last hour, by title, the newest first.
        stuck_workflows: workflows that have been submitted or resumed for over a minute, by state.
        unreadable: what could not be read, with the error.
    """

    server: Server
    at: datetime = datetime(1970, 1, 2, tzinfo=UTC)
    dying: int = 0
    dying_error: str = ""
    kept: tuple[int, float] = (0, 0.0)
    quarantined: int = 0
    streams: Sequence[StreamLoad] = ()
    crews: Sequence[Crew] = ()
    waiters: Sequence[Waiters] = ()
    pauses: Sequence[Pause] = ()
    active: Mapping[tuple[str, str], int] = field(default_factory=dict)
    deaths: Sequence[Deaths] = ()
    failing: Collection[str] = ()
    lost_workers: Sequence[Sequence[str]] = ()
    lost_since: datetime | None = None
    tenants: Mapping[str, int] = field(default_factory=dict)
    foreign: Mapping[tuple[str, str], int] = field(default_factory=dict)
    locked: Mapping[tuple[str, str], str] = field(default_factory=dict)
    paused_entries: Sequence[EntryStatus] = ()
    late: Mapping[str, float] = field(default_factory=dict)
    full: Mapping[str, int] = field(default_factory=dict)
    stalls: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    holds: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    narrow: Mapping[str, int] = field(default_factory=dict)
    pipelines: Sequence[PipelineStatus] = ()
    failed_workflows: Sequence[FailedWorkflows] = ()
    stuck_workflows: Sequence[StuckWorkflows] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def ago(self, seconds: float) -> datetime:
        """The time some seconds before it was read, which a damaged key may exaggerate."""
        return self.at - timedelta(seconds=min(seconds, _LONGEST_AGO))


def brief(error: str) -> str:
    """Return the start of the first line: the text of an author's error may be long."""
    line = error.partition("\n")[0]
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs.

    Attributes:
        seconds: time since its delivery.
        progress: what it reported last, or empty.
    """

    id: str
    task: str
    worker: str
    seconds: float
    progress: str = ""


@dataclass(frozen=True, slots=True)
class RedisState:
    """The server of a namespace.

    Attributes:
        version, role, policy: as INFO reports them; empty without permission. `policy` is what
            Redis does when its memory is full.
        persistence: ``AOF``, ``snapshots`` or ``none``.
        round_trip: seconds of one command.
    """

    version: str = ""
    role: str = ""
    policy: str = ""
    persistence: str = ""
    round_trip: float = 0.0

    @classmethod
    def of(cls, info: Mapping[str, Any], round_trip: float) -> RedisState:
        """Read the answer to INFO.

        >>> RedisState.of({"redis_version": "7.4", "aof_enabled": 1}, 0.001).persistence
        'AOF'
        """
        kept = "snapshots" if info.get("rdb_saves") else "none"
        return cls(
            str(info.get("redis_version", "")),
            str(info.get("role", "")),
            str(info.get("maxmemory_policy", "")),
            ("AOF" if info.get("aof_enabled") else kept) if info else "",
            round_trip,
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """What is wrong in a namespace, and what goes on there.

    Attributes:
        at: the time of the server.
        findings: what is wrong, worst first; `hint` and `command` are the next step.
        streams: those that have tasks.
        empty_in_seconds: estimate until the queued tasks of a stream have started; a stream is
            missing if there is no estimate.
        throughput: what workers ended in the last minutes.
        submitted: tasks a second that were submitted lately; None: unknown. They are counted while
            there is a ``task-web``, or something scrapes the metrics of a scheduler, and noted by
            the scheduler that leads.
        workers: live ones by size; `slots` is how many tasks they run at a time.
        queued, running, waiting, delayed, dying: how many tasks are in each state.
        crews: the live workers of each size.
        leader: the leading scheduler; empty: none leads.
        leader_age: seconds since its last tick; None: none leads.
        redis: the server.
        sql: state of the tables, see `nonet.rules.findings.servers.Server`.
        memory_bytes, memory_limit: of Redis; a limit of 0 is none.
        longest: the tasks that run longest.

    Example:
        found = await app.overview()
        for finding in found.findings:
            print(finding.problem, "->", finding.next_step)
    """

    at: datetime
    findings: tuple[Finding, ...]
    streams: tuple[StreamLoad, ...]
    workers: Mapping[str, int]
    slots: int
    queued: int
    running: int
    waiting: int
    delayed: int
    dying: int
    leader: str
    memory_bytes: int
    memory_limit: int
    longest: tuple[Running, ...] = ()
    empty_in_seconds: Mapping[str, float] = field(default_factory=dict)
    throughput: Throughput | None = None
    submitted: float | None = None
    crews: tuple[Crew, ...] = ()
    leader_age: float | None = None
    redis: RedisState = RedisState()
    sql: str = ""
