"""What is wrong with a namespace or its server: from facts to findings. Pure.

What the rules say must hold at every instant, up to what the death of a process leaves behind: that
is mended within a lease and a sweep, so that only what outlives them is a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Settings of a namespace may differ by process; what is this much overdue, nobody sees to.
_LATE_SECONDS = 10.0
_CLOCK_SECONDS = 5.0
_FULL, _ALMOST_FULL = 0.95, 0.8
_OLDEST_REDIS = (7, 0)
# Settings of Sentinel: a submit waits for 14 s, of which a failover itself takes 2; a busy machine
# keeps a server from answering for a second; Sentinel looks at replicas every 10 s.
_LONG_SILENCE_SECONDS, _SHORT_SILENCE_SECONDS = 10.0, 3.0
_LONG_MISLED_SECONDS = 20.0
_FOREIGN = "somebody else wrote it: delete it, or use another NONET_NAMESPACE"
_UNEXPIRING = "somebody took its time to live away: give it one again (EXPIRE), or delete it"

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be.

    Attributes:
        kind: a word for programs: ``task``, ``lock``, ``queue``, ``group``, ``worker``, ``key``,
            ``stream``, ``count``, ``server``, ``sql``, ``scheduler``.
        what: which one.
        problem: what is wrong with it.
        hint: the next step.
    """

    kind: str
    what: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Replication:
    """Settings that decide how soon another server has the place of a dead one. Times in seconds.

    Attributes:
        sync_delay: how long a full sync waits for more replicas; None: CONFIG GET is refused.
        service: what the Sentinels call it; empty: there are none.
        down_after: of each Sentinel: how long a server is silent until it counts as down.
        failover_timeout: of each Sentinel: how long a replica may follow another master.
    """

    sync_delay: float | None = 0.0
    service: str = ""
    down_after: Sequence[float] = ()
    failover_timeout: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """What Redis and the daemons say of themselves.

    Attributes:
        info: the answer to INFO.
        denied: commands that this user may not use.
        clock_ahead: seconds by which the clock of Redis is ahead of the one here.
        leader: who leads, or empty.
        late_seconds: how long the first task that is due has been so; 0: none is.
        unserved: sizes with queued tasks, but without a worker.
        failed_hooks: start-up hooks that have not succeeded, with what went wrong.
        slow_hooks: start-up hooks that run for long.
        broken: periodic entries that the leader could not fire at the last try, and why.
        config_problem: why the source of the configuration is not applied as it is now.
        remembers: where the leader keeps what must outlive Redis: ``SQL``, ``process`` (in itself
            alone), or empty if it does not say.
        quarantined: entries of the quarantine.
        dying: tasks that wait for SQL.
        sql: state of its tables, or why it cannot be asked; empty if it is not used, or makes
            its tables itself.
        replication: how servers are replaced; None: there are no replicas.
    """

    info: Mapping[str, Any]
    denied: Sequence[str] = ()
    clock_ahead: float = 0.0
    leader: str = ""
    late_seconds: float = 0.0
    unserved: Sequence[str] = ()
    failed_hooks: Mapping[str, str] = field(default_factory=dict)
    slow_hooks: Sequence[str] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    config_problem: str = ""
    remembers: str = ""
    quarantined: int = 0
    dying: int = 0
    sql: str = ""
    replication: Replication | None = None


def examine(row: Row, *, lease: float) -> Finding | None:
    """What is wrong with what a row of the script ``inspect`` tells, or None.

    Args:
        row: as the header of the script says, text decoded; or ``count``, a stream, how many
            tasks of it are counted, and how many records there are.
        lease: seconds after which the longest lease of a dead holder has ended.
    """
    return _RULES[row[0]](row[1:], lease)


