"""From facts to words: each cause once, and what decides between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rules.sentences import contains, harms

from nonet.rules.findings.explanation import Explanation, Facts, explain
from nonet.rules.findings.peers import Needs, Peer
from nonet.rules.findings.refusal import LockHolder, Refusal
from nonet.rules.limit_changes import Override
from nonet.rules.limits import Limit
from nonet.rules.pauses import Pause
from nonet.rules.workflows import Blocked, Predecessor

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()
SINCE = datetime(2026, 7, 1, 11, tzinfo=UTC)
HOLDER = LockHolder("t-1", "files:Audit", "7@host", 75.0, 20.0, True)
PROGRAM = LockHolder("hold-1", "hold", "8@host", 3.0, 20.0, True)
LOWERED = Override("limiter:rate:job:7", Limit(1, 60.0), "ann", otherwise=Limit(10, 60.0))
LOST = LockHolder("t-2", "files:Audit", "", None, 12.0, False)
DEAD = replace(HOLDER, is_renewed=False)
LEFT = LockHolder("t-3", "files:Audit", "7@host", 40.0, 20.0, True, is_left=True)
MUTEX = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(HOLDER,))
SLOTS = Refusal("limiter:conc:job:7", "C", True, used=8, limit=8, back_in=20.0)
RATE = Refusal("limiter:rate:job:7", "L", True, used=10, limit=10, window_seconds=60, back_in=3.25)
BEFORE = Predecessor("w:3", "mail:Send", "waiting")
ROOT = Predecessor("w:0", "mail:Fetch", "running")
ALL_SLOTS = Peer("7@host", slots=100, running=100, threads=8)
ALL_THREADS = replace(ALL_SLOTS, running=9)
KILLED = "TaskCrashed: its process was killed"
DEAD_WORKER = {"is_worker_alive": False}
BLOCKED = Blocked("w", "running", missing=3, before=BEFORE, root=ROOT)


def facts(state: str, **known: Any) -> Facts:
    return Facts(**{"id": "t", "state": state, "now": NOW, "stream": "normal:small", **known})


def parked(refusal: Refusal | None, **known: Any) -> Facts:
    return facts("waiting", is_parked=True, refusal=refusal, due=NOW + 30, **known)


def held_by(holder: LockHolder) -> Facts:
    return parked(replace(MUTEX, holders=(holder,)))


def on_host(state: str, **known: Any) -> Facts:
    return facts(state, worker="7@host", **known)


def failed(**known: Any) -> Facts:
    return facts("delayed", due=NOW + 20, **{"error": "ValueError: no", **known})


def burial(**known: Any) -> Facts:
    return facts("dying", workers=1, place="burials", ahead=2, **known)


def blocked(**known: Any) -> Facts:
    return facts("waiting", blocked=replace(BLOCKED, **known))


def paused(what: str, reason: str = "") -> Facts:
    return queued(paused=Pause(what, SINCE, "ann@host 7", reason))


def queued(**known: Any) -> Facts:
    return facts("queued", **{"workers": 2, "place": "tasks", **known})


# By cause: facts, and what of the text matters.
CAUSES: dict[str, list[tuple[Facts, str]]] = {
    "ended": [
        (facts("done", is_ended=True), "done$"),
        (facts("dead", is_ended=True, error="ValueError: no"), "dead: ValueError: no$"),
        (facts("cancelled", is_ended=True, error="cancelled by ann"), "cancelled by ann$"),
        (facts("expired", is_ended=True), "expired$"),
    ],
    "paused": [
        (paused("task:Audit"), "task Audit is paused since 2026-07-01 11:00:00Z by ann@host 7$"),
        (paused("stream:a:b", "disk full"), "stream a:b is paused … by ann@host 7: disk full$"),
        (replace(paused("all"), state="waiting", is_parked=True), "everything is paused since"),
    ],
    "step": [
        (blocked(), "comes after w:3 (mail:Send, waiting) and 2 others. … w:0 (mail:Fetch"),
        (blocked(missing=1, before=ROOT), "it comes after w:0 (mail:Fetch, running)$"),
        (
            blocked(missing=2, before=replace(ROOT, state="done")),
            "(mail:Fetch, done, but not the steps that it added) and 1 other$",
        ),
        (blocked(state="building", before=None, root=None), "w is still being submitted"),
        (blocked(state="resuming"), "its workflow w is still being resumed"),
        (blocked(cancel="by ann: no"), "its workflow w is being cancelled by ann: no"),
        (blocked(before=None, root=None), "it is about to be released"),
        (blocked(before=replace(BEFORE, state="followed")), "w:3 has ended, and its succ"),
        (blocked(before=replace(BEFORE, state="lost")), "after w:3, which is gone from"),
        (blocked(state=""), "its workflow w is gone from Redis"),
    ],
    "running": [
        (on_host("running", running_seconds=12.3), "running on 7@host for 12 s$"),
        (
            on_host("running", running_seconds=3, blocker="the lease could not be renewed"),
            "running on 7@host for 3 s. It was handed back before: the lease could not be renewed$",
        ),
        (on_host("running", **DEAD_WORKER, workers=1), "another one takes over when the"),
    ],
    "cancelling": [
        (
            on_host("running", running_seconds=3, cancel="by ann: enough"),
            "running on 7@host for 3 s, cancelled by ann: enough$",
        ),
        (on_host("running", **DEAD_WORKER, cancel="by ann"), "when its lease ends"),
        (queued(cancel="by ann"), "cancelled by ann. It ends when a worker reads it"),
    ],
    "worker": [
        (on_host("running", **DEAD_WORKER), "and no small worker is live"),
        (on_host("dying", **DEAD_WORKER), "no longer answers, and no small worker is live"),
        (facts("dying", place="burials"), "not yet in SQL: no small worker is live"),
        (queued(workers=0, ahead=9), "queued: no small worker is live$"),
    ],
    "sql": [
        (on_host("dying"), "7@host is writing its dead letter to SQL"),
        (on_host("dying", **DEAD_WORKER, workers=1), "another one takes over when the lease"),
        (facts("dying", due=NOW + 8, blocker="SQL: busy"), "to SQL: busy. Next try in 8 s"),
        (burial(peers=(Peer("7@host", sql="no"),)), "to SQL: no. 7@host retries every few"),
    ],
    "lock": [
        (parked(MUTEX), "job:7, held for 1 min 15 s by task t-1 (files:Audit on 7@host)$"),
        (parked(replace(MUTEX, ahead=3, first="t-3")), "by task t-1 … on 7@host); 3 ahead"),
        (parked(replace(MUTEX, kind="W", holding=3)), "on 7@host) and 2 other readers"),
        (held_by(LEFT), "code of task t-3 … ignores its cancellation. Restart worker 7@host"),
        (held_by(PROGRAM), "held for 3 s by a program that is not a task (8@host, hold-1)"),
        (held_by(LOST), "by a lost attempt of task t-2 (files:Audit). … expires in 12 s"),
        (held_by(DEAD), "task t-1 … No process renews it: it expires in 20 s"),
    ],
    "withheld": [
        (
            parked(Refusal("lock:mutex:job:7", "M", True, back_in=17.0)),
            "Redis has lost its data. No task gets the lock for 17 s more",
        ),
        (parked(Refusal("lock:mutex:job:7", "M", True)), "No task gets the lock, as an"),
    ],
    "turn": [
        (parked(replace(MUTEX, is_held=False, ahead=4, first="t-3")), "4 ahead of it (the first"),
        (parked(replace(SLOTS, is_held=False, ahead=1, first="t-3")), "job:7: 1 ahead of it"),
    ],
    "limiter": [
        (parked(SLOTS), "waiting for limiter:conc:job:7: 8 of 8 in use$"),
        (parked(replace(SLOTS, used=9, ahead=2)), "9 of 8 in use; 2 ahead of it$"),
    ],
    "rate": [
        (parked(RATE), "10 of 10 used in 60 s. Next token in 3.2 s$"),
        (parked(replace(RATE, used=8, items=3)), "8 of 10 … one execution counts 3. Next"),
    ],
    "impossible": [
        (
            parked(replace(RATE, items=11, is_impossible=True)),
            "can never admit it: the limit is 10, and one execution counts 11",
        )
    ],
    "look": [(parked(None), "nothing refuses it any more. It is checked again within 30 s$")],
    "hand-back": [(facts("waiting", due=NOW + 12, blocker="no x:T"), "no x:T. Next try in 12 s")],
    "time": [
        (facts("delayed", due=NOW + 3600), "delayed until 2026-07-01 13:00:00Z (in 1 h)$"),
        (facts("delayed", due=NOW - 60, promoters=1), "2026-07-01 11:59:00Z (in 0 s)$"),
    ],
    "promoter": [(facts("delayed", due=NOW - 60), "delayed, overdue by 1 min: no scheduler leads")],
    "retry": [
        (failed(used=1), "for attempt 2. The last attempt failed: ValueError: no$"),
        (
            failed(used=2, crashes=2, crash_limit=3, error=f"{KILLED}\nmore"),
            f"for attempt 3. … {KILLED} (crash 2 of 3)",
        ),
        # It crashed before, and failed in another way last.
        (failed(used=2, crashes=1, crash_limit=3), "ValueError: no$"),
    ],
    "queue": [
        (burial(), "not yet in SQL, 2 ahead of it. A small worker writes it"),
        (queued(ahead=9), "queued, 9 ahead of it. Both live small workers are busy$"),
        (
            queued(workers=1, peers=(ALL_SLOTS,)),
            "The only live small worker is busy (100 slots); it starts when a slot frees$",
        ),
        (
            queued(workers=1, peers=(ALL_THREADS,)),
            "busy (9 of 100 slots): `def` tasks use all 8 threads of 7@host (NONET_THREADS). Until "
            "a thread is free, such a worker fetches nothing, not even coroutines$",
        ),
        (
            queued(peers=(ALL_THREADS, ALL_SLOTS)),
            "(109 of 200 slots in total): `def` tasks use all 8 threads of 7@host (NON",
        ),
        (queued(ahead=1, idle=1), "1 ahead of it. An idle small worker is about to read"),
        (queued(ahead=1000, place="beyond"), "queued, more than 1000 ahead of it"),
        (queued(), "first in its stream. Both live small workers are busy"),
        (queued(idle=1), "first in its stream. An idle small worker is about to read"),
        (queued(place="none"), "queued, but in no stream"),
        (queued(start_by=NOW + 61), "It expires in 1 min 1 s unless it starts (start_by)"),
    ],
    "suspect": [(queued(place="suspects", ahead=3), "runs alone, … tasks; 3 ahead of it")],
    "woken": [
        (queued(place="woken"), "queued, woken: the next free small worker runs it"),
        (queued(place="woken", start_by=NOW - 1), "It is about to expire (start_by)"),
    ],
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_cause_is_a_sentence_that_begins_with_the_state(cause: str) -> None:
    """A cancellation is the cause of any state; a deadline is named beside any cause."""
    for known, text in CAUSES[cause]:
        found = explain(known)
        assert (found.cause, found.state) == (cause, known.state), found.text
        assert found.text.startswith(found.state)
        assert contains(found.text, text), found.text


@pytest.mark.parametrize(
    ("known", "next"),
    [
        (on_host("running"), ""),
        (on_host("running", **DEAD_WORKER), "task-worker --size small"),
        (queued(cancel="by ann", workers=0), "task-worker --size small"),
        (paused("all"), "task-run resume --all"),
        (paused("task:x:T"), "task-run resume --task x:T"),
        (blocked(), "task-run explain w:0"),
        (blocked(state="building"), "task-run workflows show w"),
        (blocked(workflow="-w", cancel="by ann"), "task-run workflows show -- -w"),
        (blocked(before=replace(BEFORE, state="lost")), "task-run doctor"),
        (parked(MUTEX), "task-run explain t-1"),
        (held_by(replace(HOLDER, usual_seconds=1.0)), "task-run cancel t-1"),
        (held_by(LEFT), "task-run locks release lock:mutex:job:7"),
        (
            parked(replace(MUTEX, lock="lock:mutex:job:~a", holders=(PROGRAM,))),
            "task-run locks release 'lock:mutex:job:~a'",
        ),
        (held_by(LOST), ""),
        (parked(replace(MUTEX, is_held=False, ahead=1, first="t-3")), "task-run explain t-3"),
        (parked(SLOTS), ""),
        (parked(replace(RATE, override=LOWERED)), "task-run limits unset limiter:rate:job:7"),
        (facts("delayed", due=NOW - 60), "task-scheduler"),
        (facts("dying", due=NOW + 8, blocker="SQL: no"), "task-run db check"),
        (burial(peers=(Peer("7@host", sql="no"),)), "task-run db check"),
        (queued(), "task-worker --size small"),
        (queued(workers=1, peers=(Peer("7@host", off="memory"),)), "task-worker --size small"),
        (queued(idle=1), ""),
        (facts("dead", is_ended=True, error="no (quarantined)"), "task-run quarantine list"),
        (facts("dead", is_ended=True, error="ValueError: no (retries)"), ""),
    ],
)
def test_the_next_command_ends_the_wait(known: Facts, next: str) -> None:
    """Each cause has one command that can be typed as it is, or none if waiting is right."""
    found = explain(known)
    assert found.next == next and not harms(next)
    assert found.line == found.text + (f". Next: '{next}'" if next else "")


def test_the_explanation_names_similar_classes() -> None:
    """A program without the code gave the wrong category: the task would wait forever."""
    found = explain(queued(name="y:T", peers=(IGNORANT,) * 2, similar=("x:T",)))
    assert "takes y:T (2 workers with Nonet 0.9). They take x:T: is its name right? D" in found.text


def test_a_name_that_cannot_be_typed_gives_no_command() -> None:
    """A control character in an id would do something in the terminal."""
    holder = replace(HOLDER, id="t\x1b[2J")
    assert explain(parked(replace(MUTEX, holders=(holder,)))).next == ""


def test_the_parts_of_an_explanation_are_fields() -> None:
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
UNVERSIONED = replace(OLD, version="")
FULL = replace(NEW, off="memory: 1 MiB free")
VERSION_2, NEW_KEY = Needs(min_version="2.0"), Needs(key="new 4e5f")
NO_VERSION_2 = ": x:T needs version 2.0, and no live small worker has it"


KNOWS = ": no live small worker takes x:T (2 workers with No"
FIRST = ", first in its stream. "


@pytest.mark.parametrize(
    ("peers", "needs", "cause", "text"),
    [
        ((IGNORANT,) * 2, Needs(), "unknown", KNOWS),
        ((IGNORANT, OLD), Needs(), "queue", f"{FIRST}Both live"),
        ((IGNORANT, SILENT), Needs(), "queue", f"{FIRST}Both live"),
        ((IGNORANT, OLD, OLD), VERSION_2, "unknown", f"{NO_VERSION_2} (2 workers: 1.4). Upgrade"),
        ((UNVERSIONED,), VERSION_2, "unknown", f"{NO_VERSION_2} (1 worker: no version"),
        ((OLD, NEW), VERSION_2, "queue", f"{FIRST}Both"),
        ((NEW,), Needs(layout=2), "unknown", ": no live small worker reads tasks of format 2"),
        ((NEW, replace(NEW, keys=("old 0a1b",))), NEW_KEY, "unknown", ": it is encrypted with"),
        ((NEW, replace(OLD, keys=("new 4e5f",))), NEW_KEY, "queue", FIRST),
        ((OLD, FULL), Needs(), "queue", f"{FIRST}1 of 2 small workers takes no task"),
        ((FULL,), Needs(), "veto", f"{FIRST}1 of 1 small worker takes no tasks: mem"),
        ((FULL, FULL), Needs(), "veto", f"{FIRST}2 of 2 small workers take no tasks"),
    ],
)
def test_the_explanation_names_what_live_workers_lack(
    peers: tuple[Peer, ...], needs: Needs, cause: str, text: str
) -> None:
    """A worker that does not report its classes might run any."""
    known = {"name": "x:T", "stream": "normal:small", "needs": needs, "workers": len(peers)}
    found = explain(queued(**known, peers=peers))
    assert (found.cause, found.text.startswith(f"queued{text}")) == (cause, True), found.text


def test_nothing_is_concluded_from_a_part_of_very_many_workers() -> None:
    found = explain(queued(name="x:T", workers=101, peers=(IGNORANT,) * 100))
    assert found.cause == "queue"


def test_the_workers_that_could_run_a_handed_back_task_are_named() -> None:
    back = {"due": NOW + 5, "blocker": "a worker does not know x:T", "name": "x:T", "handed_on": 2}
    found = explain(facts("waiting", **back, workers=3, peers=(IGNORANT, NEW, OLD)))
    assert found.text == (
        "waiting, handed back: a worker does not know x:T. 2@new and 1 more can run it as soon as "
        "a slot is free"
    )
    found = explain(facts("waiting", **back, workers=1, peers=(IGNORANT,)))
    assert found.text.startswith("waiting, handed back: no live small worker takes x:T (1 worker")
    assert (found.cause, found.until) == ("unknown", None)
