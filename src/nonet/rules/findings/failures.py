"""Findings about what fails: tasks, workflows, and the code that stops or kills workers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from nonet.base.durations import span
from nonet.base.plain import counted
from nonet.rules.findings import remedies
from nonet.rules.findings.finding import Finding
from nonet.rules.findings.situation import Deaths, Situation, brief
from nonet.rules.pauses import EVERYTHING, of_task
from nonet.rules.workflows import failed_in_words, stuck_in_words

# Rarer failures of a cause share one line.
_FEW_DEATHS = 3
# Older failures are no longer errors (seconds).
_OLD = 600.0
_LONG_STALL = 1.0
_IMPOSSIBLE = re.compile(r"LimitImpossible: (limiter:\S+) allows ")
_ISOLATE = "give the class size = Size.MEDIUM or isolation = Isolation.CHILD"


def failures(found: Situation) -> Iterator[Finding]:
    """Return what fails, a finding for each cause."""
    rules = (
        *(_deaths, _rare_deaths, _failed_workflows, _stuck_workflows),
        *(_holds, _stalls, _lost_workers),
    )
    return chain.from_iterable(rule(found) for rule in rules)


def _deaths(found: Situation) -> Iterator[Finding]:
    for death in _unpaused_deaths(found):
        if death.number < _FEW_DEATHS and not death.is_crash:
            continue
        verb = "expires" if death.state == "expired" else "dies"
        verb = "kills its process" if death.is_crash else verb
        at = f" at {death.location}" if death.location else ""
        show = remedies.of_task("result", death.id)
        tasks = counted(death.number, "task")
        problem = (
            f"{death.task} {verb}: {brief(death.error)}{at} ({show}); {tasks} within an hour, "
            f"the last {span(death.seconds_ago)} ago"
        )
        yield Finding(
            "class",
            death.task,
            problem,
            command=_remedy_of_deaths(found, death),
            severity="warning" if death.seconds_ago > _OLD else "error",
            since=found.ago(max(death.first_ago, death.seconds_ago)),
            count=death.number,
            cause=_crashing(death.task) if death.is_crash else f"{death.task} {death.cause}",
        )


def _remedy_of_deaths(found: Situation, death: Deaths) -> str:
    if death.state == "expired":
        return remedies.of_worker(death.size)
    if limiter := _IMPOSSIBLE.match(death.error):
        return remedies.command("task-run", "limits", "show", limiter[1])
    has_more = any(task == death.task for task, _ in found.active)
    # Suggest a pause only if no task of the class succeeds: it would stop working tasks, too.
    if has_more and death.task in found.failing:
        return remedies.command("task-run", "pause", "--task", death.task)
    return remedies.of_task("result", death.id)


def _unpaused_deaths(found: Situation) -> list[Deaths]:
    """Those of classes that are not paused: a pause of everything explains no failure."""
    of_classes = [pause for pause in found.pauses if pause.what != EVERYTHING]
    return [item for item in found.deaths if of_task(of_classes, "", item.task) is None]


def _rare_deaths(found: Situation) -> Iterator[Finding]:
    rare = [
        item for item in _unpaused_deaths(found) if item.number < _FEW_DEATHS and not item.is_crash
    ]
    if not rare:
        return
    newest = min(rare, key=lambda item: item.seconds_ago)
    number = sum(item.number for item in rare)
    of = "" if len(rare) == 1 else f" of {len(rare)} causes, of each less than {_FEW_DEATHS}"
    problem = (
        f"{counted(number, 'task')} failed within an hour{of}, the last "
        f"{span(newest.seconds_ago)} ago: {newest.task}, {brief(newest.error)}"
    )
    words = ("task-run", "history", "--since", "1h")
    yield Finding(
        "class",
        "rare failures",
        problem,
        command=remedies.command(*words, "--state", newest.state),
        severity="warning",
        since=found.ago(max(max(item.first_ago, item.seconds_ago) for item in rare)),
        count=number,
    )


def _crashing(task: str) -> str:
    """The cause of all deaths of processes that ran a class."""
    return f"{task} kills processes"


def _failed_workflows(found: Situation) -> Iterator[Finding]:
    for item in found.failed_workflows:
        show = remedies.of_workflow("show", item.id)
        problem = f"{failed_in_words(replace(item, error=brief(item.error)))} ({show})"
        yield Finding(
            "workflow",
            item.id,
            problem,
            command=remedies.of_workflow("resume", item.id),
            severity="warning" if item.seconds_ago > _OLD else "error",
            since=found.ago(max(item.first_ago, item.seconds_ago)),
            count=item.number,
            cause=f"workflow {item.title}" if item.title else "",
        )


def _stuck_workflows(found: Situation) -> Iterator[Finding]:
    for item in found.stuck_workflows:
        # The program that submits its steps may still work.
        verb = "show" if item.state == "building" else "resume"
        command, since = remedies.of_workflow(verb, item.id), found.ago(item.seconds)
        problem = stuck_in_words(item)
        yield Finding(
            "workflow", item.state, problem, command=command, since=since, count=item.number
        )


def _holds(found: Situation) -> Iterator[Finding]:
    for worker, (task, seconds) in found.holds.items():
        problem = (
            f"{task or 'code of a thread or a library'} held the interpreter lock of {worker} for "
            f"{span(seconds)}: it renewed no lease and no lock, so tasks may have run twice"
        )
        yield Finding("class", task or worker, problem, _ISOLATE, cause=_blocking(task or worker))


def _stalls(found: Situation) -> Iterator[Finding]:
    for worker, (task, seconds) in sorted(found.stalls.items(), key=lambda item: -item[1][1]):
        if seconds < _LONG_STALL:
            continue
        by, beside = (f" by {task}" if task else ""), "all tasks beside it waited"
        problem = f"the event loop of {worker} was blocked for {span(seconds)}{by}: {beside}"
        yield Finding(
            *(("class", task) if task else ("worker", worker)),
            problem,
            "write it as 'def', await, or isolate it" if task else "",
            command=remedies.command("task-run", "workers", worker),
            cause=_blocking(task or worker),
        )


def _blocking(what: str) -> str:
    """The cause of all that waits for a blocked loop or interpreter lock."""
    return f"{what} blocks"


def _lost_workers(found: Situation) -> Iterator[Finding]:
    number = len(found.lost_workers)
    if not number:
        return
    task = culprit(found.lost_workers)
    died = counted(number, "worker")
    each = "while it ran" if number == 1 else "each while it ran"
    yield Finding(
        *(("class", task) if task else ("worker", "deaths")),
        f"{died} died within an hour{f', {each} {task}' if task else ''}",
        command="task-run events --kind worker-lost",
        since=found.lost_since,
        count=number,
        cause=_crashing(task) if task else "",
    )


def culprit(deaths: Sequence[Sequence[str]]) -> str:
    """Return the class that ran in each worker that died; empty if there is no single one.

    >>> culprit([["a:Audit", "a:Bomb"], ["a:Bomb"]]), culprit([["a:Audit", "a:Bomb"]]), culprit([])
    ('a:Bomb', '', '')
    """
    if not deaths:
        return ""
    common = set(deaths[0]).intersection(*deaths[1:])
    return common.pop() if len(common) == 1 else ""
