"""From a situation to findings: each fault once, worst first, with the command that mends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rules.sentences import contains, harms

from nonet.rules.findings.finding import Finding, in_order
from nonet.rules.findings.overview import troubles
from nonet.rules.findings.refusal import LockHolder, Refusal, Waiters
from nonet.rules.findings.servers import Server
from nonet.rules.findings.situation import Crew, Deaths, Situation
from nonet.rules.findings.throughput import StreamLoad
from nonet.rules.limit_changes import Override
from nonet.rules.limits import Limit
from nonet.rules.pauses import Pause
from nonet.rules.workflows import FailedWorkflows, StuckWorkflows

SINCE = datetime(2026, 7, 1, 11, tzinfo=UTC)
HEALTHY = Server({"redis_version": "7.0.15", "maxmemory_policy": "noeviction"}, leader="a/1")
HOLDER = LockHolder("t-1", "files:Audit", "7@host", 3840.0, 20.0, True)
MUTEX = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(HOLDER,))
SMTP = Refusal(
    "limiter:rate:mailer:smtp", "L", True, used=1, limit=1, window_seconds=600, back_in=300
)
SLOTS = Refusal("limiter:conc:storage_element:CERN", "C", True, used=5, limit=5)
STUCK = replace(HOLDER, usual_seconds=2.0)


FOREIGN = {("files:Audit", "small"): 5}
DEATHS = Deaths("files:Audit", "ValueError: no", 3, "t-9", 12, location="files.tasks:execute")
BOMB = Deaths("files:Bomb", "TaskCrashed: killed by signal 9", 1, "t-8", 12, is_crash=True)
BY_HAND = Override("limiter:conc:job:7", Limit(1), "ann@host 7", SINCE, Limit(50))
DIED = "files:Audit dies: ValueError: no at files.tasks:execute (task-run result t-9); 3 tasks …"


LOWERED = {"lock": "limiter:conc:job:7", "limit": 1, "override": BY_HAND}
RAISED = LOWERED | {"limit": 9, "override": replace(BY_HAND, limit=Limit(99))}


def leading(**known: Any) -> Server:
    return Server(HEALTHY.info, leader="a/1", **known)


def situation(**known: Any) -> Situation:
    return Situation(**{"server": HEALTHY, **known})


def case(problem: str, hint: str, **known: Any) -> tuple[str, str, dict[str, Any]]:
    return problem, hint, known


@pytest.mark.parametrize(
    ("problem", "hint", "known"),
    [
        case(
            "2 dead letters (files:Audit, OSError: no space) wait for SQL$",
            "task-run db check",
            dying=2,
            dying_error="files:Audit, OSError: no space",
        ),
        case(
            "SQL: gone; 1 dead letter waits",
            "repair the database or NONET_DB_URL, then check it: task-run db check",
            dying=1,
            server=leading(sql="gone"),
        ),
        case(
            "configuration: is not applied; … c.yaml:1: bad",
            "task-run config status",
            server=leading(config_problem="c.yaml:1: bad"),
        ),
        case("no scheduler leads: no periodic", "task-scheduler", server=Server(HEALTHY.info)),
        case(
            "the leading scheduler a has been silent for 7 s: until another one leads, no periodic",
            "task-scheduler",
            server=leading(leader_silent=7.0),
        ),
        case(
            "no large worker is live: 12 tasks are queued, the oldest for 3 min (files:Audit)$",
            "task-worker --size large",
            streams=[StreamLoad("normal", "large", 12, 0, 180)],
            crews=[Crew("large", 0), Crew("small", 0)],
            active={("files:Audit", "normal:large"): 12, ("p:Other", "normal:small"): 1},
        ),
        case(
            "no small worker takes tasks (memory is short): 1 task is queued, for 5 s$",
            "task-worker --size small",
            streams=[StreamLoad("normal", "small", 1, 0, 5)],
            crews=[Crew("small", 2, slots=8, idle_reason="memory is short")],
        ),
        case("no small worker takes files:Audit: 5 tasks wait", "install its", foreign=FOREIGN),
        case(
            "no small worker can decrypt files:Audit: 5 tasks wait (no key '2026')",
            "set NONET_ENCRYPTION_KEYS of the small workers: task-run workers",
            foreign=FOREIGN,
            locked={("files:Audit", "small"): "no key '2026'"},
        ),
        case(DIED + "the last 12 s ago$", "task-run result t-9", deaths=[DEATHS]),
        case(
            DIED,
            "task-run pause --task files:Audit",
            deaths=[DEATHS],
            active={("files:Audit", "normal:small"): 1},
            failing={"files:Audit"},
        ),
        case(
            "files:Audit dies: LimitImpossible: limiter:conc:job:7 allows 0, one",
            "task-run limits show limiter:conc:job:7",
            deaths=[replace(DEATHS, error="LimitImpossible: limiter:conc:job:7 allows 0, one …")],
        ),
        case(
            "files:Bomb kills its process: TaskCrashed: killed by signal 9 (task-run result t-8)",
            "task-run result t-8",
            deaths=[BOMB],
        ),
        case(
            "3 tasks failed within an hour of 2 causes, of each less than 3, the last 4 s ago: p:T",
            "task-run history --since 1h --state dead",
            deaths=[replace(DEATHS, number=2), Deaths("p:T", "E", 1, "t-1", 4)],
        ),
        case(
            "files:Audit expires: not started (task-run result t-9); 3 tasks within an hour",
            "task-worker --size small",
            deaths=[Deaths("files:Audit", "not started", 3, "t-9", 12, "expired", "small")],
        ),
        case(
            "workflow w failed 12 s ago at step w:3 of files:Audit: E: no (task-run workflows",
            "task-run workflows resume w",
            failed_workflows=[FailedWorkflows("", "w", 1, 12, "w:3", "files:Audit", "E: no")],
        ),
        case(
            "workflow w is being submitted for 2 min: 500 of 1,000 steps … (and 1 more like this)",
            "task-run workflows show w",
            stuck_workflows=[StuckWorkflows("building", "w", 2, 120, 500, 1000)],
        ),
        case(
            "2 workers died within an hour, each while it ran a:Bomb$",
            "task-run events --kind worker-lost",
            lost_workers=[["a:Audit", "a:Bomb"], ["a:Bomb"]],
        ),
        case(
            "19 tasks wait for lock:mutex:job:7 (files:Audit, files:Sweep), held … for 1 h",
            "task-run explain t-1",
            waiters=[Waiters(MUTEX, 19, 60, ("files:Audit", "files:Sweep"))],
        ),
        case(
            "for 1 h 4 min, though 99 % of its class run for less than 2 s, which renews it$",
            "task-run cancel t-1",
            waiters=[Waiters(replace(MUTEX, holders=(STUCK,)), 19, 60)],
        ),
        case(
            "19 tasks wait for limiter:rate:mailer:smtp, 1 per 600 s, the last in 3 h 5 min$",
            "",
            waiters=[Waiters(SMTP, 19, 60)],
        ),
        case(
            "3900 tasks wait for limiter:conc:job:7, 1 at a time; ann@host 7 set the limit by hand "
            "on 2026-07-01 11:00:00Z, it is 50 without that$",
            "task-run limits unset limiter:conc:job:7",
            waiters=[Waiters(replace(SLOTS, **LOWERED), 3900, 60)],
        ),
        case(
            "limiter:conc:job:7, 9 at a time; ann@host 7 set the limit by hand",
            "",
            waiters=[Waiters(replace(SLOTS, **RAISED), 3900, 60)],
        ),
        case(
            "tenant lhcb has 3900 of the 4000 tasks that have not ended$",
            "task-run tenants",
            tenants={"lhcb": 3900, "gridpp": 100},
            active={("files:Audit", "normal:small"): 4000},
        ),
        case(
            "memory: 85% of maxmemory is used: Redis refuses submits when it is full$",
            "raise maxmemory, or add workers",
            server=Server({**HEALTHY.info, "maxmemory": 100, "used_memory": 85}, leader="a/1"),
        ),
        case(
            "stream normal:small is paused since … by ann@host 7 (disk full): 7 tasks wait$",
            "task-run resume --stream normal:small",
            pauses=[Pause("stream:normal:small", SINCE, "ann@host 7", "disk full")],
            streams=[StreamLoad("normal", "small", 7, 1, 5)],
        ),
        case(
            "the next occurrence of files:Sweep is 1 min 30 s overdue$",
            "task-run schedules show files:Sweep",
            late={"files:Sweep": 90.0},
        ),
        case(
            "stream:normal:small has reached its ceiling of 500 tasks",
            "task-run limits ceilings",
            full={"stream:normal:small": 500},
        ),
        case(
            "3000 tasks are queued, the oldest for 5 min; small workers: 2, 8 of 8 slots are busy$",
            "task-worker --size small",
            streams=[StreamLoad("normal", "small", 3000, 8, 300)],
            crews=[Crew("small", 2, slots=8, busy=8)],
        ),
        case(
            "the event loop of 7@host was blocked for 2.5 s by a:Match: all tasks beside it",
            "write it as 'def', await, or isolate it: task-run workers 7@host",
            stalls={"7@host": ("a:Match", 2.5), "8@host": ("a:Match", 0.4)},
        ),
        case(
            "a:Match held the interpreter lock of 7@host for 18 s: … tasks may have run twice$",
            "give the class size = Size.MEDIUM",
            holds={"7@host": ("a:Match", 18.0)},
        ),
        case(
            "7@host fetches at most 3 tasks at once: larger replies of Redis are lost",
            'redis-cli -u "$NONET_REDIS_URL" CONFIG GET client-output-buffer-limit',
            narrow={"7@host": 3},
        ),
        case(
            "2 periodic entries of files:Sweep are paused since noon by ann: tape$",
            "task-run schedules resume files:Sweep",
            paused_entries=2 * [SimpleNamespace(task="files:Sweep", paused="noon by ann: tape")],
        ),
        case("1 message in the quarantine$", "task-run quarantine list", quarantined=1),
        case(
            "1 durable task is still not in Redis, 42 s after",
            "if a scheduler leads, read its log; else start one: task-scheduler",
            kept=(1, 42.0),
        ),
        case("pauses cannot be read: WRONG$", "task-run doctor", unreadable={"pauses": "WRONG"}),
    ],
)
def test_each_fault_has_one_finding_with_its_command(
    problem: str, hint: str, known: dict[str, Any]
) -> None:
    (finding,) = troubles(situation(**known))
    assert contains(finding.problem, problem), finding
    assert finding.next_step.startswith(hint) and bool(finding.next_step) == bool(hint)
    assert not harms(finding.command)


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"waiters": [Waiters(MUTEX, 19, 4)]},
        {
            "streams": [StreamLoad("normal", "small", 9, 8, 59)],
            "crews": [Crew("small", 1, slots=8, busy=8)],
        },
        {"late": {"files:Sweep": 20.0}},
    ],
    ids=["idle", "short waits", "a short queue", "a moment late"],
)
def test_short_waits_are_not_reported(known: dict[str, Any]) -> None:
    """An overview that always finds something would not be read."""
    assert troubles(situation(**known)) == []


def test_the_pause_of_a_class_replaces_the_report_of_its_deaths() -> None:
    (finding,) = troubles(
        situation(
            deaths=[Deaths("files:Audit", "ValueError: no", 30, "t-9", 12)],
            pauses=[Pause("task:Audit", SINCE, "ann@host 7")],
            active={("files:Audit", "normal:small"): 4, ("files:Sweep", "normal:small"): 9},
        )
    )
    assert finding.command == "task-run resume --task Audit" and finding.problem.endswith(
        ": 4 tasks wait"
    )


def test_a_pause_of_everything_hides_no_failure() -> None:
    found = troubles(
        situation(
            deaths=[Deaths("files:Audit", "ValueError: no", 30, "t-9", 12)],
            pauses=[Pause("all", SINCE, "ann@host 7")],
        )
    )
    assert {finding.kind for finding in found} == {"pause", "class"}


def test_many_locks_of_one_type_are_one_finding() -> None:
    others = [
        Waiters(Refusal(f"lock:mutex:job:{n}", "M", True, holding=1, holders=(HOLDER,)), 1, 60)
        for n in range(8, 348)
    ]
    (finding,) = troubles(situation(waiters=[*others, Waiters(MUTEX, 19, 60)]))
    assert finding.what == "lock:mutex:job:7"
    assert "(and 340 for 340 others of its type: task-run locks)" in finding.problem


def test_each_cause_has_a_line() -> None:
    """No cause is hidden behind a frequent one; what ended long ago sinks to the end."""
    deaths = [Deaths(f"files:Audit{n}", "ValueError: no", 30 - n, "t", 1) for n in range(9)]
    old = Deaths("files:Old", "ValueError: no", 900, "t", 1800)
    found = troubles(situation(deaths=[old, *deaths]))
    assert [item.what for item in found] == [*(f"files:Audit{n}" for n in range(9)), "files:Old"]


def test_one_cause_is_one_finding() -> None:
    """A full Redis is reported once, however many entries and readers it harms."""
    broken = {f"p:T{n}||default": "BrokerFullError: redis is out of memory" for n in range(5)}
    full = {**HEALTHY.info, "maxmemory": 100, "used_memory": 99}
    server = Server(full, leader="a/1", refusal="OOM command not allowed", broken=broken)
    (finding,) = troubles(situation(server=server, unreadable={"ceilings": "out of memory"}))
    assert finding.what == "writes" and finding.severity == "critical"
    assert contains(finding.problem, "(it also harms memory, p:T0||default, p:T1…and 4 more)$")


def test_a_class_that_kills_workers_and_processes_is_one_finding() -> None:
    """The deaths of its workers have the same cause."""
    (finding,) = troubles(situation(deaths=[BOMB], lost_workers=[["files:Bomb"]]))
    assert (finding.kind, finding.count) == ("class", 1)


def test_a_limit_by_hand_is_not_hidden_by_others_of_its_type() -> None:
    """It is a cause of its own, and worse than limits that work as configured."""
    busy = Waiters(replace(SLOTS, lock="limiter:conc:job:8"), 9000, 60)
    lowered = Waiters(replace(SLOTS, **LOWERED), 10, 60)
    found = troubles(situation(waiters=[busy, lowered]))
    assert [item.what for item in found] == ["limiter:conc:job:7", "limiter:conc:job:8"]


def test_a_long_error_is_shortened() -> None:
    deaths = [Deaths("files:Audit", "ValueError: " + "x" * 500 + "\nmore", 3, "t-9", 1)]
    (finding,) = troubles(situation(deaths=deaths))
    assert "x… (task-run result t-9)" in finding.problem and len(finding.problem) < 260


def test_the_worst_comes_first() -> None:
    found = troubles(
        situation(
            server=Server({**HEALTHY.info, "maxmemory": 100, "used_memory": 99}),
            quarantined=1,
            waiters=[Waiters(SMTP, 1, 60), Waiters(MUTEX, 1, 60)],
            lost_workers=[[], []],
        )
    )
    assert [finding.what for finding in found] == [
        *("memory", "leader", "deaths", "lock:mutex:job:7", "limiter:rate:mailer:smtp"),
        "quarantine",
    ]


def test_of_two_equal_findings_the_newer_one_comes_first() -> None:
    """Severity goes before count, and count before newness."""
    old = Finding("class", "old", "died", since=SINCE, count=3)
    new = Finding("class", "new", "died", since=SINCE + timedelta(minutes=1), count=3)
    unknown = Finding("lock", "unknown", "held", count=3)
    assert in_order([unknown, old, new]) == [new, old, unknown]
