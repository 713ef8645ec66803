"""From facts to words: each cause once, and what decides between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nonet.rules.explanation import Explanation, Facts, LockHolder, Needs, Peer, Refusal, explain
from nonet.rules.pauses import Pause

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()
SINCE = datetime(2026, 7, 1, 11, tzinfo=UTC)
HOLDER = LockHolder("t-1", "files:Audit", "7@host", 75.0, 20.0, True)
PROGRAM = LockHolder("hold-1", "hold", "8@host", 3.0, 20.0, True)
LOST = LockHolder("t-2", "files:Audit", "", None, 12.0, False)
LEFT = LockHolder("t-3", "files:Audit", "7@host", 40.0, 20.0, True, is_left=True)
MUTEX = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(HOLDER,))
SLOTS = Refusal("limiter:conc:job:7", "C", True, used=8, limit=8, back_in=20.0)
RATE = Refusal("limiter:rate:job:7", "L", True, used=10, limit=10, window_seconds=60, back_in=3.25)


def facts(state: str, **known: Any) -> Facts:
    return Facts(**{"id": "t", "state": state, "now": NOW, "stream": "normal:small", **known})


def parked(refusal: Refusal | None, **known: Any) -> Facts:
    return facts("waiting", is_parked=True, refusal=refusal, due=NOW + 30, **known)


def queued(**known: Any) -> Facts:
    return facts("queued", **{"workers": 2, "place": "tasks", **known})


@pytest.mark.parametrize(
    ("known", "cause", "text"),
    [
        (facts("done", is_ended=True), "ended", "done"),
        (
            facts("damaged", damage="it has no state"),
            "damaged",
            "damaged: it has no state; a worker of any size puts it into the quarantine",
        ),
        (
            facts("dead", is_ended=True, error="ValueError: no (retries)"),
            "ended",
            "dead: ValueError: no (retries)",
        ),
        (
            facts("cancelled", is_ended=True, error="by ann@host 7: by mistake"),
            "ended",
            "cancelled: by ann@host 7: by mistake",
        ),
        (facts("cancelled", is_ended=True), "ended", "cancelled"),
        (facts("expired", is_ended=True), "ended", "expired"),
        (
            facts("expired", is_ended=True, error="not started by 2026-07-01 11:59:00Z"),
            "ended",
            "expired: not started by 2026-07-01 11:59:00Z",
        ),
        (
            facts("waiting", paused=Pause("task:Audit", SINCE, "ann@host 7")),
            "paused",
            "waiting: task Audit is paused since 2026-07-01 11:00:00Z by ann@host 7; resume with "
            "'task-run resume --task Audit'",
        ),
        (
            queued(paused=Pause("stream:normal:small", SINCE, "ann@host 7", "disk full")),
            "paused",
            "queued: stream normal:small is paused since 2026-07-01 11:00:00Z by ann@host 7: disk "
            "full; resume with 'task-run resume --stream normal:small'",
        ),
        (
            parked(None, paused=Pause("all", SINCE, "ann@host 7")),
            "paused",
            "waiting: everything is paused since 2026-07-01 11:00:00Z by ann@host 7; resume with "
            "'task-run resume --all'",
        ),
        (
            facts("running", worker="7@host", running_seconds=12.3),
            "running",
            "running on 7@host for 12 s",
        ),
        (
            facts("running", worker="7@host", running_seconds=50, is_worker_alive=False, workers=1),
            "running",
            "running on 7@host for 50 s; that worker no longer answers: another one takes over "
            "when the lease has ended",
        ),
        (
            facts("running", worker="7@host", running_seconds=50, is_worker_alive=False),
            "worker",
            "running on 7@host for 50 s; that worker no longer answers, and no other of size small "
            "is live: start a task-worker --size small",
        ),
        (
            facts("dying", worker="7@host", is_worker_alive=False),
            "worker",
            "dying: 7@host writes its dead letter to SQL; that worker no longer answers, and no "
            "other of size small is live: start a task-worker --size small",
        ),
        (
            facts("dying", worker="7@host"),
            "sql",
            "dying: 7@host writes its dead letter to SQL",
        ),
        (
            facts("dying", worker="7@host", is_worker_alive=False, workers=1),
            "sql",
            "dying: 7@host writes its dead letter to SQL; that worker no longer answers: another "
            "one takes over when the lease has ended",
        ),
        (
            facts("dying", place="burials"),
            "worker",
            "dying: its dead letter must be written, no live worker of size small: start a "
            "task-worker --size small",
        ),
        (
            facts("dying", due=NOW + 8, blocker="SQL: the server does not answer"),
            "sql",
            "dying: waits for SQL: the server does not answer; looked at again in 8 s",
        ),
        (
            facts("dying", workers=1, place="burials", ahead=2),
            "queue",
            "dying: its dead letter must be written, 2 ahead of it; 1 live worker of size small, "
            "none is asking for work now",
        ),
        (
            facts("dying", workers=1, place="burials", ahead=2, peers=(Peer("7@host", sql="no"),)),
            "sql",
            "dying: waits for SQL: no (says 7@host, which tries every few seconds)",
        ),
        (
            parked(MUTEX),
            "lock",
            "waiting: lock:mutex:job:7 is held by task t-1 (files:Audit on 7@host) for 1 min 15 s",
        ),
        (
            parked(replace(MUTEX, ahead=3, first="t-3")),
            "lock",
            "waiting: lock:mutex:job:7 is held by task t-1 (files:Audit on 7@host) for 1 min 15 s; "
            "3 ahead of it",
        ),
        (
            parked(replace(MUTEX, holders=(LEFT,))),
            "lock",
            "waiting: lock:mutex:job:7 is held by code of task t-3 (files:Audit on 7@host) that "
            "ignores its cancellation for 40 s; restart worker 7@host",
        ),
        (
            parked(replace(MUTEX, holders=(PROGRAM,))),
            "lock",
            "waiting: lock:mutex:job:7 is held by a program that is no task (8@host, hold-1) for "
            "3 s",
        ),
        (
            parked(replace(MUTEX, holders=(LOST,))),
            "lock",
            "waiting: lock:mutex:job:7 is held by a lost attempt of task t-2 (files:Audit), whose "
            "lock ends in 12 s",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", True, back_in=17.0)),
            "calm",
            "waiting: lock:mutex:job:7 is granted to nobody for 17 s more: Redis has lost its "
            "data, and whoever held it before may not know that yet",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", True)),
            "calm",
            "waiting: lock:mutex:job:7 is granted to nobody: Redis has lost its data, and whoever "
            "held it before may not know that yet",
        ),
        (
            parked(replace(MUTEX, lock="lock:rw:job:7", kind="W", holding=3)),
            "lock",
            "waiting: lock:rw:job:7 is held by task t-1 (files:Audit on 7@host) for 1 min 15 s "
            "and 2 other readers",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", False, ahead=4, first="t-3")),
            "turn",
            "waiting: 4 ahead of it for lock:mutex:job:7 (the first is task t-3)",
        ),
        (
            parked(replace(SLOTS, is_held=False, ahead=1, first="t-3")),
            "turn",
            "waiting: 1 ahead of it for limiter:conc:job:7 (the first is task t-3)",
        ),
        (parked(SLOTS), "limiter", "waiting: limiter:conc:job:7: 8 of 8 in use"),
        (
            parked(replace(SLOTS, used=9, ahead=2)),
            "limiter",
            "waiting: limiter:conc:job:7: 9 of 8 in use; 2 ahead of it",
        ),
        (
            parked(RATE),
            "rate",
            "waiting: limiter:rate:job:7: 10 of 10 in 60 s used, next token in 3.2 s",
        ),
        (
            parked(replace(RATE, used=8, items=3)),
            "rate",
            "waiting: limiter:rate:job:7: 8 of 10 in 60 s used, one execution counts 3, next token "
            "in 3.2 s",
        ),
        (
            parked(replace(RATE, items=11, is_impossible=True)),
            "impossible",
            "waiting: limiter:rate:job:7 allows 10, one execution counts 11: it dies when it is "
            "looked at",
        ),
        (
            parked(None),
            "look",
            "waiting: nothing refuses it any more, it is about to be looked at (at the latest in "
            "30 s)",
        ),
        (
            facts("waiting", due=NOW + 12, blocker="a worker does not know files:Audit"),
            "hand-back",
            "waiting: handed back: a worker does not know files:Audit; looked at again in 12 s",
        ),
        (
            facts("delayed", due=NOW + 3600),
            "time",
            "delayed until 2026-07-01 13:00:00Z (in 1 h)",
        ),
        (
            facts("delayed", due=NOW + 20, used=1, error="ValueError: no"),
            "retry",
            "delayed until 2026-07-01 12:00:20Z (in 20 s): attempt 2 follows after ValueError: no",
        ),
        (
            facts(
                "delayed",
                due=NOW + 20,
                used=2,
                crashes=2,
                crash_limit=3,
                error="TaskCrashed: its process was killed by signal 11 (SIGSEGV)\nand so on",
            ),
            "retry",
            "delayed until 2026-07-01 12:00:20Z (in 20 s): attempt 3 follows after TaskCrashed: "
            "its process was killed by signal 11 (SIGSEGV) in attempt 2 (crash 2 of 3)",
        ),
        (
            # It crashed before, and failed in another way last.
            facts(
                "delayed", due=NOW + 20, used=2, crashes=1, crash_limit=3, error="ValueError: no"
            ),
            "retry",
            "delayed until 2026-07-01 12:00:20Z (in 20 s): attempt 3 follows after ValueError: no",
        ),
        (
            facts("delayed", due=NOW - 60),
            "promoter",
            "delayed: due for 1 min, but nobody moves it: no task-scheduler leads and no "
            "task-worker is live",
        ),
        (
            facts("delayed", due=NOW - 60, promoters=1),
            "time",
            "delayed until 2026-07-01 11:59:00Z (in 0 s)",
        ),
        (
            queued(workers=0, ahead=9),
            "worker",
            "queued: no live worker of size small: start a task-worker --size small",
        ),
        (
            queued(ahead=9),
            "queue",
            "queued: 9 ahead of it; 2 live workers of size small, none is asking for work now",
        ),
        (
            queued(ahead=1, idle=1),
            "queue",
            "queued: 1 ahead of it; an idle worker is about to read them",
        ),
        (
            queued(ahead=1000, place="beyond"),
            "queue",
            "queued: more than 1000 ahead of it; 2 live workers of size small, none is asking for "
            "work now",
        ),
        (
            queued(place="suspects", ahead=3),
            "suspect",
            "queued: a process died while it ran, so it runs apart, after ordinary work; "
            "3 ahead of it",
        ),
        (
            queued(),
            "queue",
            "queued: next in line; 2 live workers of size small, none is asking for work now",
        ),
        (
            queued(idle=1),
            "queue",
            "queued: next in line; an idle worker is about to read them",
        ),
        (queued(place="woken"), "woken", "queued: woken, a worker of size small will take it"),
        (
            queued(place="none"),
            "queue",
            "queued: in no stream: a fetch was cut short, and it is queued again when that lease "
            "has ended; or Redis has lost its entry",
        ),
    ],
)
def test_the_first_cause_in_words(known: Facts, cause: str, text: str) -> None:
    """Each state and cause reads as a sentence that begins with the state."""
    found = explain(known)
    assert (found.cause, found.text) == (cause, text)
    assert found.text.startswith(found.state) and found.state == known.state


@pytest.mark.parametrize(
    ("known", "cause", "text"),
    [
        (
            facts("running", worker="7@host", running_seconds=3, cancel="by ann@host 7: enough"),
            "cancelling",
            "running on 7@host for 3 s, cancelled by ann@host 7: enough",
        ),
        (
            facts("running", worker="7@host", cancel="by ann", is_worker_alive=False),
            "cancelling",
            "running on 7@host for 0 s, cancelled by ann; that worker no longer answers: the task "
            "ends when its lease has ended",
        ),
        (
            queued(cancel="by ann"),
            "cancelling",
            "queued: cancelled by ann; it ends as soon as a worker reads it",
        ),
        (
            queued(start_by=NOW + 61),
            "queue",
            "queued: next in line; 2 live workers of size small, none is asking for work now; it "
            "expires in 1 min 1 s unless it is started (start_by)",
        ),
        (
            queued(place="woken", start_by=NOW - 1),
            "woken",
            "queued: woken, a worker of size small will take it; it is about to expire (start_by)",
        ),
    ],
)
def test_what_ends_a_task_early(known: Facts, cause: str, text: str) -> None:
    """Who cancelled it comes first; a deadline is told beside any cause."""
    found = explain(known)
    assert (found.cause, found.text) == (cause, text)


def test_what_programs_need_is_not_only_in_the_text() -> None:
    """Lock, holders, number ahead, worker and time of a change are fields."""
    found = explain(parked(replace(RATE, ahead=2)))
    assert (found.lock, found.ahead, found.holders) == (RATE.lock, 2, ())
    assert found.until == datetime.fromtimestamp(NOW + 3.25, UTC)
    assert explain(parked(MUTEX)).holders == (HOLDER,)
    assert explain(facts("running", worker="7@host")).worker == "7@host"
    assert explain(facts("done", is_ended=True)) == Explanation("t", "done", "ended", "done")


OLD = Peer("1@old", layout=1, version="1.4")
NEW = Peer("2@new", layout=1, version="2.0")
IGNORANT = Peer("3@other", layout=1, build="0.9")
SILENT = Peer("4@before", layout=None)
FULL = replace(NEW, off="memory: 1 MiB free")


@pytest.mark.parametrize(
    ("peers", "needs", "cause", "text"),
    [
        (
            (IGNORANT,) * 2,
            Needs(),
            "unknown",
            "no live worker of size small knows x:T (2 workers with Nonet 0.9)",
        ),
        ((IGNORANT, OLD), Needs(), "queue", "next in line; 2 live workers"),
        ((IGNORANT, SILENT), Needs(), "queue", "next in line; 2 live workers"),
        (
            (IGNORANT, OLD, OLD),
            Needs(min_version="2.0"),
            "unknown",
            "x:T needs version 2.0, and no live worker of size small has it (2 workers: 1.4)",
        ),
        (
            (replace(OLD, version=""),),
            Needs(min_version="2.0"),
            "unknown",
            "x:T needs version 2.0, and no live worker of size small has it (1 worker: no version)",
        ),
        ((OLD, NEW), Needs(min_version="2.0"), "queue", "next in line"),
        (
            (NEW,),
            Needs(layout=2),
            "unknown",
            "no live worker of size small reads tasks of format 2 (1 worker up to 1): upgrade",
        ),
        (
            (OLD, FULL),
            Needs(),
            "queue",
            "next in line; 1 of 2 workers of size small takes nothing: memory: 1 MiB free (2@new)",
        ),
        (
            (FULL,),
            Needs(),
            "veto",
            "next in line; 1 of 1 worker of size small takes nothing: memory: 1 MiB free (2@new)",
        ),
        (
            (FULL, FULL),
            Needs(),
            "veto",
            "next in line; 2 of 2 workers of size small take nothing: memory: 1 MiB free (2@new)",
        ),
    ],
)
def test_what_live_workers_know_is_told(
    peers: tuple[Peer, ...], needs: Needs, cause: str, text: str
) -> None:
    """Whoever does not say what it knows might run anything."""
    known = {"name": "x:T", "stream": "normal:small", "needs": needs, "workers": len(peers)}
    found = explain(queued(**known, peers=peers))
    assert (found.cause, found.text.startswith(f"queued: {text}")) == (cause, True), found.text


def test_of_very_many_workers_nothing_is_concluded() -> None:
    """Only some of them were looked at."""
    found = explain(queued(name="x:T", workers=101, peers=(IGNORANT,) * 100))
    assert found.cause == "queue"


def test_who_could_run_what_was_handed_on() -> None:
    """One by name, the others by their number; nobody if nobody can."""
    back = {"due": NOW + 5, "blocker": "a worker does not know x:T", "name": "x:T", "handed_on": 2}
    found = explain(facts("waiting", **back, workers=3, peers=(IGNORANT, NEW, OLD)))
    assert found.text == (
        "waiting: handed back: a worker does not know x:T; 2@new and 1 more can run it, and take "
        "it into a free slot"
    )
    found = explain(facts("waiting", **back, workers=1, peers=(IGNORANT,)))
    assert found.text.endswith("; it starts when a worker that can run it registers")
    assert (found.cause, found.until) == ("unknown", None)
