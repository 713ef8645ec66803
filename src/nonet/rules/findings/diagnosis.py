"""Turns rows of the script ``inspect`` into findings about the keys of a namespace. Pure.

The rules hold at every instant, except for what a dying process leaves behind. Workers repair that
within a lease and a sweep, so the doctor reports only what lasts longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nonet.rules.findings import remedies
from nonet.rules.findings.finding import Finding

_UNEXPIRING = "another program removed its expiry: set it again (EXPIRE), or delete the key"
_REPAIRED = "check that a worker of that size runs: it repairs this"
# The beginnings of keys of a task.
_PARTS_OF_A_TASK = frozenset("tbehc")

Row = Sequence[Any]


def examine(row: Row, *, lease: float) -> Finding | None:
    """Say what is wrong with one row of script ``inspect``; None if it is in order.

    Args:
        row: as the header of the script documents it, with decoded texts; or ``count``, a stream,
            the number of tasks counted for it, and the number of its records.
        lease: seconds after which the longest lease of a dead holder has ended.
    """
    return _RULES[row[0]](row[1:], lease)


def examine_entry(prefix: str, key: str, entry: str, verb: str, why: str) -> Finding:
    """Report an entry that readers skip, with the command that removes it; see `Unreadable`.

    >>> print(examine_entry("{nonet}:", "events", "17-0", "XDEL", "KeyError").next_step)
    delete it: redis-cli -u "$NONET_REDIS_URL" XDEL '{nonet}:events' 17-0
    """
    if verb == "DISCARD":
        command = remedies.command("task-run", "dlq", "discard", entry)
        what, problem = f"dead letter {entry}", f"cannot be read ({why})"
        return Finding("entry", what, problem, "discard it", command=command)
    words = (verb, prefix + key) if verb == "DEL" else (verb, prefix + key, entry)
    command = remedies.of_redis(*words) if verb not in ("", "BINARY") else ""
    hint = "delete it" if command else "its name cannot be typed: delete it by a script"
    if not verb:
        hint = "do nothing: newer entries displace it"
    what = f"{prefix}{key}" if verb == "DEL" else f"{prefix}{key} {entry:.100}"
    problem = f"cannot be read ({why}), so it is left out of lists"
    return Finding("entry", what, problem, hint, command=command)


class _Record(Struct, frozen=True):
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
    owner_name: str
    holder_name: str

    @property
    def is_queued(self) -> bool:
        return self.entry_gen == self.gen

    @property
    def is_pending(self) -> bool:
        """Whether the entry of the record is pending at the worker that runs the task."""
        return bool(self.is_registered) and bool(self.entry_gen) and self.holder == self.owner

    def is_kept(self, lease: float) -> bool:
        """Whether its entry is gone, but its worker has reported within a lease that it runs."""
        if not self.is_registered or self.entry_gen or not self.kept_us:
            return False
        return int(self.kept_us) / 1e6 < lease


def _record(row: Row, lease: float) -> Finding | None:
    record = _Record(*row)
    problem = _misplaced(record, lease)
    return Finding("task", record.id, problem, _REPAIRED) if problem else None


def _misplaced(record: _Record, lease: float) -> str:
    """Say where a record is missing, or where it must not be; empty if it is in its place."""
    state = record.state
    if state in ("delayed", "waiting"):
        if not record.due:
            return f"is {state}, but not in the delayed set, so it is never checked again"
        return f"is {state}, but also in a stream" if record.is_queued else ""
    if state == "queued":
        if not record.is_queued:
            return "is queued, but in no stream"
        if record.holder:
            return f"was read by worker {record.holder_name}, which does not run it"
        # A woken task is due when its reservation ends, and when it has aged.
        is_twice = record.due and not record.has_waited
        return "is queued, but also in the delayed set" if is_twice else ""
    if state == "dying":
        is_somewhere = record.due or record.is_queued or record.is_registered
        return "" if is_somewhere else "is dying, but neither in a stream nor in the delayed set"
    if record.is_pending or record.is_kept(lease):
        return ""
    return f"is running on worker {record.owner_name or '(none)'}, which does not have it"


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
    problem = f"is held for {left:.0f} s more by {owner}, which is not a live attempt"
    # Without --force it is a preview: others may hold the lock, too.
    release = remedies.command("task-run", "locks", "release", lock)
    return Finding("lock", f"{lock} {owner}", problem, command=release)


def _waiter(row: Row, _: float) -> Finding | None:
    lock, id, state, is_in_queues = row
    if state in ("waiting", "queued") and is_in_queues:
        return None
    problem = f"is in the queue of the lock, but its task is {state or 'gone'}"
    return Finding("queue", f"{lock} {id}", problem, "none: the next promotion removes it")


def _group(row: Row, _: float) -> Finding | None:
    id, state, pending, parent, has_parent, ttl = row
    problem, hint, show = "", "check that a worker runs: it ends the group", _group_command(id)
    if state == "sealed" and not pending:
        problem = "waits for no child, but has not fired"
    elif state == "building" and parent and not has_parent and ttl == -1:
        problem = f"was opened by task {parent}, which ended without sealing it"
    elif state == "fired" and ttl == -1:
        problem, hint, show = "has fired, but never expires", _UNEXPIRING, ""
    return Finding("group", id, problem, hint, command=show) if problem else None


def _group_command(id: str) -> str:
    return remedies.of("task-run groups", id)


def _child(row: Row, _: float) -> Finding | None:
    group, state, child, missing = row
    if state == "building":  # its children are being submitted
        return None
    hint, problem = (
        "check that a worker runs: it ends the group",
        _waits_for("task", child, missing, state),
    )
    return Finding("group", group, problem, hint, command=_group_command(group))


def _waits_for(noun: str, first: str, missing: int, state: str) -> str:
    names = f"{noun} {first}" if missing == 1 else f"{noun} {first} and {missing - 1} others"
    subject = "waits" if state else "is gone, and waited"
    exist = "does not exist" if missing == 1 else "do not exist"
    return f"{subject} for {names}, which {exist}"


def _workflow(row: Row, _: float) -> Finding | None:
    id, state, live, ttl, is_continued = row
    problem, hint = "", "check that a worker runs: it ends the workflow"
    command = remedies.of_workflow("show", id)
    if state == "running" and not live:
        problem = "has no step left to run, but has not ended"
    elif state in ("running", "resuming") and ttl != -1:
        problem = "has not ended, but its keys expire"
        hint, command = "another program set an expiry: remove it (PERSIST)", ""
    elif state == "resuming" and not is_continued:
        problem = "is being resumed, but no process continues"
        hint, command = "", remedies.of_workflow("resume", id)
    elif state in ("done", "failed", "cancelled") and ttl == -1:
        problem, hint, command = "has ended, but never expires", _UNEXPIRING, ""
    return Finding("workflow", id, problem, hint, command=command) if problem else None


def _step(row: Row, _: float) -> Finding | None:
    workflow, state, step, missing = row
    if state == "building":  # its steps are being submitted
        return None
    hint, command = (
        "check that a worker runs: it ends the steps",
        remedies.of_workflow("show", workflow),
    )
    problem = _waits_for("step", step, missing, state)
    return Finding("workflow", workflow, problem, hint, command=command)


def _blocked(row: Row, _: float) -> Finding | None:
    step, state, missing, lost = row
    problem = ""
    if not state:
        problem = "waits for other steps, but its workflow is gone"
    elif state == "running" and lost:
        problem = f"waits for step {lost}, which does not exist"
    elif state == "running" and not missing:
        problem = "waits for no step, but was not released"
    hint = "check that a worker runs: it releases or ends the step"
    return Finding("task", step, problem, hint) if problem else None


def _worker(row: Row, lease: float) -> Finding | None:
    worker, gone_us = row
    gone = int(gone_us) / 1e6
    if gone <= 3 * lease:
        return None
    problem = f"died {gone:.0f} s ago, and its registration still exists"
    hint = "check that a worker of its size runs: it takes over its tasks"
    return Finding("worker", worker, problem, hint)


def _member(row: Row, _: float) -> Finding | None:
    stream, consumer, is_registered, pending = row
    if is_registered:
        return None
    problem = f"has {pending} deliveries of {stream}, but is not registered"
    hint = "check that a worker of its size runs: it takes them over"
    return Finding("worker", consumer, problem, hint)


def _idle(row: Row, _: float) -> Finding | None:
    size, worker, is_registered = row
    if is_registered:
        return None
    problem = f"is on the stack of idle {size} workers, but is gone"
    return Finding("worker", worker, problem, _REPAIRED)


def _entry(row: Row, _: float) -> Finding | None:
    stream, entry, id, is_meant, has_record = row
    if is_meant:
        return None
    is_where = "is elsewhere" if has_record else "does not exist"
    problem = f"points to task {id or '(none)'}, which {is_where}"
    hint = "none: the next worker that reads the entry drops it"
    return Finding("stream", f"{stream} {entry}", problem, hint)


def _count(row: Row, _: float) -> Finding | None:
    stream, counted, found = row
    problem = f"counts {counted} tasks, but there are {found}"
    return Finding("count", stream, problem, "check that a worker runs: it corrects the count")


def _type(row: Row, _: float) -> Finding | None:
    key, actual = row
    space, _, name = key.partition("}:")
    part, _, id = name.partition(":")
    keys, what = [key], "delete it"
    if part in _PARTS_OF_A_TASK:
        keys, what = [*dict.fromkeys((f"{space}}}:t:{id}", key))], "end its task"
    problem, command = (
        f"has the wrong type for its name ({actual})",
        remedies.of_redis("DEL", *keys),
    )
    return Finding("key", key, problem, what, command=command)


def _malformed(row: Row, _: float) -> Finding:
    what, reason = row
    problem = f"cannot be examined, because another program wrote into it: {reason}"
    return Finding("key", what, problem, "delete the key, or the foreign values in it")


def _lost_list(row: Row, _: float) -> Finding | None:
    problem = f"has {row[1]} tasks of a tenant that takes no part in the shares of its stream"
    return Finding("queue", row[0], problem, _REPAIRED)


def _always(kind: str, problem: str, hint: str) -> Callable[[Row, float], Finding]:
    """Return the rule by which every row is a finding."""
    return lambda row, _: Finding(kind, row[0], problem, hint)


_RULES: Mapping[str, Callable[[Row, float], Finding | None]] = {
    "record": _record,
    "left": _left,
    "lease": _lease,
    "waiter": _waiter,
    "group": _group,
    "child": _child,
    "flow": _workflow,
    "step": _step,
    "blocked": _blocked,
    "rest": _always("key", "belongs to a workflow that is gone", "delete it: it is unused"),
    "part": _always("key", "belongs to a task that has no record", "delete it: it is unused"),
    "lasting": _always("key", "never expires, but must", _UNEXPIRING),
    "type": _type,
    "unknown": _always("key", "is not a key of Nonet", "use another NONET_NAMESPACE for it"),
    "worker": _worker,
    "member": _member,
    "idle": _idle,
    "entry": _entry,
    "lost": _lost_list,
    "malformed": _malformed,
    "orphan": _always("task", "is due, but has no record", _REPAIRED),
    "count": _count,
}