@dataclass(frozen=True, slots=True)
class _Record:
    """A row ``record`` of the script, by its names."""

    id: str
    state: str
    gen: str
    owner: str
    is_registered: int
    due: str
    entry_gen: str
    holder: str
    has_waited: int
    kept_us: str
    stream: str

    @property
    def is_queued(self) -> bool:
        return self.entry_gen == self.gen

    @property
    def is_pending(self) -> bool:
        """Whether the worker that runs it has it by the entry that it was given."""
        return bool(self.is_registered) and bool(self.entry_gen) and self.holder == self.owner

    def is_kept(self, lease: float) -> bool:
        """Whether its entry is gone, and its worker has said a moment ago that it runs it."""
        if not self.is_registered or self.entry_gen or not self.kept_us:
            return False
        return int(self.kept_us) / 1e6 < lease


def _record(row: Row, lease: float) -> Finding | None:
    record = _Record(*row)
    problem = _misplaced(record, lease)
    if not problem:
        return None
    hint = "a worker of its size puts it back; does one run?"
    return Finding("task", record.id, problem, hint)


def _misplaced(record: _Record, lease: float) -> str:
    """In which place a record is missing, or is although it should not."""
    state = record.state
    if record.due and not math.isfinite(float(record.due)):
        return f"is due at {record.due}, which is no time"
    if state in ("delayed", "waiting"):
        if not record.due:
            return f"is {state}, but nobody will look at it"
        return f"is {state}, and in a stream, too" if record.is_queued else ""
    if state == "queued":
        if not record.is_queued:
            return "is queued, but in no stream"
        if record.holder:
            return f"was read by worker {record.holder}, which does not run it"
        # A woken task is due when its reservation ends, and when it comes of age.
        is_twice = record.due and not record.has_waited
        return "is queued, and delayed, too" if is_twice else ""
    if state == "dying":
        is_somewhere = record.due or record.is_queued or record.is_registered
        return "" if is_somewhere else "is dying, but in no place"
    if record.is_pending or record.is_kept(lease):
        return ""
    return f"runs on worker {record.owner or '(none)'}, which does not have it"


def _damaged(row: Row, _: float) -> Finding | None:
    id, problem = row
    hint = "a worker puts it into the quarantine; does one run? Then: task-run quarantine list"
    return Finding("task", id, f"is damaged: {problem}", hint)


def _left(row: Row, lease: float) -> Finding | None:
    id, task, worker, left_us = row
    left = int(left_us) / 1e6
    if left <= lease:
        return None
    problem = f"its code ({task} on {worker}) has ignored its cancellation for {left:.0f} s"
    hint = f"restart worker {worker}: until then the code keeps its locks"
    return Finding("task", id, problem, hint)


def _lease(row: Row, _: float) -> Finding | None:
    lock, owner, left_us, is_live = row
    left = int(left_us) / 1e6
    if is_live or left <= 0:
        return None
    problem = f"is held by {owner}, which is no live attempt, for {left:.0f} s more"
    return Finding("lock", f"{lock} {owner}", problem, "task-run locks release … --force")


def _waiter(row: Row, _: float) -> Finding | None:
    lock, id, state, has_places = row
    if state in ("waiting", "queued") and has_places:
        return None
    problem = f"stands in the queue, but is {state or 'gone'}"
    return Finding("queue", f"{lock} {id}", problem, "the next promotion leaves it out")


def _group(row: Row, _: float) -> Finding | None:
    id, state, pending, parent, has_parent, ttl = row
    problem, hint = "", f"a worker ends it; does one run? task-run groups {id} shows it"
    if state not in ("building", "sealed", "fired"):
        problem = f"has the state {state!r}"
    elif state == "sealed" and not pending:
        problem = "waits for no child, and has not fired"
    elif state == "building" and parent and not has_parent and ttl == -1:
        problem = f"was opened by task {parent}, which has ended without sealing it"
    elif state == "fired" and ttl == -1:
        problem, hint = "has fired, and never expires", _UNEXPIRING
    return Finding("group", id, problem, hint) if problem else None


