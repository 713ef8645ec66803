"""What counts as wrong, fact by fact: pure rules."""

from __future__ import annotations

from typing import Any

import pytest
from rules.sentences import harms

from nonet.rules.findings.diagnosis import examine
from nonet.rules.findings.servers import (
    Replication,
    Server,
    examine_outbox,
    examine_server,
    refusals,
)

LEASE = 45.0
# places, kept µs ago, stream
REST = [0, "", "normal:small", "7@host", "8@host"]
# id, state, gen, owner, registered, due, gen of the entry, who has it
QUEUED = ["record", "a", "queued", "7", "", 0, "", "7", "", *REST]
RUNNING = ["record", "a", "running", "7", "w", 1, "", "7", "w", *REST]
DELAYED = ["record", "a", "delayed", "7", "", 0, "99", "", "", *REST]
DYING = ["record", "a", "dying", "7", "w", 1, "", "7", "w", *REST]


def changed(row: list[Any], **changes: Any) -> list[Any]:
    names = ["kind", "id", "state", "gen", "owner", "registered", "due", "entry_gen", "holder"]
    names += ["places", "kept", "stream", "owner_name", "holder_name"]
    return [changes.get(name, value) for name, value in zip(names, row, strict=True)]


@pytest.mark.parametrize(
    "row",
    [
        QUEUED,
        RUNNING,
        DELAYED,
        changed(DELAYED, state="waiting"),
        DYING,
        changed(DYING, registered=0, owner=""),  # queued for the next one to bury it
        changed(DYING, registered=0, due="9", entry_gen="", holder=""),
        # Its stream vanished; its worker has it, says so with each beat, and will settle.
        changed(RUNNING, entry_gen="", holder="", kept="14000000"),
        changed(QUEUED, due="9", places=1),  # woken, and its places are kept until then
        ["lease", "lock:mutex:job:7", "a/7/9", "20000000", 1],
        ["lease", "lock:mutex:job:7", "a/7/9", "-1", 0],
        ["waiter", "lock:mutex:job:7", "a", "waiting", 1],
        ["waiter", "lock:mutex:job:7", "a", "queued", 1],
        ["group", "g", "sealed", 3, "p", 1, -1],
        ["group", "g", "building", 3, "p", 1, -1],
        ["group", "g", "building", 3, "", 0, 86_000],
        ["group", "g", "fired", 0, "p", 0, 86_000],
        ["child", "g", "building", "a", 3],
        ["flow", "w", "running", 3, -1, 0],
        ["flow", "w", "building", 3, 86_000, 0],
        ["flow", "w", "resuming", 3, -1, 1],
        ["flow", "w", "failed", 0, 86_000, 0],
        ["step", "w", "building", "w:1", 3],
        ["blocked", "w:1", "running", 2, ""],
        ["blocked", "w:1", "building", 1, "w:*"],
        ["blocked", "w:1", "cancelled", 0, "w:0"],
        ["worker", "small-a", str(60 * 10**6)],
        ["member", "tasks:normal:small", "small-a", 1, 5],
        ["idle", "small", "small-a", 1],
        ["entry", "tasks:normal:small", "1-0", "a", 1, 1],
    ],
)
def test_a_healthy_namespace_has_no_finding(row: list[Any]) -> None:
    assert examine(row, lease=LEASE) is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (changed(QUEUED, entry_gen=""), "in no stream"),
        (changed(QUEUED, entry_gen="6"), "in no stream"),
        (changed(QUEUED, holder="w"), "does not run it"),
        (changed(QUEUED, due="9"), "also in the delayed set"),
        (changed(DELAYED, entry_gen="7"), "is delayed, but also in a stream"),
        (changed(RUNNING, entry_gen="", holder=""), "does not have it"),
        (changed(RUNNING, entry_gen="", holder="", kept="45000000"), "does not have it"),
        (changed(RUNNING, registered=0), "does not have it"),
        (changed(RUNNING, holder="other"), "does not have it"),
        (changed(RUNNING, holder=""), "does not have it"),
        (changed(DELAYED, due=""), "never checked again"),
        (changed(DYING, registered=0, entry_gen="", holder=""), "neither in a stream nor"),
        (["lease", "lock:mutex:job:7", "a/7/9", "20000000", 0], "not a live attempt"),
        (["waiter", "lock:mutex:job:7", "a", "running", 0], "is running"),
        (["waiter", "lock:mutex:job:7", "a", "", 0], "is gone"),
        (["group", "g", "sealed", 0, "p", 1, -1], "has not fired"),
        (["group", "g", "building", 3, "p", 0, -1], "without sealing"),
        (["group", "g", "fired", 0, "p", 0, -1], "never expires"),
        (["child", "g", "sealed", "a", 1], "waits for task a, which does not exist"),
        (["child", "g", "sealed", "a", 3], "waits for task a and 2 others"),
        (["child", "g", "", "a", 1], "is gone, and waited for task a, which does"),
        (["flow", "w", "running", 0, -1, 0], "has no step left to run"),
        (["flow", "w", "running", 1, 86_000, 0], "has not ended, but its keys expire"),
        (["flow", "w", "resuming", 1, -1, 0], "is being resumed, but no process continues"),
        (["flow", "w", "done", 0, -1, 0], "has ended, but never expires"),
        (["step", "w", "running", "w:1", 1], "waits for step w:1, which does not exist"),
        (["step", "w", "running", "w:1", 3], "waits for step w:1 and 2 others"),
        (["step", "w", "", "w:1", 1], "is gone, and waited for step w:1, which does"),
        (["blocked", "w:1", "running", 1, "w:0"], "waits for step w:0, which does not exist"),
        (["blocked", "w:1", "running", 0, ""], "waits for no step, but was not released"),
        (["blocked", "w:1", "", 1, "w:0"], "its workflow is gone"),
        (["rest", "{n}:m:w:1"], "belongs to a workflow that is gone"),
        (["worker", "small-a", str(200 * 10**6)], "registration still exists"),
        (["member", "tasks:normal:small", "small-a", 0, 5], "5 deliveries"),
        (["idle", "small", "small-a", 0], "is gone"),
        (["entry", "tasks:normal:small", "1-0", "a", 0, 0], "does not exist"),
        (["entry", "tasks:normal:small", "1-0", "a", 0, 1], "is elsewhere"),
        (["orphan", "a"], "no record"),
        (["part", "{n}:b:a"], "no record"),
        (["lasting", "{n}:r:a"], "never expires"),
        (["type", "{n}:t:a", "hash"], "wrong type for its name"),
        (["unknown", "{n}:odd"], "not a key of Nonet"),
    ],
)
def test_each_kind_of_problem_is_reported(row: list[Any], said: str) -> None:
    finding = examine(row, lease=LEASE)
    assert finding is not None and said in finding.problem and finding.what and finding.next_step
    assert not harms(finding.command)


