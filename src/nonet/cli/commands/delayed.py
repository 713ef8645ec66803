"""``task-run delayed``: list delayed tasks, cancel them, or start them now."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError
from nonet.cli.commands.task_arguments import labels_of
from nonet.cli.options import CancelReason, Json, OfClass, TaskIds, WithLabels
from nonet.cli.output import echo, print_json, print_view
from nonet.cli.process import print_error
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import warn_of_unknown
from nonet.daemon.service import ExitCode
from nonet.operate import delayed
from nonet.operate.audited import Changed
from nonet.operate.delayed import DelayedQuery
from nonet.stores.queue.places import TaskFilter

app = typer.Typer(
    help="Delayed tasks: waiting for their start time or for a retry.", rich_markup_mode=None
)

_COLUMNS = "id task=name due attempts=attempt error"
_DONE = "cancelled"


@app.command("list")
@operation
async def list_(target: Target, query: DelayedQuery, as_json: Json = False) -> None:
    """List delayed tasks, the soonest first, and why they wait.

    \b
    task-run delayed list --task Transfer
    """
    async with target.stores() as stores:
        found = await delayed.find(stores, query)
    if query.task and not found.items:
        warn_of_unknown(target.observer(), [query.task])
    print_view(found, as_json, _COLUMNS, f"no task is delayed{query.chosen}")


@app.command()
@operation
async def cancel(
    target: Target,
    ids: TaskIds = None,
    task: OfClass = None,
    label: WithLabels = None,
    every: Annotated[
        bool, typer.Option("--all", help="All delayed tasks that match, even without a filter.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Cancel nothing; print how many tasks match.")
    ] = False,
    reason: CancelReason = "",
    as_json: Json = False,
) -> int:
    """Cancel delayed tasks: they end without another attempt.

    Name tasks, or select them by filters. 'task-run events' shows who cancelled them.

    Exit codes: 0 done, 1 a named task is not delayed (it is left as it is), 4 none of the named
    tasks is known.

    \b
    task-run delayed cancel --task Transfer --label campaign=2026-07 --dry-run
    """
    selection = _selection(ids, task, label, every, dry_run)
    async with target.observer() as nonet:
        if selection is None:
            return _report(await delayed.cancel(nonet.client, ids or [], reason), as_json, _DONE)
        cancellation = nonet.client.cancellation
        if dry_run:
            number = sum([len(page) async for page in cancellation.find(selection)])
        else:
            number = (await cancellation.cancel_all(selection, who(), reason)).number
        if task and not number:
            warn_of_unknown(nonet, [task])
    if as_json:
        print_json({"found": number, "cancelled": 0 if dry_run else number})
    else:
        tasks = "task" if number == 1 else "tasks"
        echo(f"{number} {tasks} {'would be cancelled' if dry_run else 'cancelled'}")
    return ExitCode.OK


@app.command()
@operation
async def now(
    target: Target,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of tasks.")],
    as_json: Json = False,
) -> int:
    """Make delayed tasks due now, including those that wait for a retry.

    'task-run events' shows who did it.

    Exit codes: 0 done, 1 a task is not delayed, 4 none of the tasks is known.

    \b
    task-run delayed now 3f9d1c0a
    """
    async with target.stores() as stores:
        return _report(await delayed.hasten(stores, ids), as_json, "due now")


def _report(found: Changed, as_json: bool, done: str) -> ExitCode:
    """Print the outcome of each named task, and return the exit code."""
    for problem in found.problems("delayed"):
        print_error(problem)
    if as_json:
        print_json(found)
    else:
        for id in found.changed:
            echo(f"{id} {done}")
    if not found.states:
        return ExitCode.OK
    return ExitCode.FAILED if found.changed or any(found.states.values()) else ExitCode.NOT_FOUND


def _selection(
    ids: list[str] | None, task: str | None, label: list[str] | None, every: bool, dry_run: bool
) -> TaskFilter | None:
    """Return the filter for tasks; None if they are named.

    Raises:
        ConfigurationError: ids and filters are given, or neither: a typo must not select every
            task.
    """
    labels = labels_of(label)
    if ids and (task or labels or every or dry_run):
        raise ConfigurationError(
            "named tasks exclude --all, --dry-run and filters: leave out the ids or the options"
        )
    if not (ids or task or labels or every):
        raise ConfigurationError(
            "which tasks? Name them (see 'task-run delayed list'), or give a filter (--task, "
            "--label), or --all"
        )
    return None if ids else TaskFilter(task or "", labels, ("delayed",))
