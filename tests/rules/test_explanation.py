"""From facts to words: each cause once, and what decides between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nonet.rules.explanation import Explanation, Facts, explain
from nonet.rules.pauses import Pause
from nonet.rules.peers import Needs, Peer
from nonet.rules.refusal import LockHolder, Refusal
from nonet.rules.workflows import Blocked, Predecessor

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()
SINCE = datetime(2026, 7, 1, 11, tzinfo=UTC)
HOLDER = LockHolder("t-1", "files:Audit", "7@host", 75.0, 20.0, True)
PROGRAM = LockHolder("hold-1", "hold", "8@host", 3.0, 20.0, True)
LOST = LockHolder("t-2", "files:Audit", "", None, 12.0, False)
DEAD = replace(HOLDER, is_renewed=False)
LEFT = LockHolder("t-3", "files:Audit", "7@host", 40.0, 20.0, True, is_left=True)
MUTEX = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(HOLDER,))
SLOTS = Refusal("limiter:conc:job:7", "C", True, used=8, limit=8, back_in=20.0)
RATE = Refusal("limiter:rate:job:7", "L", True, used=10, limit=10, window_seconds=60, back_in=3.25)
BEFORE = Predecessor("w:3", "mail:Send", "waiting")
ROOT = Predecessor("w:0", "mail:Fetch", "running")
BLOCKED = Blocked("w", "running", missing=3, before=BEFORE, root=ROOT)


def facts(state: str, **known: Any) -> Facts:
    return Facts(**{"id": "t", "state": state, "now": NOW, "stream": "normal:small", **known})


def parked(refusal: Refusal | None, **known: Any) -> Facts:
    return facts("waiting", is_parked=True, refusal=refusal, due=NOW + 30, **known)


def blocked(**known: Any) -> Facts:
    return facts("waiting", blocked=replace(BLOCKED, **known))


def queued(**known: Any) -> Facts:
    return facts("queued", **{"workers": 2, "place": "tasks", **known})


@pytest.mark.parametrize(
    ("known", "cause", "text"),
    [
        (facts("done", is_ended=True), "ended", "done"),
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
            "waiting: task Audit is paused since 2026-07-01 11:00:00Z by ann@host 7",
        ),
        (
            queued(paused=Pause("stream:normal:small", SINCE, "ann@host 7", "disk full")),
            "paused",
            "queued: stream normal:small is paused since 2026-07-01 11:00:00Z by ann@host 7: disk "
            "full",
        ),
        (
            parked(None, paused=Pause("all", SINCE, "ann@host 7")),
            "paused",
            "waiting: everything is paused since 2026-07-01 11:00:00Z by ann@host 7",
        ),
        (
            blocked(),
            "step",
            "waiting: it comes after w:3 (mail:Send, waiting) and 2 others. What they wait for "
            "first is w:0 (mail:Fetch, running)",
        ),
        (
            blocked(missing=1, before=ROOT),
            "step",
            "waiting: it comes after w:0 (mail:Fetch, running)",
        ),
        (
            blocked(missing=2, before=replace(ROOT, state="done")),
            "step",
            "waiting: it comes after w:0 (mail:Fetch, done, but not the steps that it added) and "
            "1 other",
        ),
        (
            blocked(state="building", before=None, root=None),
            "step",
            "waiting: its workflow w is still being submitted",
        ),
        (blocked(state="resuming"), "step", "waiting: its workflow w is still being resumed"),
        (
            blocked(cancel="by ann@host 7: no"),
            "step",
            "waiting: its workflow w is being cancelled by ann@host 7: no",
        ),
        (
            blocked(before=None, root=None),
            "step",
            "waiting: the steps before it have ended, so it is about to be released",
        ),
        (
            blocked(before=replace(BEFORE, state="followed")),
            "step",
            "waiting: w:3 has ended, and its successors are being released",
        ),
        (
            blocked(before=replace(BEFORE, state="lost")),
            "step",
            "waiting: it comes after w:3, which is gone from Redis. A worker ends it within "
            "minutes",
        ),
        (
            blocked(state=""),
            "step",
            "waiting: its workflow w is gone from Redis. A worker ends it within minutes",
        ),
        (
            facts("running", worker="7@host", running_seconds=12.3),
            "running",
            "running on 7@host for 12 s",
        ),
        (
            facts("running", worker="7@host", running_seconds=50, is_worker_alive=False, workers=1),
            "running",
            "running on 7@host for 50 s. That worker no longer answers; another one takes over "
            "when the lease ends",
        ),
        (
            facts("running", worker="7@host", running_seconds=50, is_worker_alive=False),
            "worker",
            "running on 7@host for 50 s. That worker no longer answers, and no small worker is "
            "live",
        ),
        (
            facts("dying", worker="7@host", is_worker_alive=False),
            "worker",
            "dying: 7@host is writing its dead letter to SQL. That worker no longer answers, and "
            "no small worker is live",
        ),
        (facts("dying", worker="7@host"), "sql", "dying: 7@host is writing its dead letter to SQL"),
        (
            facts("dying", worker="7@host", is_worker_alive=False, workers=1),
            "sql",
            "dying: 7@host is writing its dead letter to SQL. That worker no longer answers; "
            "another one takes over when the lease ends",
        ),
        (
            facts("dying", place="burials"),
            "worker",
            "dying, its dead letter not yet in SQL: no small worker is live",
        ),
        (
            facts("dying", due=NOW + 8, blocker="SQL: the server does not answer"),
            "sql",
            "dying: its dead letter cannot be written to SQL: the server does not answer. Next "
            "try in 8 s",
        ),
        (
            facts("dying", workers=1, place="burials", ahead=2),
            "queue",
            "dying, its dead letter not yet in SQL, 2 ahead of it. A small worker writes it",
        ),
        (
            facts("dying", workers=1, place="burials", ahead=2, peers=(Peer("7@host", sql="no"),)),
            "sql",
            "dying: its dead letter cannot be written to SQL: no. 7@host retries every few seconds",
        ),
        (
            parked(MUTEX),
            "lock",
            "waiting for lock:mutex:job:7, held for 1 min 15 s by task t-1 (files:Audit on 7@host)",
        ),
        (
            parked(replace(MUTEX, ahead=3, first="t-3")),
            "lock",
            "waiting for lock:mutex:job:7, held for 1 min 15 s by task t-1 (files:Audit on "
            "7@host); 3 ahead of it",
        ),
        (
            parked(replace(MUTEX, holders=(LEFT,))),
            "lock",
            "waiting for lock:mutex:job:7, held for 40 s by code of task t-3 (files:Audit on "
            "7@host) that ignores its cancellation. Restart worker 7@host",
        ),
        (
            parked(replace(MUTEX, holders=(PROGRAM,))),
            "lock",
            "waiting for lock:mutex:job:7, held for 3 s by a program that is not a task (8@host, "
            "hold-1)",
        ),
        (
            parked(replace(MUTEX, holders=(LOST,))),
            "lock",
            "waiting for lock:mutex:job:7, held by a lost attempt of task t-2 (files:Audit). The "
            "lock expires in 12 s",
        ),
        (
            parked(replace(MUTEX, holders=(DEAD,))),
            "lock",
            "waiting for lock:mutex:job:7, held for 1 min 15 s by task t-1 (files:Audit on "
            "7@host). No process renews it: it expires in 20 s",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", True, back_in=17.0)),
            "calm",
            "waiting for lock:mutex:job:7: Redis has lost its data. No task gets the lock for 17 "
            "s more, as an earlier holder may not know of the loss yet",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", True)),
            "calm",
            "waiting for lock:mutex:job:7: Redis has lost its data. No task gets the lock, as an "
            "earlier holder may not know of the loss yet",
        ),
        (
            parked(replace(MUTEX, lock="lock:rw:job:7", kind="W", holding=3)),
            "lock",
            "waiting for lock:rw:job:7, held for 1 min 15 s by task t-1 (files:Audit on 7@host) "
            "and 2 other readers",
        ),
        (
            parked(Refusal("lock:mutex:job:7", "M", False, ahead=4, first="t-3")),
            "turn",
            "waiting for lock:mutex:job:7: 4 ahead of it (the first is task t-3)",
        ),
        (
            parked(replace(SLOTS, is_held=False, ahead=1, first="t-3")),
            "turn",
            "waiting for limiter:conc:job:7: 1 ahead of it (the first is task t-3)",
        ),
        (parked(SLOTS), "limiter", "waiting for limiter:conc:job:7: 8 of 8 in use"),
        (
            parked(replace(SLOTS, used=9, ahead=2)),
            "limiter",
            "waiting for limiter:conc:job:7: 9 of 8 in use; 2 ahead of it",
        ),
        (
            parked(RATE),
            "rate",
            "waiting for limiter:rate:job:7: 10 of 10 used in 60 s. Next token in 3.2 s",
        ),
        (
            parked(replace(RATE, used=8, items=3)),
            "rate",
            "waiting for limiter:rate:job:7: 8 of 10 used in 60 s, and one execution counts 3. "
            "Next token in 3.2 s",
        ),
        (
            parked(replace(RATE, items=11, is_impossible=True)),
            "impossible",
            "waiting for limiter:rate:job:7, which can never admit it: the limit is 10, and one "
            "execution counts 11. It fails for good at the next check. Raise the limit, "
            "or lower n_items of its class",
        ),
        (
            parked(None),
            "look",
            "waiting: nothing refuses it any more. It is checked again within 30 s",
        ),
        (
            facts("waiting", due=NOW + 12, blocker="a worker does not know files:Audit"),
            "hand-back",
            "waiting, handed back: a worker does not know files:Audit. Next try in 12 s",
        ),
        (facts("delayed", due=NOW + 3600), "time", "delayed until 2026-07-01 13:00:00Z (in 1 h)"),
        (
            facts("delayed", due=NOW + 20, used=1, error="ValueError: no"),
            "retry",
            "delayed until 2026-07-01 12:00:20Z (in 20 s) for attempt 2. The last attempt "
            "failed: ValueError: no",
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
            "delayed until 2026-07-01 12:00:20Z (in 20 s) for attempt 3. The last attempt "
            "failed: TaskCrashed: its process was killed by signal 11 (SIGSEGV) (crash 2 of 3)",
        ),
        (
            # It crashed before, and failed in another way last.
            facts(
                "delayed", due=NOW + 20, used=2, crashes=1, crash_limit=3, error="ValueError: no"
            ),
            "retry",
            "delayed until 2026-07-01 12:00:20Z (in 20 s) for attempt 3. The last attempt "
            "failed: ValueError: no",
        ),
        (
            facts("delayed", due=NOW - 60),
            "promoter",
            "delayed, overdue by 1 min: no scheduler leads and no worker is live",
        ),
        (
            facts("delayed", due=NOW - 60, promoters=1),
            "time",
            "delayed until 2026-07-01 11:59:00Z (in 0 s)",
        ),
        (queued(workers=0, ahead=9), "worker", "queued: no small worker is live"),
        (queued(ahead=9), "queue", "queued, 9 ahead of it. Both live small workers are busy"),
        (
            queued(ahead=1, idle=1),
            "queue",
            "queued, 1 ahead of it. An idle small worker is about to read the stream",
        ),
        (
            queued(ahead=1000, place="beyond"),
            "queue",
            "queued, more than 1000 ahead of it. Both live small workers are busy",
        ),
        (
            queued(place="suspects", ahead=3),
            "suspect",
            "queued: a process died while running it, so it runs alone, after ordinary tasks; 3 "
            "ahead of it",
        ),
        (
            queued(),
            "queue",
            "queued, first in its stream. Both live small workers are busy; it starts when a "
            "slot frees",
        ),
        (
            queued(idle=1),
            "queue",
            "queued, first in its stream. An idle small worker is about to read the stream",
        ),
        (queued(place="woken"), "woken", "queued, woken: the next free small worker runs it"),
        (
            queued(place="none"),
            "queue",
            "queued, but in no stream: a fetch was cut short, or Redis lost the entry. Workers "
            "queue it again when the lease ends",
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
            "running on 7@host for 0 s, cancelled by ann. That worker no longer answers; the "
            "task ends when its lease ends",
        ),
        (
            queued(cancel="by ann"),
            "cancelling",
            "queued, cancelled by ann. It ends when a worker reads it",
        ),
        (
            queued(start_by=NOW + 61),
            "queue",
            "queued, first in its stream. Both live small workers are busy; it starts when a "
            "slot frees. It expires in 1 min 1 s unless it starts (start_by)",
        ),
        (
            queued(place="woken", start_by=NOW - 1),
            "woken",
            "queued, woken: the next free small worker runs it. It is about to expire (start_by)",
        ),
    ],
)
def test_what_ends_a_task_early(known: Facts, cause: str, text: str) -> None:
    """Who cancelled it comes first; a deadline is told beside any cause."""
    found = explain(known)
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize(
    ("known", "next"),
    [
        (facts("running", worker="7@host"), ""),
        (facts("running", worker="7@host", is_worker_alive=False), "task-worker --size small"),
        (queued(cancel="by ann"), ""),
        (queued(cancel="by ann", workers=0), "task-worker --size small"),
        (facts("waiting", paused=Pause("all", SINCE, "ann")), "task-run resume --all"),
        (
            queued(paused=Pause("stream:normal:small", SINCE, "ann")),
            "task-run resume --stream normal:small",
        ),
        (queued(paused=Pause("task:x:T", SINCE, "ann")), "task-run resume --task x:T"),
        (blocked(), "task-run explain w:0"),
        (blocked(state="building"), "task-run workflows show w"),
        (blocked(workflow="-w", cancel="by ann"), "task-run workflows show -- -w"),
        (blocked(before=None, root=None), ""),
        (blocked(before=replace(BEFORE, state="lost")), "task-run doctor"),
        (parked(MUTEX), "task-run cancel t-1"),
        (parked(replace(MUTEX, holders=(LEFT,))), "task-run locks release lock:mutex:job:7"),
        (parked(replace(MUTEX, holders=(PROGRAM,))), "task-run locks release lock:mutex:job:7"),
        (
            parked(replace(MUTEX, lock="lock:mutex:job:~a", holders=(PROGRAM,))),
            "task-run locks release 'lock:mutex:job:~a'",
        ),
        (parked(replace(MUTEX, holders=(LOST,))), ""),
        (parked(replace(MUTEX, holders=(DEAD,))), ""),
        (parked(replace(MUTEX, holders=())), ""),
        (parked(replace(MUTEX, is_held=False, ahead=1, first="t-3")), "task-run explain t-3"),
        (parked(SLOTS), "task-run limits set limiter:conc:job:7 --concurrency 9"),
        (parked(RATE), "task-run limits set limiter:rate:job:7 --rate 11 --window 60"),
        (
            parked(replace(RATE, items=30, is_impossible=True)),
            "task-run limits set limiter:rate:job:7 --rate 30 --window 60",
        ),
        (parked(None), ""),
        (facts("delayed", due=NOW + 20), ""),
        (facts("delayed", due=NOW - 60), "task-scheduler"),
        (facts("waiting", due=NOW + 12, blocker="no"), ""),
        (facts("dying", due=NOW + 8, blocker="SQL: no"), "task-run db check"),
        (
            facts("dying", workers=1, place="burials", peers=(Peer("7@host", sql="no"),)),
            "task-run db check",
        ),
        (queued(workers=0), "task-worker --size small"),
        (queued(), "task-worker --size small"),
        (queued(workers=1, peers=(Peer("7@host", off="memory"),)), "task-worker --size small"),
        (queued(workers=1, peers=(Peer("7@host", layout=1),)), ""),
        (queued(idle=1), ""),
        (queued(place="woken"), ""),
        (
            facts("dead", is_ended=True, error="Malformed: no (quarantined)"),
            "task-run quarantine list",
        ),
        (facts("dead", is_ended=True, error="ValueError: no (retries)"), ""),
    ],
)
def test_the_next_command_ends_the_wait(known: Facts, next: str) -> None:
    """Each cause has one command that can be typed as it is, or none if waiting is right."""
    found = explain(known)
    assert found.next == next
    assert found.line == found.text + (f". Next: '{next}'" if next else "")


def test_a_name_that_cannot_be_typed_gives_no_command() -> None:
    """A control character in an id would do something in the terminal."""
    holder = replace(HOLDER, id="t\x1b[2J")
    assert explain(parked(replace(MUTEX, holders=(holder,)))).next == ""


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
            ": no live small worker knows x:T (2 workers with Nonet 0.9). Deploy its package there",
        ),
        ((IGNORANT, OLD), Needs(), "queue", ", first in its stream. Both live"),
        ((IGNORANT, SILENT), Needs(), "queue", ", first in its stream. Both live"),
        (
            (IGNORANT, OLD, OLD),
            Needs(min_version="2.0"),
            "unknown",
            ": x:T needs version 2.0, and no live small worker has it (2 workers: 1.4). Upgrade",
        ),
        (
            (replace(OLD, version=""),),
            Needs(min_version="2.0"),
            "unknown",
            ": x:T needs version 2.0, and no live small worker has it (1 worker: no version). Up",
        ),
        ((OLD, NEW), Needs(min_version="2.0"), "queue", ", first in its stream. Both"),
        (
            (NEW,),
            Needs(layout=2),
            "unknown",
            ": no live small worker reads tasks of format 2 (1 worker up to 1). Upgrade",
        ),
        (
            (NEW, replace(NEW, keys=("old 0a1b",))),
            Needs(key="new 4e5f"),
            "unknown",
            ": it is encrypted with key new, which no live small worker has (2 workers). Set NO",
        ),
        ((NEW, replace(OLD, keys=("new 4e5f",))), Needs(key="new 4e5f"), "queue", ", first"),
        (
            (OLD, FULL),
            Needs(),
            "queue",
            ", first in its stream. 1 of 2 small workers takes no tasks: memory: 1 MiB free",
        ),
        (
            (FULL,),
            Needs(),
            "veto",
            ", first in its stream. 1 of 1 small worker takes no tasks: memory: 1 MiB free",
        ),
        (
            (FULL, FULL),
            Needs(),
            "veto",
            ", first in its stream. 2 of 2 small workers take no tasks: memory: 1 MiB free (2@new)",
        ),
    ],
)
def test_what_live_workers_know_is_told(
    peers: tuple[Peer, ...], needs: Needs, cause: str, text: str
) -> None:
    """Whoever does not say what it knows might run anything."""
    known = {"name": "x:T", "stream": "normal:small", "needs": needs, "workers": len(peers)}
    found = explain(queued(**known, peers=peers))
    assert (found.cause, found.text.startswith(f"queued{text}")) == (cause, True), found.text


def test_of_very_many_workers_nothing_is_concluded() -> None:
    """Only some of them were looked at."""
    found = explain(queued(name="x:T", workers=101, peers=(IGNORANT,) * 100))
    assert found.cause == "queue"


def test_who_could_run_what_was_handed_on() -> None:
    """One by name, the others by their number; nobody if nobody can."""
    back = {"due": NOW + 5, "blocker": "a worker does not know x:T", "name": "x:T", "handed_on": 2}
    found = explain(facts("waiting", **back, workers=3, peers=(IGNORANT, NEW, OLD)))
    assert found.text == (
        "waiting, handed back: a worker does not know x:T. 2@new and 1 more can run it as soon as "
        "a slot is free"
    )
    found = explain(facts("waiting", **back, workers=1, peers=(IGNORANT,)))
    assert found.text.startswith("waiting, handed back: no live small worker knows x:T (1 worker")
    assert (found.cause, found.until) == ("unknown", None)
