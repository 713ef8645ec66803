"""``task-run classes|list|status``: the task classes, the live tasks, and one task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from nonet.base.errors import NotFoundError
from nonet.cli.commands.ended import list_ended
from nonet.cli.commands.submit import warn_of_no_worker
from nonet.cli.durations import duration
from nonet.cli.options import Json, Limit, OfClass, TaskId
from nonet.cli.output import cell, print_fields, print_json, print_rows, print_text, usage_in_words
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.handles import TaskStatus
    from nonet.tasks.registry import TaskClass

LiveState = Literal["queued", "delayed", "waiting", "running", "dying"]
EndState = Literal["done", "dead", "cancelled", "expired"]
State = Literal[LiveState, EndState]


@operation
async def classes(target: CodeTarget, as_json: Json = False) -> int:
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
    print_rows(rows, as_json, "no task is registered: install some, or pass --tasks MODULE")
    return ExitCode.OK


@operation
async def list_(
    target: Target,
    state: Annotated[
        State | None, typer.Option(help="Only tasks in this state.", show_default=False)
    ] = None,
    task: OfClass = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="List tasks that have ended, the newest first.")
    ] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration, metavar="AGE", help="Only tasks that ended at most so long ago: 1h."
        ),
    ] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> int:
    """List live tasks, or with --ended those that ended last.

    Live tasks come in no particular order, ended ones the newest first.

    \b
    task-run list --state waiting --task RemoveFile
    task-run list --ended --state dead --since 1h
    """
    if ended or since is not None or state in get_args(EndState):
        if state is not None and state not in get_args(EndState):
            raise typer.BadParameter(f"--ended and --since list no {state} tasks")
        return await list_ended(target, state, task, since, limit, as_json)
    found: list[TaskStatus] = []
    async with target.stores() as stores:
        async for item in stores.results.live(state=state, task=task):
            if len(found) == limit:
                typer.echo(f"more than {limit} tasks match: raise --limit", err=True)
                break
            found.append(item)
    if as_json:
        print_json(found)
    else:
        nothing = _no_live_task(state, task)
        print_rows([_status_row(item) for item in found], False, nothing)
    return ExitCode.OK


@operation
async def status(target: Target, id: TaskId, as_json: Json = False) -> int:
    """Show one task, live or ended.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run status 3f9d1c0a
    """
    async with target.stores() as stores:
        found = await stores.results.status(id)
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
    return ExitCode.OK


def _readable(found: TaskStatus) -> dict[str, Any]:
    """Hide counts of zero, format the resource usage, and leave the traceback to `print_text`."""
    return {
        "worker_deaths": found.worker_deaths or None,
        "crashes": found.crashes or None,
        "usage": usage_in_words(found.usage) if found.usage else None,
        "traceback": None,
        "progress": f"{_progress_in_words(found)}, at {cell(found.progress.at)}"
        if found.progress
        else None,
    }


def _progress_in_words(item: TaskStatus) -> str:
    """Return fraction and text of the progress, such as ``40 % page 12 of 30``, or nothing."""
    if item.progress is None:
        return ""
    share = "" if item.progress.fraction is None else f"{item.progress.fraction * 100:.0f} % "
    return f"{share}{item.progress.text}".strip()


def _no_live_task(state: str | None, task: str | None) -> str:
    """Return the text for an empty list, with the filters, because they may contain a typo."""
    of_class = f" of class {task!r}" if task else ""
    return f"no live task{of_class}{f' is {state}' if state else ''}"


async def _status(nonet: Nonet, id: str) -> TaskStatus:
    """Return one task. If the id names a group, the error says so."""
    try:
        return await nonet.status(id)
    except NotFoundError as unknown:
        try:
            await nonet.client.groups.status(id)
        except NotFoundError:
            raise unknown from None
    raise NotFoundError(f"{id} is a group, not a task: 'task-run groups {id}' shows it")


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


def _status_row(item: TaskStatus) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "task": item.name,
        "state": item.state,
        "stream": item.stream,
        "attempt": item.attempt,
        "submitted": item.submitted,
        "due": item.due,
        "note": item.blocker or _progress_in_words(item) or item.worker or item.error,
    }
