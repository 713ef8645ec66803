"""From a situation to findings: each fault once, worst first, with the command that mends it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rules.sentences import contains

from nonet.rules.overview import troubles
from nonet.rules.pauses import Pause
from nonet.rules.refusal import LockHolder, Refusal, Waiters
from nonet.rules.servers import Server
from nonet.rules.situation import Crew, Deaths, Situation, StreamLoad
from nonet.rules.workflows import FailedWorkflows, StuckWorkflows

SINCE = datetime(2026, 7, 1, 11, tzinfo=UTC)
HEALTHY = Server({"redis_version": "7.0.15", "maxmemory_policy": "noeviction"}, leader="a/1")
HOLDER = LockHolder("t-1", "files:Audit", "7@host", 3840.0, 20.0, True)
MUTEX = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(HOLDER,))
SMTP = Refusal(
    "limiter:rate:mailer:smtp", "L", True, used=1, limit=1, window_seconds=600, back_in=300
)
SLOTS = Refusal("limiter:conc:storage_element:CERN", "C", True, used=5, limit=5)


FOREIGN = {("files:Audit", "small"): 5}
DEATHS = Deaths("files:Audit", "ValueError: no", 3, "t-9", 12)
DIED = "3 tasks of files:Audit died within an hour, the last 12 s ago"


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
        case("SQL: gone; 1 dead letter waits", "repair the", dying=1, server=leading(sql="gone")),
        case(
            "configuration: is not applied; … c.yaml:1: bad",
            "task-run config status",
            server=leading(config_problem="c.yaml:1: bad"),
        ),
        case("no scheduler leads: no periodic", "task-scheduler", server=Server(HEALTHY.info)),
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
        case("no small worker runs files:Audit: 5 tasks wait", "install the pack", foreign=FOREIGN),
        case(
            "no small worker can decrypt files:Audit: 5 tasks wait (no key '2026')",
            "set NONET_ENCRYPTION_KEYS of the small workers: task-run workers",
            foreign=FOREIGN,
            locked={("files:Audit", "small"): "no key '2026'"},
        ),
        case(
            f"{DIED}: ValueError: no (task-run result t-9)$", "task-run result t-9", deaths=[DEATHS]
        ),
        case(
            DIED,
            "task-run pause --task files:Audit",
            deaths=[DEATHS],
            active={("files:Audit", "normal:small"): 1},
        ),
        case(
            "3 tasks of files:Audit expired within an hour, the last 12 s ago: not started",
            "task-worker --size small",
            deaths=[Deaths("files:Audit", "not started", 3, "t-9", 12, "expired", "small")],
        ),
        case(
            "workflow w failed 12 s ago at step w:3 of files:Audit: E: no (task-run workflows",
            "task-run workflows resume w",
            failed_workflows=[FailedWorkflows("", "w", 1, 12, "w:3", "files:Audit", "E: no")],
        ),
        case(
            '4 workflows "import" failed within an hour, the last 12 s ago at step w:3',
            "task-run workflows resume w",
            failed_workflows=[FailedWorkflows("import", "w", 4, 12, "w:3")],
        ),
        case(
            "workflow w is being submitted for 2 min: 500 of 1,000 steps … (and 1 more like this)",
            "task-run workflows cancel w",
            stuck_workflows=[StuckWorkflows("building", "w", 2, 120, 500, 1000)],
        ),
        case(
            "workflow w is being resumed for 2 min$",
            "task-run workflows resume w",
            stuck_workflows=[StuckWorkflows("resuming", "w", 1, 120)],
        ),
        case("1 worker died within an hour$", "task-run events --kind worker-lost", lost_workers=1),
        case(
            "19 tasks wait for lock:mutex:job:7 (files:Audit, files:Sweep), held … for 1 h",
            "task-run cancel t-1",
            waiters=[Waiters(MUTEX, 19, 60, ("files:Audit", "files:Sweep"))],
        ),
        case(
            "19 tasks wait for limiter:rate:mailer:smtp, 1 per 600 s, the last in 3 h 5 min$",
            "task-run limits set limiter:rate:mailer:smtp --rate 20 --window 600",
            waiters=[Waiters(SMTP, 19, 60)],
        ),
        case(
            "1 task waits for limiter:conc:storage_element:CERN, 5 at a time$",
            "task-run limits set limiter:conc:storage_element:CERN --concurrency 6",
            waiters=[Waiters(SLOTS, 1, 60)],
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
            "task-run queues",
            full={"stream:normal:small": 500},
        ),
        case(
            "3000 tasks are queued, the oldest for 5 min; small workers: 2, 8 of 8 slots are busy$",
            "task-worker --size small",
            streams=[StreamLoad("normal", "small", 3000, 8, 300)],
            crews=[Crew("small", 2, slots=8, busy=8)],
        ),
        case(
            "the event loop of 7@host was blocked for 2.5 s$",
            "task-run workers 7@host",
            stalls={"7@host": 2500, "8@host": 20},
        ),
        case(
            "a:Match held the interpreter lock of 7@host for 18 s: … tasks may have run twice$",
            "give the class size = Size.MEDIUM",
            holds={"7@host": ("a:Match", 18.0)},
        ),
        case(
            "7@host fetches at most 3 tasks at once: larger replies of Redis are lost",
            "redis-cli config get client-output-buffer-limit",
            narrow={"7@host": 3},
        ),
        case("1 message in the quarantine$", "task-run quarantine list", quarantined=1),
        case(
            "1 durable task is still not in Redis, 42 s after", "start task-sched", kept=(1, 42.0)
        ),
        case("pauses cannot be read: WRONG$", "task-run doctor", unreadable={"pauses": "WRONG"}),
    ],
)
def test_each_fault_has_one_finding_with_its_command(
    problem: str, hint: str, known: dict[str, Any]
) -> None:
    (finding,) = troubles(situation(**known))
    assert contains(finding.problem, problem), finding
    assert finding.hint.startswith(hint)


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"waiters": [Waiters(MUTEX, 19, 9)]},
        {"deaths": [Deaths("files:Audit", "ValueError: no", 2, "t-9", 12)]},
        {
            "streams": [StreamLoad("normal", "small", 9, 8, 59)],
            "crews": [Crew("small", 1, slots=8, busy=8)],
        },
        {"late": {"files:Sweep": 20.0}},
    ],
    ids=["idle", "short waits", "few deaths", "a short queue", "a moment late"],
)
def test_short_waits_and_few_deaths_are_not_reported(known: dict[str, Any]) -> None:
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
    assert finding.hint == "task-run resume --task Audit" and finding.problem.endswith(
        ": 4 tasks wait"
    )


def test_many_locks_of_one_type_are_one_finding() -> None:
    others = [
        Waiters(Refusal(f"lock:mutex:job:{n}", "M", True, holding=1, holders=(HOLDER,)), 1, 60)
        for n in range(8, 348)
    ]
    (finding,) = troubles(situation(waiters=[*others, Waiters(MUTEX, 19, 60)]))
    assert finding.what == "lock:mutex:job:7"
    assert "(and 340 for 340 others of its type: task-run locks)" in finding.problem


def test_many_findings_of_one_kind_are_shortened() -> None:
    deaths = [Deaths(f"files:Audit{n}", "ValueError: no", 30 - n, "t", 1) for n in range(9)]
    found = troubles(situation(deaths=deaths))
    assert [finding.what for finding in found] == ["files:Audit0", "files:Audit1", "files:Audit2"]
    assert found[-1].problem.endswith("(and 6 more like this)")


def test_a_long_error_is_shortened() -> None:
    deaths = [Deaths("files:Audit", "ValueError: " + "x" * 500 + "\nmore", 3, "t-9", 1)]
    (finding,) = troubles(situation(deaths=deaths))
    assert "x… (task-run result t-9)" in finding.problem and len(finding.problem) < 250


def test_the_worst_comes_first() -> None:
    found = troubles(
        situation(
            server=Server({**HEALTHY.info, "maxmemory": 100, "used_memory": 99}),
            quarantined=1,
            waiters=[Waiters(SMTP, 1, 60), Waiters(MUTEX, 1, 60)],
            lost_workers=2,
        )
    )
    assert [finding.what for finding in found] == [
        *("memory", "leader", "deaths", "lock:mutex:job:7", "limiter:rate:mailer:smtp"),
        "quarantine",
    ]
