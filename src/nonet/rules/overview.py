"""Says what is wrong in a namespace now, worst first, each with the command that mends it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from math import ceil

from nonet.rules import remedies
from nonet.rules.diagnosis import Finding
from nonet.rules.pauses import EVERYTHING, Pause, in_words, of_task
from nonet.rules.peers import counted
from nonet.rules.refusal import Waiters, named, span
from nonet.rules.servers import examine_outbox, examine_server
from nonet.rules.situation import Situation, StreamLoad
from nonet.rules.workflows import failed_in_words, stuck_in_words
from nonet.tasks.locks import KINDS

# Waits shorter than this are everyday business (seconds).
_LONG_WAIT = 10.0
# A backlog is reported when its oldest task has waited this long although workers are live.
_LONG_QUEUE = 60.0
# The leader fires an entry within a second. One that is later is stuck.
_LATE_ENTRY = 30.0
_LONG_STALL_MS = 1000
# Deaths of one class and error within the hour that are reported.
_FEW_DEATHS = 3
# Findings of one kind; the last one says how many more there are.
_MOST_OF_A_KIND = 3
_LONGEST_ERROR = 120
_ISOLATE = "give the class size = Size.MEDIUM or isolation = Isolation.CHILD"
_OUTPUT_LIMIT = "redis-cli config get client-output-buffer-limit"


def troubles(found: Situation) -> list[Finding]:
    """Return all that is wrong, worst first.

    What stops everybody comes first, then what stops a part, then what slows things down.
    """
    problems = [_as_sentence(item, found) for item in examine_server(found.server)[0]]
    if (kept := examine_outbox(*found.kept)) is not None:
        problems.append(kept)
    return [*problems, *waits(found)]


def _as_sentence(problem: Finding, found: Situation) -> Finding:
    """Return a problem of a server with its subject, which the doctor has in a column."""
    text = f"{problem.what}: {problem.problem}"
    if problem.kind == "sql":
        text = f"SQL: {problem.problem}"
        text += f"; {_letters(found)} for it" if found.dying else ""
    return replace(problem, problem=text)


def waits(found: Situation) -> list[Finding]:
    """Return what keeps tasks from running or succeeding, without problems of the servers."""
    rules: Sequence[Callable[[Situation], Iterable[Finding]]] = (
        _dying, _no_leader, _no_worker, _no_taker, _foreign, _deaths, _failed_workflows,
        _stuck_workflows, _holds, _lost_workers, _locks, _limiters, _pipelines, _pauses, _late,
        _full, _narrow, _backlog, _stalls, _quarantine, _unreadable,
    )  # fmt: skip
    return list(chain.from_iterable(map(_few, (rule(found) for rule in rules))))


def _few(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Shorten a long list of one kind: an overview fits on a screen."""
    all_of_them = list(findings)
    more = len(all_of_them) - _MOST_OF_A_KIND
    for number, finding in enumerate(all_of_them[:_MOST_OF_A_KIND], 1):
        if number < _MOST_OF_A_KIND or more <= 0:
            yield finding
        else:
            problem = f"{finding.problem} (and {more} more like this)"
            yield Finding(finding.kind, finding.what, problem, finding.hint)


def _dying(found: Situation) -> Iterator[Finding]:
    # A database that cannot be used is a problem of its own, which tells of them.
    if found.dying and found.server.sql in ("", "current", "ahead"):
        text = f"{_letters(found)} for SQL"
        yield Finding("sql", "dead letters", text, remedies.of_sql())


def _no_leader(found: Situation) -> Iterator[Finding]:
    if not found.server.leader:
        problem = (
            "no scheduler leads: no periodic task is submitted, no durable task is handed to "
            "Redis, no start-up hook is called, no configured limit is applied"
        )
        yield Finding("scheduler", "leader", problem, remedies.of_promoter())


