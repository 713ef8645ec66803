"""``task-run list|status|result|explain``: live tasks, and one task."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import NotFoundError
from nonet.base.plain import plain
from nonet.cli.commands.submit import warn_of_no_worker
from nonet.cli.options import Json, ShowArgs, TaskId
from nonet.cli.output import (
    cell,
    echo,
    print_fields,
    print_json,
    print_line,
    print_result,
    print_text,
    print_view,
    usage_in_words,
)
from nonet.cli.pages import page_at, with_page
from nonet.cli.process import print_error
from nonet.cli.target import CodeTarget, Target, operation
from nonet.cli.task_classes import names_of, registry_here
from nonet.daemon.service import ExitCode
from nonet.operate import tasks
from nonet.operate.tasks import LiveQuery
from nonet.rules.findings import remedies
from nonet.rules.page_paths import page_of
from nonet.tasks.task import PeriodicBaseTask

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.handles import TaskStatus

_COLUMNS = (
    "id task=name state stream attempt submitted started running_for=@started "
    "waiting_for=@waits_since due note=doing"
)
_LEAST = ("submitted", "started", "attempt", "stream", "due")


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
async def status(
    target: CodeTarget, id: TaskId, show_args: ShowArgs = False, as_json: Json = False
) -> None:
    """Show one task, live or ended.

    Exit codes: 0 shown, 4 unknown id; with --show-args also: its arguments are not kept.

    \b
    task-run status 3f9d1c0a
    """
    given = None
    async with target.stores() as stores:  # it opens faster than the application
        found = await stores.results.status(id)
        await warn_of_no_worker(stores.results, found)
        if found is not None:
            found = await stores.history.completed(found)
    if show_args or found is None or not found.name:
        async with target.application() if show_args else target.observer() as nonet:
            found = await tasks.get(nonet.client, id)
            given = await tasks.arguments(nonet.client, id) if show_args else None
    if as_json:
        print_json({**plain(found), **({"arguments": given.arguments} if given else {})})
    else:
        print_fields(dataclasses.asdict(found) | _readable(found))
        if given:
            print_fields({"arguments": given.arguments})
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


@operation
async def result(
    target: Target,
    id: TaskId,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait this long for a task that has not ended."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> int:
    """Print the result of a task, or its error with the traceback.

    Exit codes: 0 done, 1 dead, cancelled or expired, or not ended in time, 4 unknown, or its result
    is not kept or cannot be read.

    \b
    task-run result 3f9d1c0a
    task-run result 3f9d1c0a --timeout 60 --json
    """
    async with target.observer() as nonet:
        found = await tasks.outcome(nonet.client, id, timeout, is_masked=False)
    if found.state == "done" and not found.has_result:
        raise NotFoundError(found.sentence)
    if as_json:
        print_json(found)
    elif found.has_result:
        print_result(found.result)
    if found.has_result:
        return ExitCode.OK
    for line in found.traceback.splitlines():
        echo(line, err=True)
    print_error(found.sentence)
    return ExitCode.FAILED


@operation
async def explain(target: Target, id: TaskId, as_json: Json = False) -> None:
    """Explain why a task does not run, or where it runs.

    The answer names the first thing that keeps the task from running now. For a periodic class see
    'task-run schedules show CLASS'.

    Exit codes: 0 explained, 4 unknown id.

    \b
    task-run explain 3f9d1c0a
    """
    async with target.observer() as nonet:
        try:
            found = await nonet.explain(id)
        except NotFoundError as error:
            raise NotFoundError(await _class_of(nonet, id) or str(error)) from None
    page = page_at(page_of("task", id))
    if as_json:
        print_json(with_page(found, page))
    else:
        print_line(found.text)
        if found.next:
            echo(f"next: {found.next}")
        if page:
            echo(f"page: {page}")


async def _class_of(nonet: Nonet, id: str) -> str:
    """Return the command to use if the id is the name of a class; else an empty text."""

    periodic = {item.task for item in await nonet.stores.periodic.statuses()}
    registered = registry_here(nonet)
    periodic |= {item.name for item in registered if issubclass(item.cls, PeriodicBaseTask)}
    if any(id in names_of(name) for name in periodic):
        show = remedies.of("task-run schedules show", id)
        return f"{id} is a periodic class, not a task: '{show}' says why it does not run"
    if any(id in names_of(item.name) for item in registered):
        show = remedies.command("task-run", "list", "--task", id)
        return f"{id} is a class, not a task: '{show}' shows its tasks"
    return ""
