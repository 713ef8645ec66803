"""``task-run classes|list|status``: the task classes, the live tasks, and one task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from nonet.base.errors import NotFoundError
from nonet.cli.commands.ended import list_ended
from nonet.cli.commands.submit import warn_of_no_worker
from nonet.cli.commands.task_arguments import labels_of
from nonet.cli.durations import duration
from nonet.cli.options import Json, Limit, OfClass, OfTenant, TaskId, WithLabels
from nonet.cli.output import (
    cell,
    echo,
    print_fields,
    print_json,
    print_rows,
    print_text,
    usage_in_words,
)
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.rules.findings.refusal import span

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.handles import TaskPage, TaskStatus
    from nonet.tasks.registry import TaskClass

LiveState = Literal["queued", "delayed", "waiting", "running", "dying"]
EndState = Literal["done", "dead", "cancelled", "expired"]
State = Literal[LiveState, EndState]

InState = Annotated[
    State | None, typer.Option(help="Only tasks in this state.", show_default=False)
]
Ended = Annotated[
    bool, typer.Option("--ended", help="List tasks that have ended, the newest first.")
]
EndedSince = Annotated[
    timedelta | None,
    typer.Option(
        parser=duration, metavar="AGE", help="Only tasks that ended at most so long ago: 1h."
    ),
]
OfWorker = Annotated[
    str | None, typer.Option(metavar="PID@HOST", help="Only tasks of this worker.")
]
OfLock = Annotated[
    str | None, typer.Option(help="Only tasks that hold this lock or limiter, or wait for it.")
]
WithError = Annotated[
    str, typer.Option(metavar="TEXT", help="Only tasks whose last error contains this text.")
]
Searched = Annotated[
    int,
    typer.Option(
        min=1,
        help="Search at most this many running tasks, as many queued ones, and as many "
        "delayed and waiting ones.",
    ),
]


@operation
async def classes(target: CodeTarget, as_json: Json = False) -> None:
    """List the task classes that are registered here.

    Likely mistakes in a class, such as an attribute that Nonet does not know, are warnings on
    stderr.

    \b
    task-run classes --tasks mytasks
    """
    from nonet.scheduler.startup import checked_hooks

    nonet = target.application()
    registry = nonet.registry
    checked_hooks(nonet.settings, nonet.injector())
    for warning in registry.warnings():
        warn(warning)
    rows = [_class_row(item) for item in registry]
    if not as_json:
        rows = [{**row, "retry_policy": row["retry_policy"].split("(")[0]} for row in rows]
    print_rows(
        rows,
        as_json,
        "this terminal knows no task class: install their package, or pass --tasks MODULE",
    )


@operation
async def list_(
    target: Target,
    state: InState = None,
    task: OfClass = None,
    ended: Ended = False,
    since: EndedSince = None,
    label: WithLabels = None,
    worker: OfWorker = None,
    lock: OfLock = None,
    error: WithError = "",
    tenant: OfTenant = "",
    limit: Limit = 100,
    search: Searched = 20_000,
    as_json: Json = False,
) -> None:
    """List live tasks, or with --ended those that ended last.

    Live tasks: running, waiting, dying, queued, delayed. Running tasks: the longest running first.
    Waiting, dying and queued ones: the oldest first. Delayed ones: the soonest first. Ended tasks:
    the newest first. The last line, on stderr, tells how many tasks match.

    Columns 'running for' and 'waiting for': how long ago a worker began the task, or the task was
    queued or began to wait for its locks. Column 'due': when a delayed task will be queued.

    \b
    task-run list --state waiting --task RemoveFile
    task-run list --label campaign=2026-07 --search 1000000
    task-run list --lock lock:mutex:job:7
    task-run list --ended --state dead --since 1h --error timeout
    """
    from nonet.stores.namespace.task_queries import TaskQuery, page_of_lock  # these import redis

    labels = labels_of(label)
    query = TaskQuery(
        task=task, labels=labels, worker=worker, error=error, since=since, tenant=tenant
    )
    states = (state,) if state else ()
    if ended or since is not None or state in get_args(EndState):
        _refuse_of_ended(state, lock, tenant)
        await list_ended(target, query, states, limit, search, as_json)
        return
    async with target.stores() as stores:
        selection = await query.live(stores.broker, stores.results, states)
        if lock:
            page = await page_of_lock(stores.results, stores.locks, lock, selection, limit)
        else:
            page = await stores.results.page(selection, limit=limit, budget=search)
        now = await stores.broker.logical_now()
    if as_json:
        print_json(page.rows)
    else:
        others = {"of worker": worker, "of lock": lock, "with the error": error}
        nothing = _no_live_task(state, task, labels, others)
        least = ("submitted", "started", "attempt", "stream", "due")
        print_rows([_status_row(item, now) for item in page.rows], False, nothing, least=least)
    if how_many := _how_many(page):
        echo(how_many, err=True)


def _refuse_of_ended(state: str | None, lock: str | None, tenant: str) -> None:
    """Refuse filters that the history of ended tasks does not have."""
    if state is not None and state not in get_args(EndState):
        raise typer.BadParameter(f"--ended and --since list no {state} tasks")
    if lock:
        raise typer.BadParameter("--lock: ended tasks have no locks, so leave out --ended")
    if tenant:
        raise typer.BadParameter("--tenant: the history does not know it; try --label vo=NAME")


@operation
async def status(target: Target, id: TaskId, as_json: Json = False) -> None:
    """Show one task, live or ended.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run status 3f9d1c0a
    """
    async with target.stores() as stores:
        found = await stores.results.status(id)
        if (found is None or not found.name) and await stores.workflows.exists(id):
            from nonet.rules.workflows import not_a_task  # only this mistake needs it

            raise NotFoundError(not_a_task(id))
        await warn_of_no_worker(stores.results, found)
    if found is None:  # it may be in SQL only
        async with target.observer() as nonet:
            found = await _status(nonet, id)
    if as_json:
        print_json(found)
    else:
        print_fields(dataclasses.asdict(found) | _readable(found))
        if found.traceback:
            print_text(f"\n{found.traceback}")


def _readable(found: TaskStatus) -> dict[str, Any]:
    """Hide counts of zero, format the resource usage, and leave the traceback to `print_text`."""
    return {
        "worker_deaths": found.worker_deaths or None,
        "crashes": found.crashes or None,
        "usage": usage_in_words(found.usage) if found.usage else None,
        "traceback": None,
        "progress": f"{found.progress}, at {cell(found.progress.at)}" if found.progress else None,
    }


def _no_live_task(
    state: str | None, task: str | None, labels: Mapping[str, str], others: Mapping[str, str | None]
) -> str:
    """Return the text for an empty list, with the filters, because they may contain a typo."""
    of_class = f" of class {task!r}" if task else ""
    pairs = ", ".join(f"{name}={value}" for name, value in labels.items())
    labelled = f" labelled {pairs}" if pairs else ""
    more = "".join(f" {words} {value!r}" for words, value in others.items() if value)
    return f"no live task{of_class}{labelled}{more}{f' is {state}' if state else ''}"


def _how_many(page: TaskPage) -> str:
    """Tell how many tasks match, and how many were searched; empty if the list shows all.

    >>> from nonet.tasks.handles import TaskPage
    >>> _how_many(TaskPage(["a"], matched=20_000, searched=20_000, total=20_000))
    '1 of 20,000 tasks'
    >>> _how_many(TaskPage(["a"], matched=7, searched=20_000, total=1_000_000, cursor="[]"))
    '1 of 7 tasks; searched 20,000 of 1,000,000: there may be more, raise --search'
    """
    # Without a cursor all were searched, and some have come or gone meanwhile.
    is_part = bool(page.cursor) and page.total > page.searched
    searched = f"; searched {page.searched:,} of {page.total:,}" if is_part else ""
    if searched and page.matched < page.total:
        searched += ": there may be more, raise --search"
    if not searched and page.matched <= len(page.rows):
        return ""
    return f"{len(page.rows):,} of {page.matched:,} tasks{searched}"


async def _status(nonet: Nonet, id: str) -> TaskStatus:
    """Return one task. If the id names a group, the error says so."""
    try:
        return await nonet.status(id)
    except NotFoundError as unknown:
        try:
            await nonet.stores.groups.status(id)
        except NotFoundError:
            raise unknown from None
    from nonet.rules.findings import remedies

    show = remedies.of("task-run groups", id)
    raise NotFoundError(f"{id} is a group, not a task: '{show}' shows it")


def _class_row(item: TaskClass) -> dict[str, Any]:
    from nonet.tasks.task import PeriodicBaseTask

    cls = item.cls
    return {
        "name": item.name,
        "priority": cls.priority,
        "size": cls.size,
        "retry_policy": repr(cls.retry_policy),
        "dlq_eligible": cls.dlq_eligible,
        "periodic": issubclass(cls, PeriodicBaseTask),
        "place": item.place,
        "package": item.package,
    }


def _status_row(item: TaskStatus, now: datetime) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "task": item.name,
        "state": item.state,
        "stream": item.stream,
        "attempt": item.attempt,
        "submitted": item.submitted,
        "started": item.started,
        "running_for": _seconds(item.started, now),
        "waiting_for": _seconds(item.waits_since, now),
        "due": item.due,
        "note": _note(item),
    }


def _note(item: TaskStatus) -> str:
    """Return why a task does not run, or what it does."""
    why = item.error if item.state == "dying" else item.blocker
    return why or str(item.progress or "") or item.worker or item.error


def _seconds(since: datetime | None, now: datetime) -> str:
    return span(max(0.0, (now - since).total_seconds())) if since else ""