def _no_worker(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if queued and not crew.live:
            classes = _classes(
                found, [load.name for load in found.streams if load.size == crew.size]
            )
            problem = f"no {crew.size} worker is live: {_queue_for(queued, oldest)}{classes}"
            yield Finding("worker", crew.size, problem, remedies.of_worker(crew.size))


def _no_taker(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if queued and crew.live and crew.idle_reason:
            problem = f"no {crew.size} worker takes tasks ({crew.idle_reason}): "
            problem += _queue_for(queued, oldest)
            yield Finding("worker", crew.size, problem, remedies.of_worker(crew.size))


def _foreign(found: Situation) -> Iterator[Finding]:
    for (task, size), number in sorted(found.foreign.items()):
        if why := found.locked.get((task, size)):
            problem = f"no {size} worker can decrypt {task}: {_tasks_wait(number)} ({why})"
            hint = f"set NONET_ENCRYPTION_KEYS of the {size} workers: task-run workers"
            yield Finding("worker", task, problem, hint)
            continue
        problem = f"no {size} worker runs {task}: {_tasks_wait(number)} for one that knows it"
        hint = f"install the package of {task} and restart the {size} workers: task-run workers"
        yield Finding("worker", task, problem, hint)


def _deaths(found: Situation) -> Iterator[Finding]:
    for death in sorted(found.deaths, key=lambda item: -item.number):
        is_paused = of_task(found.pauses, "", death.task) is not None
        if death.number < _FEW_DEATHS or is_paused:
            continue
        # A class with further tasks can be stopped. Else there is only the error to read.
        verb, command = "died", remedies.of_task("result", death.id)
        if any(task == death.task for task, _ in found.active):
            command = remedies.command("task-run", "pause", "--task", death.task)
        if death.state == "expired":
            verb, command = "expired", remedies.of_worker(death.size)
        show = remedies.of_task("result", death.id)
        problem = (
            f"{death.number} tasks of {death.task} {verb} within an hour, the last "
            f"{span(death.seconds_ago)} ago: {_brief(death.error)} ({show})"
        )
        yield Finding("class", death.task, problem, command)


def _failed_workflows(found: Situation) -> Iterator[Finding]:
    for item in found.failed_workflows:
        show = remedies.of_workflow("show", item.id)
        problem = f"{failed_in_words(replace(item, error=_brief(item.error)))} ({show})"
        hint = remedies.of_workflow("resume", item.id)
        yield Finding("workflow", item.title or item.id, problem, hint)


def _stuck_workflows(found: Situation) -> Iterator[Finding]:
    for item in found.stuck_workflows:
        verb = "cancel" if item.state == "building" else "resume"
        hint = remedies.of_workflow(verb, item.id)
        yield Finding("workflow", item.state, stuck_in_words(item), hint)


def _holds(found: Situation) -> Iterator[Finding]:
    for worker, (task, seconds) in found.holds.items():
        problem = (
            f"{task or 'code of a thread or a library'} held the interpreter lock of {worker} for "
            f"{span(seconds)}: it renewed no lease and no lock, so tasks may have run twice"
        )
        yield Finding("class", task or worker, problem, _ISOLATE)


def _lost_workers(found: Situation) -> Iterator[Finding]:
    if found.lost_workers:
        died = counted(found.lost_workers, "worker")
        hint = "task-run events --kind worker-lost"
        yield Finding("worker", "deaths", f"{died} died within an hour", hint)


def _locks(found: Situation) -> Iterator[Finding]:
    def sentence(first: Waiters) -> str:
        refusal = first.refusal
        if not refusal.holders:
            return f"{_tasks_wait(first.waiting)} for {refusal.lock}"
        holder = refusal.holders[0]
        text = f"{_tasks_wait(first.waiting)} for {refusal.lock}{_of(first)}, held by "
        text += named(holder)
        text += f" for {span(holder.held_seconds)}" if holder.held_seconds else ""
        return text + (", which renews it" if holder.is_live else "")

    def remedy(first: Waiters) -> str:
        return remedies.of_lock(first.refusal.lock, first.refusal.holders)

    yield from _by_type(found.waiters, sentence, remedy, limiter=False)


def _limiters(found: Situation) -> Iterator[Finding]:
    def sentence(first: Waiters) -> str:
        refusal = first.refusal
        text = f"{_tasks_wait(first.waiting)} for {refusal.lock}{_of(first)}"
        if not refusal.window_seconds:
            return f"{text}, {refusal.limit} at a time"
        windows = ceil(first.waiting / max(1, refusal.limit)) - 1
        last = (refusal.back_in or 0.0) + windows * refusal.window_seconds
        text += f", {refusal.limit} per {refusal.window_seconds:g} s"
        return f"{text}, the last in {span(last)}"

    def remedy(first: Waiters) -> str:
        """The limit at which all of them could start now; an operator may choose a lower one."""
        refusal, window = first.refusal, first.refusal.window_seconds or None
        return remedies.of_limiter(refusal.lock, refusal.limit + first.waiting, window)

    yield from _by_type(found.waiters, sentence, remedy, limiter=True)


def _of(first: Waiters) -> str:
    return f" ({', '.join(first.tasks)})" if first.tasks else ""


def _by_type(
    waiters: Sequence[Waiters],
    sentence: Callable[[Waiters], str],
    remedy: Callable[[Waiters], str],
    *,
    limiter: bool,
) -> Iterator[Finding]:
    """Report the worst lock of each kind and object type: there may be one for each job."""

    def type_of(item: Waiters) -> str:
        head, _, rest = item.refusal.lock.partition(":")
        parts = rest.split(":")
        return ":".join((head, *parts[: 3 if parts[1:2] and parts[1].startswith("@") else 2]))

    wanted = [
        item
        for item in waiters
        if item.seconds >= _LONG_WAIT and KINDS[item.refusal.kind].limiter == limiter
    ]
    groups = [list(group) for _, group in groupby(sorted(wanted, key=type_of), type_of)]
    for group in sorted(groups, key=lambda each: -max(item.seconds for item in each)):
        first = max(group, key=lambda item: (item.waiting, item.seconds))
        problem = sentence(first)
        if len(group) > 1:
            waiting = sum(item.waiting for item in group) - first.waiting
            problem += f" (and {waiting} for {len(group) - 1} others of its type: task-run locks)"
        yield Finding("limiter" if limiter else "lock", first.refusal.lock, problem, remedy(first))


def _pipelines(found: Situation) -> Iterator[Finding]:
    """Report the first thing that keeps the due rows of a pipeline waiting."""
    for item in found.pipelines:
        rows, name = item.rows, item.name
        # Without a process nobody renews the leases that were counted last.
        behind = rows.due - rows.leased if item.replicas else rows.due
        waits = f"{counted(behind, 'row')} of pipeline {name} {'waits' if behind == 1 else 'wait'}"
        waits += f", the oldest for {span(rows.oldest)}" if rows.oldest else ""
        show = remedies.command("task-run", "pipelines", "show", name)
        letters = next((one.letters for one in item.replicas if one.letters), "")
        if broken := next((one for one in item.replicas if one.problem), None):
            error = _brief(broken.problem)
            problem = f"{broken.name} cannot read the rows of pipeline {name}: {error}"
            yield Finding("pipeline", name, problem, show)
        elif letters or rows.dying:
            problem = f"rows of pipeline {name} failed for good, and their dead letters cannot be "
            problem += f"written{': ' if letters else ''}{_brief(letters)}"
            yield Finding("pipeline", name, problem, remedies.of_sql())
        elif behind <= 0 or item.paused:  # a pause is a finding of its own
            continue
        elif not item.replicas:
            command = remedies.command("task-worker", "--pipelines", name)
            yield Finding("pipeline", name, f"no process runs it: {waits}", command)
        elif rows.stale and rows.oldest >= _LONG_QUEUE:
            problem = f"{counted(rows.stale, 'row')} of pipeline {name} left by a dead process"
            yield Finding("pipeline", name, f"{problem}; {waits}", show)
        elif rows.oldest >= _LONG_QUEUE and item.cause:
            yield Finding("pipeline", name, f"{waits}: {item.cause}", show)


def _pauses(found: Situation) -> Iterator[Finding]:
    for pause in found.pauses:
        held = _held_by(found, pause)
        reason = f" ({pause.reason})" if pause.reason else ""
        stream = pause.what.partition(":")[2]
        classes = _classes(found, [stream])
        is_pipeline = pause.what.startswith("pipeline:")
        held_up = f"{counted(held, 'row')} due" if is_pipeline else _tasks_wait(held)
        problem = (
            f"{in_words(pause.what)} is paused since {pause.since:%Y-%m-%d %H:%M:%SZ} by "
            f"{pause.who}{reason}: {held_up}{classes}"
        )
        yield Finding("pause", pause.what, problem, remedies.of_pause(pause.what))


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
    names = [name for name, _ in numbers.most_common(_MOST_OF_A_KIND)]
    more = ", …" if len(numbers) > len(names) else ""
    return f" ({', '.join(names)}{more})" if names else ""


def _late(found: Situation) -> Iterator[Finding]:
    for task, seconds in found.late.items():
        if seconds > _LATE_ENTRY and found.server.leader:
            problem = f"the next occurrence of {task} is {span(seconds)} overdue"
            command = remedies.command("task-run", "schedules", "show", task)
            yield Finding("schedule", task, problem, command)


def _full(found: Situation) -> Iterator[Finding]:
    for scope, ceiling in found.full.items():
        problem = f"{scope} has reached its ceiling of {ceiling} tasks: submissions are refused"
        yield Finding("ceiling", scope, problem, "task-run queues")


def _backlog(found: Situation) -> Iterator[Finding]:
    for crew in found.crews:
        queued, oldest = _queued(found.streams, crew.size)
        if oldest >= _LONG_QUEUE and crew.live and not crew.idle_reason and not _stopped(found):
            busy = f"{crew.busy} of {counted(crew.slots, 'slot')} are busy"
            problem = f"{_queue_for(queued, oldest)}; {crew.size} workers: {crew.live}, {busy}"
            yield Finding("queue", crew.size, problem, remedies.of_worker(crew.size))


def _stopped(found: Situation) -> bool:
    return any(not pause.what.startswith(("task:", "pipeline:")) for pause in found.pauses)


def _stalls(found: Situation) -> Iterator[Finding]:
    for worker, stall in sorted(found.stalls.items(), key=lambda item: -item[1]):
        if stall >= _LONG_STALL_MS:
            problem = f"the event loop of {worker} was blocked for {span(stall / 1000)}"
            command = remedies.command("task-run", "workers", worker)
            yield Finding("worker", worker, problem, command)


def _narrow(found: Situation) -> Iterator[Finding]:
    for worker, most in found.narrow.items():
        problem = (
            f"{worker} fetches at most {counted(most, 'task')} at once: larger replies of Redis "
            "are lost, to its client-output-buffer-limit or a slow network"
        )
        yield Finding("worker", worker, problem, _OUTPUT_LIMIT)


def _quarantine(found: Situation) -> Iterator[Finding]:
    if number := found.quarantined:
        problem = f"{counted(number, 'message')} in the quarantine"
        yield Finding("stream", "quarantine", problem, remedies.of_quarantine())


def _unreadable(found: Situation) -> Iterator[Finding]:
    for what, error in found.unreadable.items():
        problem = f"{what} cannot be read: {error}"
        yield Finding("key", what, problem, remedies.of_keys())


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
    of = f" ({_brief(found.dying_error)})" if found.dying_error else ""
    return f"{counted(found.dying, 'dead letter')}{of} {'waits' if found.dying == 1 else 'wait'}"


def _brief(error: str) -> str:
    """Return the begin of the first line: the text of an author's error may be long."""
    line = error.partition("\n")[0]
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def _tasks_wait(number: int) -> str:
    return "1 task waits" if number == 1 else f"{number} tasks wait"