def _child(row: Row, _: float) -> Finding | None:
    group, state, child, missing = row
    if state == "building":  # they are being submitted
        return None
    what = f"task {child}" if missing == 1 else f"task {child} and {missing - 1} others"
    subject = "waits" if state else "is gone itself, and waited"
    hint = f"a worker ends the group; does one run? task-run groups {group} shows it"
    return Finding("group", group, f"{subject} for {what}, which nobody has", hint)


def _worker(row: Row, lease: float) -> Finding | None:
    worker, gone_us = row
    gone = int(gone_us) / 1e6
    if gone <= 3 * lease:
        return None
    hint = "a worker of any size forgets it, one of its size takes its tasks; does one run?"
    return Finding("worker", worker, f"is gone for {gone:.0f} s, and not forgotten", hint)


def _member(row: Row, _: float) -> Finding | None:
    stream, consumer, is_registered, pending = row
    if is_registered:
        return None
    problem = f"has {pending} deliveries of {stream}, but is not registered"
    return Finding("worker", consumer, problem, "a worker of that size takes them over")


def _idle(row: Row, _: float) -> Finding | None:
    size, worker, is_registered = row
    if is_registered:
        return None
    problem = f"stands on the stack of idle {size} workers, but is gone"
    return Finding("worker", worker, problem, "a worker of that size forgets it; does one run?")


def _entry(row: Row, _: float) -> Finding | None:
    stream, entry, id, is_meant, has_record = row
    if is_meant:
        return None
    is_where = "elsewhere" if has_record else "not there"
    problem = f"points to task {id or '(none)'}, which is {is_where}"
    return Finding("stream", f"{stream} {entry}", problem, "the next worker that reads it drops it")


def _orphan(row: Row, _: float) -> Finding | None:
    hint = "a worker drops it; does one run?"
    return Finding("task", row[0], "is due, but has no record", hint)


def _count(row: Row, _: float) -> Finding | None:
    stream, said, met = row
    hint = "the walk of the workers puts it right; does one run?"
    return Finding("count", stream, f"{said} tasks are counted, but there are {met}", hint)


def _part(row: Row, _: float) -> Finding | None:
    hint = "nobody needs it: delete it"
    return Finding("key", row[0], "belongs to a task that has no record", hint)


def _lasting(row: Row, _: float) -> Finding | None:
    return Finding("key", row[0], "never expires", _UNEXPIRING)


def _type(row: Row, _: float) -> Finding | None:
    return Finding("key", row[0], f"is not what its name says ({row[1]})", _FOREIGN)


def _garbage(row: Row, _: float) -> Finding | None:
    return Finding("key", row[0], f"holds {row[1]!r}, which Nonet never writes", _FOREIGN)


def _unknown(row: Row, _: float) -> Finding | None:
    return Finding("key", row[0], "is no key of Nonet", "use another NONET_NAMESPACE for it")


_RULES: Mapping[str, Callable[[Row, float], Finding | None]] = {
    "record": _record,
    "damaged": _damaged,
    "left": _left,
    "lease": _lease,
    "waiter": _waiter,
    "group": _group,
    "child": _child,
    "part": _part,
    "lasting": _lasting,
    "type": _type,
    "garbage": _garbage,
    "unknown": _unknown,
    "worker": _worker,
    "member": _member,
    "idle": _idle,
    "entry": _entry,
    "orphan": _orphan,
    "count": _count,
}


def examine_server(server: Server) -> tuple[list[Finding], list[Finding]]:
    """What is wrong with the server and the daemons, and what somebody should know of."""
    problems = [*refusals(server.info, server.denied), *_troubles(server)]
    return problems, [*_remarks(server), *_slow_failover(server.replication or Replication())]


