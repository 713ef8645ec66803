"""Turns facts about Redis, SQL and the daemons of a namespace into findings. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from nonet.rules.findings import remedies
from nonet.rules.findings.finding import Finding

# A due task waits at most a second for its promotion.
_LATE_SECONDS = 10.0
_CLOCK_SECONDS = 5.0
_FULL, _ALMOST_FULL = 0.95, 0.8
_OLDEST_REDIS = (7, 0)
# A submit waits 14 s for a failover, and the failover itself takes 2 s of that. A busy machine can
# silence a server for a second. Sentinel reads the state of replicas every 10 s.
_LONG_SILENCE_SECONDS, _SHORT_SILENCE_SECONDS = 10.0, 3.0
_LONG_MISLED_SECONDS = 20.0

# What to do if Redis refuses to write, by the code of its reply.
_WAYS_OUT = {
    "MISCONF": "check the disk and the log of Redis",
    "NOREPLICAS": "start the replicas of Redis again: INFO replication",
    "READONLY": "point NONET_REDIS_URL to the master, or use redis+sentinel://",
}

# Errors that a refusing Redis causes elsewhere.
_REFUSED = re.compile(r"BrokerFullError|out of memory|\b(OOM|MISCONF|NOREPLICAS|READONLY)\b")
REFUSING, LEADERLESS = "Redis refuses writes", "no scheduler leads"
"""Causes, see `Finding.cause`."""

_RAISE_MEMORY = "raise maxmemory, or add workers"
REPAIR_SQL = "repair the database or NONET_DB_URL, then check it"
_TABLES = {
    "absent": "do not exist: neither dead letters nor durable tasks can be stored",
    "behind": "are older than this installation",
}


class Replication(Struct, frozen=True):
    """Settings that decide how soon a replica replaces a dead master. Times in seconds.

    Attributes:
        sync_delay: how long a full sync waits for more replicas; None: CONFIG GET is refused.
        service: name of the service in Sentinel; empty: there are no Sentinels.
        down_after: for each Sentinel, the silence after which a server counts as down.
        failover_timeout: for each Sentinel, how long a replica may follow another master.
    """

    sync_delay: float | None = 0.0
    service: str = ""
    down_after: Sequence[float] = ()
    failover_timeout: Sequence[float] = ()


class Server(Struct, frozen=True):
    """What Redis and the daemons report.

    Attributes:
        info: the answer to INFO.
        clock_ahead: seconds by which the clock of Redis is ahead of the local one.
        leader: id of the leading scheduler; empty: none leads.
        leader_silent: seconds since it extended its lease, which it does every second.
        late_seconds: how long the first due task has been due; 0: none is.
        failed_hooks: start-up hooks that have not succeeded, with their errors.
        slow_hooks: start-up hooks that have run for more than a minute.
        broken: periodic entries that the leader could not fire at its last try, with the errors.
        config_problem: why the current configuration source is not applied.
        remembers: where the leader keeps what must outlive Redis: ``SQL``, ``process`` (in its own
            memory), or empty if it does not report that.
        sql: state of the tables, or why they cannot be read; empty if SQL is not used, or creates
            its tables itself.
        replication: settings of the failover; None: there are no replicas.
        refusal: why Redis refuses to write; empty if it does not.
    """

    info: Mapping[str, Any]
    clock_ahead: float = 0.0
    leader: str = ""
    leader_silent: float = 0.0
    late_seconds: float = 0.0
    failed_hooks: Mapping[str, str] = field(default_factory=dict)
    slow_hooks: Sequence[str] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    config_problem: str = ""
    remembers: str = ""
    sql: str = ""
    replication: Replication | None = None
    refusal: str = ""

    @property
    def memory_used(self) -> float | None:
        """Share of maxmemory that is used; None: maxmemory is not set."""
        most = int(self.info.get("maxmemory", 0))
        return int(self.info.get("used_memory", 0)) / most if most else None


def examine_server(server: Server) -> tuple[list[Finding], list[Finding]]:
    """Return the problems of the server and the daemons, and hints for their operator."""
    problems = [
        *_writes(server.refusal),
        *refusals(server.info),
        *_redis_problems(server),
        *_scheduler_problems(server),
        *_sql_problems(server),
    ]
    hints = [
        *_redis_hints(server),
        *_daemon_hints(server),
        *_backlog_hints(server),
        *_slow_failover(server.replication or Replication()),
    ]
    return problems, hints


def refusals(info: Mapping[str, Any], denied: Sequence[str] = ()) -> list[Finding]:
    """Why no daemon should start on this server.

    Args:
        info: the answer to INFO; fields that it lacks are not checked.
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
        command = remedies.of_redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
        found.append(Finding("server", "eviction", problem, command=command))
    if denied:
        names = " ".join(f"+{name}" for name in denied)
        problem = f"this user may not use {', '.join(denied)}"
        found.append(Finding("server", "permissions", problem, f"ACL SETUSER … {names}"))
    return found


