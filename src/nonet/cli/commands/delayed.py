"""``task-run delayed``: tasks that wait for their time or for a retry; cancel them, or run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.common import Debug, Json, Namespace, StateDir, observer, run, say, warn_of_unknown
from nonet.cli.output import print_json, print_rows
from nonet.daemon.service import ExitCode, who

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.namespace.cancellation import TaskFilter
    from nonet.tasks.handles import TaskStatus

app = typer.Typer(help="Delayed tasks: those that wait for their time, or for a retry.")

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of tasks.")]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="CATEGORY:CLASS", help="Only of this class; bare names fit."),
]


@app.command("list")
def list_(
    task: TaskName = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the soonest.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List delayed tasks, the soonest first, and why they wait."""

    async def command() -> int:
        rows: list[dict[str, Any]] = []
        async with observer(namespace, state_dir) as nonet:
            async for item in nonet.client.results.delayed_tasks(task=task):
                if len(rows) == limit:
                    typer.echo(f"there are more than {limit}: see --limit", err=True)
                    break
                rows.append(_row(item))
            if task and not rows:
                warn_of_unknown(nonet, [task])
        of_class = f" of class {task!r}" if task else ""
        print_rows(rows, as_json, f"no task{of_class} is delayed")
        return ExitCode.OK

    run(debug, command)


@app.command()
def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Ids of tasks.", show_default=False),
    ] = None,
    task: TaskName = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only with this label. May be repeated."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every delayed task, also without a filter.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell how many it would be.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for who waits for the results.")] = "",
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Cancel delayed tasks: they end without being executed, again or at all.

    Name tasks, or say by filters which. 'task-run events' shows who did. Exit codes: 0 done, 1 a
    named task is not delayed (it stays as it is), 4 none of the named ones is known.
    """

    async def command() -> int:
        selection = _selection(ids, task, label, every, dry_run)
        async with observer(namespace, state_dir) as nonet:
            if selection is None:
                states = await _cancel_named(nonet, list(dict.fromkeys(ids or [])), reason)
                return _tell(states, "cancelled", as_json)
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
            typer.echo(f"{number} {tasks} {'would be cancelled' if dry_run else 'cancelled'}")
        return ExitCode.OK

    run(debug, command)


@app.command()
def now(
    ids: Ids,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let delayed tasks be due now, those that wait for a retry too.

    'task-run events' shows who did. Exit codes: 0 done, 1 a task is not delayed, 4 none is known.
    """

    async def command() -> int:
        named = list(dict.fromkeys(ids))
        async with observer(namespace, state_dir) as nonet:
            states = dict(zip(named, await nonet.stores.controls.hasten(named), strict=True))
            done = [id for id, state in states.items() if state == "delayed"]
            if done:
                which = (
                    f"task {done[0]}"
                    if len(done) == 1
                    else f"{len(done)} tasks, the last {done[-1]}"
                )
                await nonet.stores.events.log("tasks-hastened", who(), which)
        return _tell(
            {id: _DUE if id in done else state for id, state in states.items()}, _DUE, as_json
        )

    run(debug, command)


_DUE = "due now"


async def _cancel_named(nonet: Nonet, ids: list[str], reason: str) -> dict[str, str]:
    """The state of each task afterwards; what is not delayed is left alone."""
    states: dict[str, str] = {}
    for id in ids:
        try:
            states[id] = (await nonet.client.status(id)).state
        except NotFoundError:
            states[id] = ""
    delayed = [id for id, state in states.items() if state == "delayed"]
    if delayed:
        states |= await nonet.client.cancel_not_running(delayed, reason=reason)
    return states


def _tell(states: dict[str, str], done: str, as_json: bool) -> ExitCode:
    """Print what became of each named task; the exit code."""
    problems = [
        f"task {id} is {state}, not delayed" if state else f"task {id} is unknown"
        for id, state in states.items()
        if state != done
    ]
    for problem in problems:
        say(problem)
    if as_json:
        print_json([{"id": id, "state": state or None} for id, state in states.items()])
    else:
        for id, state in states.items():
            if state == done:
                typer.echo(f"{id} {done}")
    if not problems:
        return ExitCode.OK
    return ExitCode.FAILED if any(states.values()) else ExitCode.NOT_FOUND


def _selection(
    ids: list[str] | None,
    task: str | None,
    label: list[str] | None,
    every: bool,
    dry_run: bool,
) -> TaskFilter | None:
    """Which tasks are meant by filters; None: they are named.

    Raises:
        ConfigurationError: both, or neither: a slip must not act on everything.
    """
    from nonet.stores.namespace.cancellation import TaskFilter

    labels = labels_of(label)
    if ids and (task or labels or every or dry_run):
        raise ConfigurationError(
            "tasks are named, so neither --all, --dry-run nor filters have a meaning: leave out "
            "the ids or the options"
        )
    if not (ids or task or labels or every):
        raise ConfigurationError(
            "which tasks? Name them (see 'task-run delayed list'), or give a filter (--task, "
            "--label), or --all"
        )
    return None if ids else TaskFilter(task or "", labels, ("delayed",))


def labels_of(pairs: list[str] | None) -> dict[str, str]:
    """The labels of ``--label NAME=VALUE``.

    Raises:
        ConfigurationError: one is not written so.
    """
    labels = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"--label {pair!r} must be NAME=VALUE")
        labels[name] = value
    return labels


def _row(item: TaskStatus) -> dict[str, Any]:
    return {
        "id": item.id,
        "task": item.name,
        "due": item.due,
        "why": "retry" if item.attempt else "time",
        "attempts": item.attempt,
        "error": item.error,
    }