REDIS_CLI = 'redis-cli -u "$NONET_REDIS_URL"'


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("{n}:t:a", f"end its task: {REDIS_CLI} DEL '{{n}}:t:a'"),
        ("{n}:e:w:0", f"end its task: {REDIS_CLI} DEL '{{n}}:t:w:0' '{{n}}:e:w:0'"),
        ("{n}:tasks:delayed", f"delete it: {REDIS_CLI} DEL '{{n}}:tasks:delayed'"),
        ("{n}:paused", f"delete it: {REDIS_CLI} DEL '{{n}}:paused'"),
    ],
)
def test_a_key_of_a_wrong_type_has_a_command(key: str, hint: str) -> None:
    """It ends the task that the key belongs to, or deletes the key."""
    finding = examine(["type", key, "list"], lease=LEASE)
    assert finding is not None and finding.what == key and finding.next_step == hint


HEALTHY = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "maxmemory": 100}


@pytest.mark.parametrize(
    ("info", "denied", "said"),
    [
        ({"redis_version": "6.2.14"}, (), "6.2.14 is too old"),
        ({"maxmemory_policy": "allkeys-lru"}, (), "allkeys-lru"),
        ({}, ("xclaim", "blpop"), "xclaim, blpop"),
    ],
)
def test_a_daemon_refuses_an_unfit_server_by_name(
    info: dict[str, Any], denied: tuple[str, ...], said: str
) -> None:
    assert refusals(HEALTHY, ()) == []
    (finding,) = refusals({**HEALTHY, **info}, denied)
    assert said in finding.problem and finding.next_step


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (Server({**HEALTHY, "used_memory": 99}), "server"),
        (Server({**HEALTHY, "rdb_last_bgsave_status": "err"}), "server"),
        (Server({**HEALTHY, "aof_last_write_status": "err"}), "server"),
        (Server(HEALTHY, late_seconds=60.0), "scheduler"),
        (Server(HEALTHY, failed_hooks={"reset": "ValueError: no"}), "scheduler"),
        (Server(HEALTHY, broken={"p:Sweep||default": "ValueError: no"}), "scheduler"),
        (Server(HEALTHY, config_problem="config.yaml:1: bad"), "scheduler"),
        (Server(HEALTHY, sql="behind"), "sql"),
        (Server(HEALTHY, sql="database mysql://… cannot be used"), "sql"),
    ],
)
def test_each_fault_of_the_server_is_a_problem_with_its_next_step(
    server: Server, kind: str
) -> None:
    problems, _ = examine_server(server)
    assert [finding.kind for finding in problems] == [kind] and problems[0].next_step
    assert not harms(problems[0].command)


