"""The command that ends a wait, for each cause of it. Pure.

Each function returns one line that can be typed as it is, quoted for a shell. It returns an empty
text if waiting is right, or if no command helps.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nonet.rules.pauses import as_option
from nonet.tasks.locks import KINDS

if TYPE_CHECKING:  # daemons import the commands only
    from nonet.rules.findings.refusal import LockHolder, Refusal
    from nonet.rules.limit_changes import Override

# A holder is stuck if it has held a lock this many times longer than its class runs, and at least
# this long.
_STUCK_TIMES = 10
_STUCK_SECONDS = 60.0


def command(*words: str) -> str:
    """Quote words for a shell; empty if one of them cannot be typed.

    >>> command("task-run", "explain", "it's"), command("task-run", "a\\nb")
    ('task-run explain \\'it\\'"\\'"\\'s\\'', '')
    """
    return shlex.join(words) if all(word.isprintable() for word in words) else ""


def of_redis(*words: str) -> str:
    """The command for the server itself, at the address that the environment has.

    Without the variable it fails, instead of changing a server that happens to be local.

    >>> print(of_redis("DEL", "{nonet}:t:a"))
    redis-cli -u "$NONET_REDIS_URL" DEL '{nonet}:t:a'
    """
    typed = command(*words)
    return f'redis-cli -u "$NONET_REDIS_URL" {typed}' if typed else ""


def of(words: str, name: str, *options: str) -> str:
    """The command for something whose name a caller chose.

    A name that begins with ``-`` would be taken for an option.

    >>> of("task-run groups", "g 1"), of("task-run cancel", "--task=mail:Send")
    ("task-run groups 'g 1'", 'task-run cancel -- --task=mail:Send')
    """
    return command(*words.split(), *options, *(["--"] if name.startswith("-") else []), name)


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


def of_signal(workflow: str, event: str) -> str:
    """The command that lets an event of a workflow come.

    >>> of_signal("nightly", "approved")
    'task-run workflows signal nightly approved'
    """
    return f"{of_workflow('signal', workflow)} {event}"


def of_changes(words: str, name: str, changes: Mapping[str, Any]) -> str:
    """The command that submits a task again with changes.

    >>> print(of_changes("task-run resubmit", "t-1", {"n": 8}))
    task-run resubmit --changes '{"n": 8}' t-1
    """
    return of(words, name, *(("--changes", json.dumps(changes)) if changes else ()))


def of_call(name: str, arguments: Mapping[str, Any], verb: str = "call") -> str:
    """The command that runs a task here, without a worker, or submits it.

    Args:
        arguments: by name, in types of JSON.
        verb: ``call`` or ``submit``.

    >>> of_call("mail:Invoice", {"to": "a b"})
    'task-run call mail:Invoice --kwargs \\'{"to": "a b"}\\''
    """
    given = ("--kwargs", json.dumps(arguments)) if arguments else ()
    return command("task-run", verb, name, *given)


def of_refusal(refusal: Refusal, workflow: str = "") -> str:
    """The command for a task that a lock or limiter refuses.

    Args:
        workflow: id of the workflow whose step the task is, or empty.

    >>> from nonet.rules.findings.refusal import Refusal
    >>> of_refusal(Refusal("lock:mutex:job:7", "M", False, ahead=2, first="t-1"))
    'task-run explain t-1'
    """
    if not refusal.is_held and not refusal.is_impossible:
        return of_turn(refusal.first)
    if not KINDS[refusal.kind].limiter:
        return of_lock(refusal.lock, refusal.holders, workflow)
    return of_limiter(refusal.override)


def of_lock(lock: str, holders: Sequence[LockHolder], workflow: str = "") -> str:
    """The command that takes a lock from the first of its holders.

    A task that holds it far longer than its class runs is cancelled; any other one is explained,
    because it may work well, and so is a step of the workflow that waits, which would fail with it.
    Nothing else ends code that is not a task, or that ignores its cancellation: the preview of a
    release warns of an overlap. A lost attempt, or a dead process, keeps the lock only until it
    expires.

    Args:
        workflow: id of the workflow whose step waits for the lock, or empty.

    >>> from dataclasses import replace
    >>> from nonet.rules.findings.refusal import LockHolder
    >>> audit = LockHolder("t-1", "files:Audit", "7@host", 75.0, 20.0, True)
    >>> of_lock("lock:mutex:job:7", [audit])
    'task-run explain t-1'
    >>> of_lock("lock:mutex:job:7", [replace(audit, usual_seconds=0.5)])
    'task-run cancel t-1'
    >>> step = replace(audit, id="w:0", usual_seconds=0.5)
    >>> of_lock("lock:mutex:job:7", [step], workflow="w")
    'task-run explain w:0'
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
    if not first.is_live:
        return ""
    is_of_workflow = bool(workflow) and first.id.rpartition(":")[0] == workflow
    return of_task("cancel" if is_stuck(first) and not is_of_workflow else "explain", first.id)


def is_stuck(holder: LockHolder) -> bool:
    """Return whether a holder has held a lock for far longer than its class runs.

    >>> from dataclasses import replace
    >>> from nonet.rules.findings.refusal import LockHolder
    >>> slow = LockHolder("a", "files:Audit", "7@host", 90.0, 20.0, True)
    >>> is_stuck(slow), is_stuck(replace(slow, usual_seconds=2.0))
    (False, True)
    """
    if holder.held_seconds is None or holder.usual_seconds is None:
        return False
    return holder.held_seconds > max(_STUCK_SECONDS, _STUCK_TIMES * holder.usual_seconds)


def of_limiter(override: Override | None) -> str:
    """The command if a limit refuses tasks: it undoes a change by hand, and no other protection.

    >>> from nonet.rules.limit_changes import Override
    >>> from nonet.rules.limits import Limit
    >>> of_limiter(Override("limiter:conc:job:7", Limit(1), "ann", otherwise=Limit(50)))
    'task-run limits unset limiter:conc:job:7'
    >>> of_limiter(Override("limiter:conc:job:7", Limit(1), "ann")), of_limiter(None)
    ('', '')
    """
    if override is None or not override.is_narrower:
        return ""
    return command("task-run", "limits", "unset", override.name)


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
