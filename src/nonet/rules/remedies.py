"""The command that ends a wait, for each cause of it. Pure.

Each function returns one line that can be typed as it is, quoted for a shell. It returns an empty
text if waiting is right, or if no command helps.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nonet.rules.limits import LimitAddress
from nonet.rules.pauses import as_option
from nonet.rules.refusal import LockHolder, Refusal
from nonet.tasks.locks import KINDS


def command(*words: str) -> str:
    """Quote words for a shell; empty if one of them cannot be typed.

    >>> command("task-run", "explain", "it's"), command("task-run", "a\\nb")
    ('task-run explain \\'it\\'"\\'"\\'s\\'', '')
    """
    return shlex.join(words) if all(word.isprintable() for word in words) else ""


def of(words: str, name: str) -> str:
    """The command that does something with what a caller has named.

    Whoever submits a task may choose its id, so that it must not be taken for an option.

    >>> of("task-run groups", "g 1"), of("task-run cancel", "--task=mail:Send")
    ("task-run groups 'g 1'", 'task-run cancel -- --task=mail:Send')
    """
    return command(*words.split(), *(["--"] if name.startswith("-") else []), name)


def of_task(verb: str, id: str) -> str:
    """The command that does something with one task.

    >>> of_task("cancel", "t-1")
    'task-run cancel t-1'
    """
    return of(f"task-run {verb}", id)


def of_workflow(verb: str, id: str) -> str:
    """The command that shows, cancels or resumes a workflow.

    >>> of_workflow("resume", "nightly")
    'task-run workflows resume nightly'
    """
    return of(f"task-run workflows {verb}", id)


def of_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The command that runs a task here, without a worker.

    Args:
        arguments: by name, in types of JSON.

    >>> of_call("mail:Invoice", {"to": "a b"})
    'task-run call mail:Invoice --kwargs \\'{"to": "a b"}\\''
    """
    given = ("--kwargs", json.dumps(arguments)) if arguments else ()
    return command("task-run", "call", name, *given)


def of_refusal(refusal: Refusal) -> str:
    """The command for a task that a lock or limiter refuses.

    >>> of_refusal(Refusal("lock:mutex:job:7", "M", False, ahead=2, first="t-1"))
    'task-run explain t-1'
    """
    if not refusal.is_held and not refusal.is_impossible:
        return of_turn(refusal.first)
    kind = KINDS[refusal.kind]
    if not kind.limiter:
        return of_lock(refusal.lock, refusal.holders)
    window = refusal.window_seconds if kind.windowed else None
    enough = max(refusal.items, refusal.limit + refusal.ahead + 1)
    return of_limiter(refusal.lock, enough, window)


def of_lock(lock: str, holders: Sequence[LockHolder]) -> str:
    """The command that takes a lock from the first of its holders.

    A live task is cancelled. Nothing else ends code that is not a task, or that ignores its
    cancellation: its lock is released. The preview of the release warns of an overlap. A lost
    attempt, or a dead process, keeps the lock only until it expires.

    >>> of_lock("lock:mutex:job:7", [LockHolder("t-1", "files:Audit", "7@host", 75.0, 20.0, True)])
    'task-run cancel t-1'
    >>> of_lock("lock:mutex:job:7", [LockHolder("hold-1", "hold", "8@host", 3.0, 20.0, True)])
    'task-run locks release lock:mutex:job:7'
    >>> of_lock("lock:mutex:job:7", [LockHolder("t-1", "files:Audit", "", None, 12.0, False)])
    ''
    """
    if not holders:
        return ""
    first = holders[0]
    if not first.is_renewed:
        return ""
    if first.is_left or first.task == "hold":
        return command("task-run", "locks", "release", lock)
    return of_task("cancel", first.id) if first.is_live else ""


def of_limiter(counter: str, enough: int, window: float | None = None) -> str:
    """The command that raises a limit.

    Args:
        counter: name of the limiter, as ``task-run locks`` shows it.
        enough: the limit at which the waiting task, or all of them, could start now. A lower one
            may be right.
        window: seconds, of a rate.

    >>> of_limiter("limiter:conc:job:7", 9)
    'task-run limits set limiter:conc:job:7 --concurrency 9'
    >>> of_limiter("limiter:rate:@lhcb:task:Audit", 30, 60.0)
    'task-run limits set limiter:rate:@lhcb:task:Audit --rate 30 --window 60'
    """
    if LimitAddress.of_counter(counter) is None:
        return ""
    options = ["--concurrency", str(enough)]
    if window is not None:
        options = ["--rate", str(enough), "--window", f"{window:.15g}"]
    return command("task-run", "limits", "set", counter, *options)


def of_turn(first: str) -> str:
    """The command that explains the first of the waiters that are served earlier.

    >>> of_turn("t-1"), of_turn("")
    ('task-run explain t-1', '')
    """
    return of_task("explain", first) if first else ""


def of_pause(what: str) -> str:
    """The command that ends a pause.

    Args:
        what: see `nonet.rules.pauses.Pause`.

    >>> of_pause("all"), of_pause("stream:normal:small")
    ('task-run resume --all', 'task-run resume --stream normal:small')
    """
    return command("task-run", "resume", *as_option(what).split(" ", 1))


def of_worker(size: str) -> str:
    """The command that starts a worker: none is live, or all are busy or take no tasks.

    If no worker knows a class, run it where the package of the class is installed.

    >>> of_worker("small")
    'task-worker --size small'
    """
    return command("task-worker", "--size", size)


def of_promoter() -> str:
    """The command if no process promotes due tasks, or hands durable tasks over.

    >>> of_promoter()
    'task-scheduler'
    """
    return command("task-scheduler")


def of_hand_over() -> str:
    """The command if the leader does not hand durable tasks over: it names what it waits for.

    >>> of_hand_over()
    'task-run schedules leader'
    """
    return command("task-run", "schedules", "leader")


def of_sql() -> str:
    """The command if SQL does not take dead letters: it names what is wrong.

    >>> of_sql()
    'task-run db check'
    """
    return command("task-run", "db", "check")


def of_keys() -> str:
    """The command if keys are missing or have a wrong type: it names them and the next step.

    >>> of_keys()
    'task-run doctor'
    """
    return command("task-run", "doctor")


def of_quarantine() -> str:
    """The command if a task was quarantined: it lists the reasons and the entries.

    >>> of_quarantine()
    'task-run quarantine list'
    """
    return command("task-run", "quarantine", "list")