def test_a_deliberate_setting_is_a_hint_not_a_problem() -> None:
    server = Server(
        {"maxmemory": 0, "aof_enabled": 0},
        clock_ahead=-60.0,
        slow_hooks=("a.hook",),
        remembers="process",
        sql="ahead",
    )
    problems, hints = examine_server(server)
    assert problems == [] and all(hint.next_step for hint in hints)
    assert {hint.what for hint in hints} == {"memory", "persistence", "clock", "a.hook", "tables"}


def test_a_fault_of_the_scheduler_names_the_command_that_shows_all() -> None:
    broken = {"p:Sweep|lhcb|default": "ValueError: no"}
    config = "c.yaml:1: bad\nc.yaml:2: worse"
    server = Server(HEALTHY, broken=broken, config_problem=config, sql="absent")
    entry, config, tables = examine_server(server)[0]
    assert (entry.what, entry.command) == (
        "p:Sweep|lhcb|default",
        "task-run schedules show p:Sweep",
    )
    assert entry.problem.endswith("ValueError: no")
    assert config.problem.endswith("c.yaml:1: bad (and 1 more)")
    assert (config.command, tables.command) == ("task-run config status", "task-run db upgrade")


@pytest.mark.parametrize(("remembers", "told"), [("process", True), ("SQL", False), ("", False)])
def test_a_memory_of_the_leader_alone_is_a_hint(remembers: str, told: bool) -> None:
    """Without a database; a leader that does not say may have one."""
    problems, hints = examine_server(Server(HEALTHY, leader="a", remembers=remembers))
    assert problems == []
    assert any("NONET_DB_URL" in hint.hint for hint in hints) == told


@pytest.mark.parametrize("used", [85, 99])
def test_memory_is_reported_once(used: int) -> None:
    """A memory that is almost full is a hint, one that is full a problem, never both."""
    problems, hints = examine_server(Server({**HEALTHY, "used_memory": used}))
    assert [item.what for item in (*problems, *hints)].count("memory") == 1


def test_durable_tasks_that_stay_in_sql_are_a_finding() -> None:
    assert examine_outbox(0, 0.0) is None
    finding = examine_outbox(3, 42.4)
    assert finding is not None and finding.command == "task-scheduler"
    assert finding.problem == "3 durable tasks are still not in Redis, 42 s after the submission"


@pytest.mark.parametrize(
    ("replication", "told"),
    [
        (None, {}),
        (Replication(0.0), {}),
        (Replication(5.0), {"repl-diskless-sync-delay": ("is 5:", "waits 5 s", "CONFIG SET")}),
        (Replication(None), {"repl-diskless-sync-delay": ("was not checked", "CONFIG GET")}),
        (Replication(0.0, "main", [5.0, 5.0], [10.0, 20.0]), {}),
        (
            Replication(0.0, "main", [5.0, 30.0], [10.0]),
            {"down-after-milliseconds": ("is 30000:", "after 30 s", "SENTINEL SET main", "5000")},
        ),
        (
            Replication(0.0, "main", [1.0, 5.0], [10.0]),
            {"down-after-milliseconds": ("is 1000:", "busy for 1 s", "5000")},
        ),
        (
            Replication(0.0, "main", [10.0], [10.0, 180.0]),
            {"failover-timeout": ("is 180000:", "for 180 s more", "SENTINEL SET main", "10000")},
        ),
        (
            Replication(5.0, "main", [30.0], [180.0]),
            {"repl-diskless-sync-delay": (), "down-after-milliseconds": (), "failover-timeout": ()},
        ),
    ],
)
def test_a_setting_that_slows_a_failover_is_a_hint(
    replication: Replication | None, told: dict[str, tuple[str, ...]]
) -> None:
    """A hint with the value, the seconds that it costs and the command; of Sentinels the worst."""
    problems, hints = examine_server(Server(HEALTHY, leader="a", replication=replication))
    assert (problems, {hint.what for hint in hints}) == ([], set(told))
    for hint in hints:
        text = f"{hint.problem}; {hint.next_step}"
        assert hint.kind == "server" and all(words in text for words in told[hint.what]), text
