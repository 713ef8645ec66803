"""Says what is wrong in a namespace now, worst first, each with the command that mends it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from nonet.base.durations import span
from nonet.base.plain import counted
from nonet.rules.findings import remedies
from nonet.rules.findings.contention import contention
from nonet.rules.findings.failures import failures
from nonet.rules.findings.finding import Finding, in_order
from nonet.rules.findings.refusal import tasks_wait
from nonet.rules.findings.servers import (
    LEADERLESS,
    cause_in,
    examine_memory,
    examine_outbox,
    examine_server,
)
from nonet.rules.findings.situation import Situation, brief
from nonet.rules.findings.throughput import StreamLoad
from nonet.rules.pauses import EVERYTHING, Pause, in_words

# A backlog is reported when its oldest task has waited this long although workers are live.
_LONG_QUEUE = 60.0
# The leader fires an entry within a second. One that is later is stuck.
_LATE_ENTRY = 30.0
# A tenant floods a namespace with so many tasks, and such a part of all.
_FLOOD, _FLOOD_SHARE = 1000, 0.8
_NAMED_CLASSES = 3
# The leader extends its lease every second.
_SILENT_LEADER = 6.0
_OUTPUT_LIMIT = remedies.of_redis("CONFIG", "GET", "client-output-buffer-limit")


def troubles(found: Situation) -> list[Finding]:
    """Return all that is wrong, the worst first."""
    problems = [_as_sentence(item, found) for item in examine_server(found.server)[0]]
    if (memory := examine_memory(found.server)) is not None:
        problems.append(_as_sentence(memory, found))
    if (kept := examine_outbox(*found.kept)) is not None:
        cause = "" if found.server.leader else LEADERLESS
        problems.append(replace(kept, cause=cause, since=found.ago(found.kept[1])))
    return in_order([*problems, *_waits(found)])


def _as_sentence(problem: Finding, found: Situation) -> Finding:
    """Return a problem of a server with its subject, which the doctor has in a column."""
    text, since = f"{problem.what}: {problem.problem}", problem.since
    if problem.kind == "sql":
        text = f"SQL: {problem.problem}"
        text += f"; {_letters(found)} for it" if found.dying else ""
    if problem.what == "promotion":
        since = found.ago(found.server.late_seconds)
    return replace(problem, problem=text, since=since)


def waits(found: Situation) -> list[Finding]:
    """Return what keeps tasks from running or succeeding, without problems of the servers."""
    return in_order(_waits(found))


def _waits(found: Situation) -> Iterator[Finding]:
    rules: Sequence[Callable[[Situation], Iterable[Finding]]] = (
        _dying, _no_leader, _no_worker, _no_taker, _foreign, failures, contention, _pipelines,
        _pauses, _paused_entries, _late, _full, _floods, _narrow, _backlog, _quarantine,
        _unreadable,
    )  # fmt: skip
    return chain.from_iterable(rule(found) for rule in rules)


def _dying(found: Situation) -> Iterator[Finding]:
    # If the database cannot be used, a finding of its own says so.
    if found.dying and found.server.sql in ("", "current", "ahead"):
        text, command = f"{_letters(found)} for SQL", remedies.of_sql()
        yield Finding("sql", "dead letters", text, command=command, count=found.dying)


def _no_leader(found: Situation) -> Iterator[Finding]:
    lacking = (
        "no periodic task is submitted, no durable task is handed to Redis, no start-up hook is "
        "called, no configured limit is applied"
    )
    problem, since = f"no scheduler leads: {lacking}", None
    if found.server.leader:
        if found.server.leader_silent < _SILENT_LEADER:
            return
        problem = (
            f"the leading scheduler {found.server.leader.partition('/')[0]} has been silent for "
            f"{span(found.server.leader_silent)}: until another one leads, {lacking}"
        )
        since = found.ago(found.server.leader_silent)
    yield Finding(
        *("scheduler", "leader", problem),
        command=remedies.of_promoter(),
        severity="critical",
        since=since,
        cause=LEADERLESS,
    )


def _no_worker(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if queued and not crew.live:
            classes = _classes(
                found, [load.name for load in found.streams if load.size == crew.size]
            )
            problem = f"no {crew.size} worker is live: {_queue_for(queued, oldest)}{classes}"
            yield _missing_worker(found, crew.size, problem, queued, oldest)


def _no_taker(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if queued and crew.live and crew.idle_reason:
            problem = f"no {crew.size} worker takes tasks ({crew.idle_reason}): "
            problem += _queue_for(queued, oldest)
            yield _missing_worker(found, crew.size, problem, queued, oldest)


def _missing_worker(
    found: Situation, size: str, problem: str, queued: int, oldest: float
) -> Finding:
    since, command = found.ago(oldest), remedies.of_worker(size)
    return Finding("worker", size, problem, command=command, count=queued, since=since)


def _foreign(found: Situation) -> Iterator[Finding]:
    command = "task-run workers"
    for (task, size), number in sorted(found.foreign.items()):
        if why := found.locked.get((task, size)):
            problem = f"no {size} worker can decrypt {task}: {tasks_wait(number)} ({why})"
            hint = f"set NONET_ENCRYPTION_KEYS of the {size} workers"
        else:
            problem = f"no {size} worker takes {task}: {tasks_wait(number)} for one that does"
            hint = f"install its package on a {size} worker, and let --only and --except admit it"
        yield Finding("worker", task, problem, hint, command=command, count=number)


def _pipelines(found: Situation) -> Iterator[Finding]:
    """Report the first thing that keeps the due rows of a pipeline waiting."""
    for item in found.pipelines:
        rows, name = item.rows, item.name
        # Without a process, the leases that were counted last are not renewed.
        behind = rows.due - rows.leased if item.replicas else rows.due
        waits = f"{counted(behind, 'row')} of pipeline {name} {'waits' if behind == 1 else 'wait'}"
        waits += f", the oldest for {span(rows.oldest)}" if rows.oldest else ""
        since = found.ago(rows.oldest) if rows.oldest else None
        show = remedies.command("task-run", "pipelines", "show", name)
        letters = next((one.letters for one in item.replicas if one.letters), "")
        if broken := next((one for one in item.replicas if one.problem), None):
            error = brief(broken.problem)
            problem = f"{broken.name} cannot read the rows of pipeline {name}: {error}"
            yield Finding("pipeline", name, problem, command=show)
        elif letters or rows.dying:
            problem = f"rows of pipeline {name} failed for good, and their dead letters cannot be "
            problem += f"written{': ' if letters else ''}{brief(letters)}"
            yield Finding("pipeline", name, problem, command=remedies.of_sql())
        elif behind <= 0 or item.paused:  # a pause is a finding of its own
            continue
        elif not item.replicas:
            command = remedies.command("task-worker", "--pipelines", name)
            problem = f"no process runs it: {waits}"
            yield Finding("pipeline", name, problem, command=command, since=since, count=behind)
        elif rows.stale and rows.oldest >= _LONG_QUEUE:
            problem = f"{counted(rows.stale, 'row')} of pipeline {name} left by a dead process"
            problem += f"; {waits}"
            yield Finding("pipeline", name, problem, command=show, since=since, count=behind)
        elif rows.oldest >= _LONG_QUEUE and item.cause:
            problem = f"{waits}: {item.cause}"
            yield Finding(
                *("pipeline", name, problem),
                command=show,
                severity="warning",
                since=since,
                count=behind,
            )


def _pauses(found: Situation) -> Iterator[Finding]:
    for pause in found.pauses:
        held = _held_by(found, pause)
        reason = f" ({pause.reason})" if pause.reason else ""
        stream = pause.what.partition(":")[2]
        classes = _classes(found, [stream])
        is_pipeline = pause.what.startswith("pipeline:")
        held_up = f"{counted(held, 'row')} due" if is_pipeline else tasks_wait(held)
        problem = (
            f"{in_words(pause.what)} is paused since {pause.since:%Y-%m-%d %H:%M:%SZ} by "
            f"{pause.who}{reason}: {held_up}{classes}"
        )
        yield Finding(
            "pause",
            pause.what,
            problem,
            command=remedies.of_pause(pause.what),
            severity="error" if held else "warning",
            since=pause.since,
            count=held,
        )


def _held_by(found: Situation, pause: Pause) -> int:
    """How many tasks have not ended to which the pause applies, without those that run."""
    kind, _, name = pause.what.partition(":")
    if kind == "pipeline":
        return sum(item.rows.due for item in found.pipelines if item.name == name)
    if kind == "task":
        return sum(
            number
            for (task, _), number in found.active.items()
            if name in (task, task.split(":")[-1])
        )
    return sum(
        load.queued for load in found.streams if pause.what == EVERYTHING or load.name == name
    )


def _classes(found: Situation, streams: Collection[str]) -> str:
    """Name the classes that have most tasks in these streams: users know them by these names."""
    numbers: Counter[str] = Counter()
    for (task, stream), number in found.active.items():
        if stream in streams:
            numbers[task] += number
    names = [name for name, _ in numbers.most_common(_NAMED_CLASSES)]
    more = ", …" if len(numbers) > len(names) else ""
    return f" ({', '.join(names)}{more})" if names else ""


def _paused_entries(found: Situation) -> Iterator[Finding]:
    names = Counter(entry.task for entry in found.paused_entries)
    for task, number in names.items():
        how = next(entry.paused for entry in found.paused_entries if entry.task == task)
        entries = "the periodic entry" if number == 1 else f"{number} periodic entries"
        problem = f"{entries} of {task} {'is' if number == 1 else 'are'} paused since {how}"
        command = remedies.command("task-run", "schedules", "resume", task)
        yield Finding("schedule", task, problem, command=command, severity="warning", count=number)


def _late(found: Situation) -> Iterator[Finding]:
    for task, seconds in found.late.items():
        if seconds > _LATE_ENTRY and found.server.leader:
            problem = f"the next occurrence of {task} is {span(seconds)} overdue"
            command = remedies.command("task-run", "schedules", "show", task)
            since = found.ago(seconds)
            yield Finding("schedule", task, problem, command=command, since=since)


def _full(found: Situation) -> Iterator[Finding]:
    for scope, ceiling in found.full.items():
        problem = f"{scope} has reached its ceiling of {ceiling} tasks: submissions are refused"
        yield Finding("ceiling", scope, problem, command="task-run limits ceilings", count=ceiling)


def _floods(found: Situation) -> Iterator[Finding]:
    total = sum(found.active.values())
    name, number = max(found.tenants.items(), key=lambda item: item[1], default=("", 0))
    if len(found.tenants) > 1 and number >= max(_FLOOD, _FLOOD_SHARE * total):
        problem = (
            f"tenant {name} has {number} of the {max(total, number)} tasks that have not ended"
        )
        yield Finding(
            "tenant", name, problem, command="task-run tenants", severity="warning", count=number
        )


def _backlog(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if oldest >= _LONG_QUEUE and crew.live and not crew.idle_reason and not _stopped(found):
            busy = f"{crew.busy} of {counted(crew.slots, 'slot')} are busy"
            problem = f"{_queue_for(queued, oldest)}; {crew.size} workers: {crew.live}, {busy}"
            since, command = found.ago(oldest), remedies.of_worker(crew.size)
            yield Finding(
                "queue",
                crew.size,
                problem,
                command=command,
                severity="warning",
                since=since,
                count=queued,
            )


def _stopped(found: Situation) -> bool:
    return any(not pause.what.startswith(("task:", "pipeline:")) for pause in found.pauses)


def _narrow(found: Situation) -> Iterator[Finding]:
    for worker, most in found.narrow.items():
        problem = (
            f"{worker} fetches at most {counted(most, 'task')} at once: larger replies of Redis "
            "are lost, to its client-output-buffer-limit or a slow network"
        )
        yield Finding("worker", worker, problem, command=_OUTPUT_LIMIT, severity="warning")


def _quarantine(found: Situation) -> Iterator[Finding]:
    if number := found.quarantined:
        problem = f"{counted(number, 'message')} in the quarantine"
        yield Finding(
            "stream",
            "quarantine",
            problem,
            command=remedies.of_quarantine(),
            severity="warning",
            count=number,
        )


def _unreadable(found: Situation) -> Iterator[Finding]:
    for what, error in found.unreadable.items():
        problem = f"{what} cannot be read: {error}"
        command, cause = remedies.of_keys(), cause_in(error)
        yield Finding("key", what, problem, command=command, severity="warning", cause=cause)


def _queued(streams: Sequence[StreamLoad], size: str) -> tuple[int, float]:
    """How many tasks of a size are queued, and the age of the oldest in seconds."""
    of_size = [load for load in streams if load.size == size]
    return sum(load.queued for load in of_size), max(
        (load.oldest_seconds for load in of_size), default=0.0
    )


def _queue_for(queued: int, oldest: float) -> str:
    if queued == 1:
        return f"1 task is queued, for {span(oldest)}"
    return f"{queued} tasks are queued, the oldest for {span(oldest)}"


def _letters(found: Situation) -> str:
    of = f" ({brief(found.dying_error)})" if found.dying_error else ""
    return f"{counted(found.dying, 'dead letter')}{of} {'waits' if found.dying == 1 else 'wait'}"