def refusals(info: Mapping[str, Any], denied: Sequence[str]) -> list[Finding]:
    """Why no daemon should start on this server.

    Args:
        info: the answer to INFO; what it lacks is not judged.
        denied: commands that this user may not use.
    """
    found = []
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < _OLDEST_REDIS:
        hint = "install Redis 7.0 or newer, or Valkey 8"
        found.append(Finding("server", "version", f"Redis {version} is too old", hint))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        problem = f"maxmemory-policy is {policy}: Redis may drop tasks and locks to make room"
        hint = "CONFIG SET maxmemory-policy noeviction"
        found.append(Finding("server", "eviction", problem, hint))
    if denied:
        names = " ".join(f"+{name}" for name in denied)
        problem = f"this user may not use {', '.join(denied)}"
        found.append(Finding("server", "permissions", problem, f"ACL SETUSER … {names}"))
    return found


_TABLES = {
    "absent": (
        "absent: neither dead letters nor durable tasks can be kept",
        "task-run db upgrade",
    ),
    "behind": ("behind this installation", "task-run db upgrade"),
}
# Of what else the tables, or who asks for them, have said.
REPAIR_SQL = "repair the database or NONET_DB_URL; then task-run db check"


def examine_outbox(number: int, seconds: float) -> Finding | None:
    """What is wrong with durable tasks.

    Args:
        number: of those that are in SQL and should have been handed over to Redis.
        seconds: since the submission of the oldest of them.
    """
    if not number:
        return None
    what = "1 durable task is" if number == 1 else f"{number} durable tasks are"
    problem = f"{what} not handed over since {seconds:.0f} s"
    hint = "start task-scheduler; if one leads, its log says why"
    return Finding("scheduler", "durable tasks", problem, hint)


