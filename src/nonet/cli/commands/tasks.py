"""``task-run classes|list|status``: the task classes, the live tasks, and one task."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nonet.base.errors import NotFoundError
from nonet.cli.commands.submit import warn_of_no_worker
from nonet.cli.options import Json, TaskId
from nonet.cli.output import (
    cell,
    print_fields,
    print_json,
    print_rows,
    print_text,
    print_view,
    usage_in_words,
)
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.operate import tasks
from nonet.operate.tasks import LiveQuery

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.handles import TaskStatus
    from nonet.tasks.registry import TaskClass

_COLUMNS = (
    "id task=name state stream attempt submitted started running_for=@started "
    "waiting_for=@waits_since due note=doing"
)
_LEAST = ("submitted", "started", "attempt", "stream", "due")


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
async def list_(target: Target, query: LiveQuery, as_json: Json = False) -> None:
    """List live tasks; 'task-run history' has those that ended.

    Running tasks come first, the longest running one first. Waiting, dying and queued ones: the
    oldest first. Delayed ones: the soonest first. The last line, on stderr, tells how many tasks
    match if not all are shown.

    Columns 'running for' and 'waiting for': how long ago a worker began the task, or the task was
    queued or began to wait for its locks. Column 'due': when a delayed task will be queued.

    \b
    task-run list --state waiting --task RemoveFile
    task-run list --label campaign=2026-07 --search 1000000
    task-run list --lock lock:mutex:job:7
    """
    async with target.stores() as stores:
        found = await tasks.find(stores, query)
    print_view(found, as_json, _COLUMNS, f"no live task{query.chosen}", least=_LEAST)


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