def _writes(refusal: str) -> Iterator[Finding]:
    """Report that no task is submitted, fetched or settled now."""
    if refusal:
        ways = (way for code, way in _WAYS_OUT.items() if re.search(rf"\b{code}\b", refusal))
        problem = f"no task is submitted, fetched or settled: {refusal}"
        hint = next(ways, "read the log of Redis")
        yield Finding(
            "server", "writes", problem, hint, severity="critical", cause=cause_in(refusal)
        )


def cause_in(error: str) -> str:
    """Return the cause that an error names; empty if it names none.

    >>> cause_in("BrokerFullError: redis://a is out of memory"), cause_in("ValueError: no")
    ('Redis refuses writes', '')
    """
    return REFUSING if _REFUSED.search(error) else ""


def examine_outbox(number: int, seconds: float) -> Finding | None:
    """Say what is wrong with durable tasks; None if nothing is.

    Args:
        number: durable tasks that are overdue for their hand-over to Redis.
        seconds: age of the oldest of them.
    """
    if not number:
        return None
    are = "1 durable task is" if number == 1 else f"{number} durable tasks are"
    problem = f"{are} still not in Redis, {seconds:.0f} s after the submission"
    hint = "if a scheduler leads, read its log; else start one"
    command = remedies.of_promoter()
    return Finding("scheduler", "durable tasks", problem, hint, command=command, count=number)


def _redis_problems(server: Server) -> Iterator[Finding]:
    used = server.memory_used or 0.0
    if used > _FULL:
        problem = f"{used:.0%} of maxmemory is used: Redis refuses submits, or will soon"
        yield Finding(
            "server", "memory", problem, _RAISE_MEMORY, severity="critical", cause=REFUSING
        )
    for name, what in (
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the append-only file"),
    ):
        if server.info.get(name, "ok") != "ok":
            problem = f"{what} failed: Redis may refuse writes"
            hint = "check the disk and the log of Redis"
            yield Finding("server", "persistence", problem, hint, cause=REFUSING)


def _scheduler_problems(server: Server) -> Iterator[Finding]:
    if server.late_seconds > _LATE_SECONDS:
        problem = f"the next task is {server.late_seconds:.0f} s overdue: no process promotes it"
        yield Finding(
            "scheduler",
            "promotion",
            problem,
            command=remedies.of_promoter(),
            severity="critical",
            cause="" if server.leader else LEADERLESS,
        )
    for hook, reason in server.failed_hooks.items():
        problem, hint = f"start-up hook failed: {reason}", "repair the cause, the hook is retried"
        command = "task-run events --kind startup-hook"
        yield Finding("scheduler", hook, problem, hint, command=command, cause=cause_in(reason))
    for entry, reason in server.broken.items():
        problem = f"periodic entry cannot be fired: {reason}"
        command = remedies.of("task-run schedules show", entry.partition("|")[0])
        yield Finding("scheduler", entry, problem, command=command, cause=cause_in(reason))
    if server.config_problem:
        first, *more = server.config_problem.splitlines()
        problem = f"is not applied; the last good one stays in use: {first}"
        problem += f" (and {len(more)} more)" if more else ""
        command = "task-run config status"
        yield Finding("scheduler", "configuration", problem, command=command)


def _sql_problems(server: Server) -> Iterator[Finding]:
    if server.sql not in ("", "current", "ahead"):
        problem = _TABLES.get(server.sql, server.sql)
        is_old = server.sql in _TABLES
        yield Finding(
            "sql",
            "tables",
            problem,
            "" if is_old else REPAIR_SQL,
            command="task-run db upgrade" if is_old else remedies.of_sql(),
            severity="critical",
        )