def _troubles(server: Server) -> list[Finding]:
    info, found = server.info, []
    most = int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0)) / most if most else 0.0
    if used > _FULL:
        problem = f"{used:.0%} of maxmemory are used: submits are refused, or will be soon"
        found.append(Finding("server", "memory", problem, "raise maxmemory, or add workers"))
    for name, what in (
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            problem = f"{what} failed: Redis may refuse to write"
            found.append(Finding("server", "persistence", problem, "look at its disk and log"))
    if server.late_seconds > _LATE_SECONDS:
        problem = f"the next task is due since {server.late_seconds:.0f} s, and nobody promotes"
        found.append(Finding("scheduler", "promotion", problem, "start task-scheduler"))
    for hook, reason in server.failed_hooks.items():
        hint = "repair what it names, it is tried again; task-run events --kind startup-hook"
        found.append(Finding("scheduler", hook, f"start-up hook failed: {reason}", hint))
    for entry, reason in server.broken.items():
        hint = f"task-run schedules show {entry.partition('|')[0]}"
        found.append(Finding("scheduler", entry, f"periodic entry cannot be fired: {reason}", hint))
    if server.config_problem:
        first, *more = server.config_problem.splitlines()
        problem = f"not applied as it is now, the last good one stays: {first}"
        problem += f" (and {len(more)} more)" if more else ""
        found.append(Finding("scheduler", "configuration", problem, "task-run config status"))
    if server.sql not in ("", "current", "ahead"):
        told = _TABLES.get(server.sql, (server.sql, REPAIR_SQL))
        found.append(Finding("sql", "tables", *told))
    return found


def _remarks(server: Server) -> list[Finding]:
    found = []
    most = int(server.info.get("maxmemory", 0))
    used = int(server.info.get("used_memory", 0)) / most if most else 0.0
    if not most:
        problem = "maxmemory is not set: a full machine, not an error, ends a backlog"
        found.append(Finding("server", "memory", problem, "CONFIG SET maxmemory …"))
    elif _ALMOST_FULL < used <= _FULL:  # above, it is a problem
        problem = f"more than {_ALMOST_FULL:.0%} of maxmemory are used"
        found.append(Finding("server", "memory", problem, "raise maxmemory, or add workers"))
    has_aof = int(server.info.get("aof_enabled", 1))
    if not has_aof:
        problem = "appendonly is off: a restart loses what was queued since the last snapshot"
        found.append(Finding("server", "persistence", problem, "fine if that may be lost"))
    if abs(server.clock_ahead) > _CLOCK_SECONDS:
        problem = f"the clock of Redis is {server.clock_ahead:+.1f} s from the one here"
        found.append(Finding("server", "clock", problem, "at_time= is meant by the clock of Redis"))
    if not server.leader:
        problem = (
            "nobody leads: no periodic task is submitted, no durable task handed over, "
            "no start-up hook called, no limit of the configuration applied"
        )
        found.append(Finding("scheduler", "leader", problem, "start task-scheduler"))
    if server.remembers == "process":
        problem = "what fired last and what is paused is remembered by the leader only"
        hint = "set NONET_DB_URL of the schedulers, so that it outlives Redis and the leader"
        found.append(Finding("scheduler", "memory", problem, hint))
    for hook in server.slow_hooks:
        hint = "its application knows why"
        problem = "this start-up hook runs for more than a minute; those after it wait"
        found.append(Finding("scheduler", hook, problem, hint))
    for size in server.unserved:
        problem = "tasks are queued, and no worker of this size is alive"
        found.append(Finding("worker", size, problem, f"task-worker --size {size}"))
    if server.quarantined:
        problem = f"{server.quarantined} entries"
        found.append(Finding("stream", "quarantine", problem, "task-run quarantine list"))
    if server.dying:
        problem = f"{server.dying} dead tasks wait for SQL"
        found.append(Finding("sql", "dead letters", problem, "task-run list --state dying"))
    if server.sql == "ahead":
        problem = "a newer release has migrated them; this one goes on with them"
        hint = "fine after a roll-back; else upgrade this installation"
        found.append(Finding("sql", "tables", problem, hint))
    return found


def _slow_failover(told: Replication) -> list[Finding]:
    """Settings by which a failover takes longer than it must.

    Measured on Redis 7.0: see docs/how-to/prepare-redis.md, "How long a failover takes".
    """
    found: list[tuple[str, str, str]] = []
    name = "repl-diskless-sync-delay"
    if told.sync_delay is None:
        problem = "was not checked: CONFIG GET is refused"
        found.append((name, problem, f"CONFIG GET {name} as an administrator; 0 is best"))
    elif told.sync_delay > 0:
        problem = (
            f"is {told.sync_delay:g}: a replica that needs a full sync after a failover waits "
            f"{told.sync_delay:g} s for it"
        )
        found.append((name, problem, f"CONFIG SET {name} 0, on each server; then CONFIG REWRITE"))
    name, change = "down-after-milliseconds", f"SENTINEL SET {told.service}"
    longest, shortest = max(told.down_after, default=0.0), min(told.down_after, default=math.inf)
    if longest > _LONG_SILENCE_SECONDS:
        problem = (
            f"is {longest * 1000:g}: a dead master is replaced after {longest:g} s, and "
            "submits that wait for it fail after 14 s"
        )
        found.append((name, problem, f"{change} {name} 5000, on each Sentinel"))
    elif shortest < _SHORT_SILENCE_SECONDS:
        problem = (
            f"is {shortest * 1000:g}: a server that is busy for {shortest:g} s counts as down, and "
            "a replica that does so during a failover follows the dead master meanwhile"
        )
        found.append((name, problem, f"{change} {name} 5000, on each Sentinel"))
    name, longest = "failover-timeout", max(told.failover_timeout, default=0.0)
    if longest > _LONG_MISLED_SECONDS:
        problem = (
            f"is {longest * 1000:g}: a replica that counts as down during a failover follows the "
            f"dead master for {longest:g} s more and confirms nothing"
        )
        found.append((name, problem, f"{change} {name} 10000, on each Sentinel"))
    return [Finding("server", *item) for item in found]
