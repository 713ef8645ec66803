"""``task-run delayed``: list delayed tasks, cancel them, or start them now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError
from nonet.cli.commands.task_arguments import labels_of
from nonet.cli.options import CancelReason, Json, Limit, OfClass, TaskIds, WithLabels
from nonet.cli.output import echo, print_json, print_rows
from nonet.cli.process import print_error
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import warn_of_unknown
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.stores.queue.places import TaskFilter
    from nonet.tasks.handles import TaskStatus

app = typer.Typer(
    help="Delayed tasks: waiting for their start time or for a retry.", rich_markup_mode=None
)

_DUE = "due now"


@app.command("list")
@operation
async def list_(
    target: Target, task: OfClass = None, limit: Limit = 100, as_json: Json = False
) -> None:
    """List delayed tasks, the soonest first, and why they wait.

    \b
    task-run delayed list --task Transfer
    """
    rows: list[dict[str, Any]] = []
    async with target.observer() as nonet:
        async for item in nonet.stores.results.delayed_tasks(task=task):
            if len(rows) == limit:
                echo(f"more than {limit} tasks match: raise --limit", err=True)
                break
            rows.append(_row(item))
        if task and not rows:
            warn_of_unknown(nonet, [task])
    of_class = f" of class {task!r}" if task else ""
    print_rows(rows, as_json, f"no task{of_class} is delayed")


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
    from nonet.operate.delayed import cancel_delayed  # it imports redis

    selection = _selection(ids, task, label, every, dry_run)
    async with target.observer() as nonet:
        if selection is None:
            states = await cancel_delayed(ids or [], nonet.client, reason)
            return _report(states, "cancelled", as_json)
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
    from nonet.operate.delayed import hasten  # it imports redis

    async with target.observer() as nonet:
        states = await hasten(ids, nonet.stores)
    done = [id for id, state in states.items() if state == "delayed"]
    return _report({**states, **dict.fromkeys(done, _DUE)}, _DUE, as_json)


def _report(states: dict[str, str], done: str, as_json: bool) -> ExitCode:
    """Print the outcome of each named task, and return the exit code."""
    problems = [
        f"task {id} is {state}, not delayed" if state else f"task {id} is unknown"
        for id, state in states.items()
        if state != done
    ]
    for problem in problems:
        print_error(problem)
    if as_json:
        print_json([{"id": id, "state": state or None} for id, state in states.items()])
    else:
        for id, state in states.items():
            if state == done:
                echo(f"{id} {done}")
    if not problems:
        return ExitCode.OK
    return ExitCode.FAILED if any(states.values()) else ExitCode.NOT_FOUND


def _selection(
    ids: list[str] | None, task: str | None, label: list[str] | None, every: bool, dry_run: bool
) -> TaskFilter | None:
    """Return the filter for tasks; None if they are named.

    Raises:
        ConfigurationError: ids and filters are given, or neither: a typo must not select every
            task.
    """
    from nonet.stores.queue.places import TaskFilter

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


def _row(item: TaskStatus) -> dict[str, Any]:
    return {
        "id": item.id,
        "task": item.name,
        "due": item.due,
        "why": "retry" if item.attempt else "time",
        "attempts": item.attempt,
        "error": item.error,
    }