def examine_memory(server: Server) -> Finding | None:
    """Warn before Redis refuses submits; when it does, that is a problem of `examine_server`."""
    if not _ALMOST_FULL < (server.memory_used or 0.0) <= _FULL:
        return None
    problem = (
        f"{server.memory_used:.0%} of maxmemory is used: Redis refuses submits when it is full"
    )
    return Finding("server", "memory", problem, _RAISE_MEMORY, severity="warning")


def _redis_hints(server: Server) -> Iterator[Finding]:
    if server.memory_used is None:
        problem = "maxmemory is not set: a backlog can use up the memory of the machine"
        yield Finding("server", "memory", problem, "set maxmemory of Redis")
    elif (finding := examine_memory(server)) is not None:
        yield finding
    if not int(server.info.get("aof_enabled", 1)):
        problem = "appendonly is off: a restart loses what was queued since the last snapshot"
        command = remedies.of_redis("CONFIG", "SET", "appendonly", "yes")
        yield Finding("server", "persistence", problem, "unless that is fine", command=command)
    if abs(server.clock_ahead) > _CLOCK_SECONDS:
        problem = f"the clock of Redis differs from the local one by {server.clock_ahead:+.1f} s"
        hint = "synchronize the clocks: at_time= is compared with the clock of Redis"
        yield Finding("server", "clock", problem, hint)


def _daemon_hints(server: Server) -> Iterator[Finding]:
    if server.remembers == "process":
        problem = "only the memory of the leader has the last occurrences and the pauses"
        hint = "set NONET_DB_URL for the schedulers: SQL outlives Redis and the leader"
        yield Finding("scheduler", "memory", problem, hint)
    for hook in server.slow_hooks:
        problem = "this start-up hook has run for more than a minute; later hooks wait for it"
        yield Finding("scheduler", hook, problem, "read the log of its application")


def _backlog_hints(server: Server) -> Iterator[Finding]:
    if server.sql == "ahead":
        problem = "were migrated by a newer release, and work with this one"
        hint = "fine after a roll-back; otherwise upgrade this installation"
        yield Finding("sql", "tables", problem, hint)


def _slow_failover(settings: Replication) -> Iterator[Finding]:
    """Settings that make a failover take longer than it must.

    Measured on Redis 7.0: see docs/how-to/prepare-redis.md, "How long a failover takes".
    """
    delay = settings.sync_delay
    name = "repl-diskless-sync-delay"
    if delay is None:
        hint = f"CONFIG GET {name} as an administrator; 0 is best"
        yield Finding("server", name, "was not checked: CONFIG GET is refused", hint)
    elif delay > 0:
        problem = f"is {delay:g}: after a failover a replica waits {delay:g} s for its full sync"
        command = remedies.of_redis("CONFIG", "SET", name, "0")
        yield Finding("server", name, problem, "on each server", command=command)
    change = f"SENTINEL SET {settings.service}"
    name = "down-after-milliseconds"
    longest = max(settings.down_after, default=0.0)
    shortest = min(settings.down_after, default=math.inf)
    if longest > _LONG_SILENCE_SECONDS:
        problem = (
            f"is {longest * 1000:g}: a dead master is replaced after {longest:g} s, but submits "
            "fail after 14 s"
        )
        yield Finding("server", name, problem, f"{change} {name} 5000 on each Sentinel")
    elif shortest < _SHORT_SILENCE_SECONDS:
        problem = (
            f"is {shortest * 1000:g}: a server that is busy for {shortest:g} s counts as down. A "
            "replica that counts as down during a failover keeps following the dead master"
        )
        yield Finding("server", name, problem, f"{change} {name} 5000 on each Sentinel")
    name, longest = "failover-timeout", max(settings.failover_timeout, default=0.0)
    if longest > _LONG_MISLED_SECONDS:
        problem = (
            f"is {longest * 1000:g}: a replica that counts as down during a failover follows the "
            f"dead master for {longest:g} s more, and confirms nothing"
        )
        yield Finding("server", name, problem, f"{change} {name} 10000 on each Sentinel")
