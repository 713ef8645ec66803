"""``task-run``: submit tasks and look after them. Each command is in a module of `commands`.

A command is imported when it is called: its module, and what that needs, take longer to import
than most commands run. The list of commands needs their names and first lines alone, so these
are here.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import Any, NamedTuple

import typer
from typer.main import get_group

from nonet.cli.common import PlainGroup, Version


class Place(NamedTuple):
    """Where a command is, and the first line of its help (at most 62 characters)."""

    module: str
    attribute: str
    help: str


PLACES = {
    "call": Place("tasks", "call", "Run one task here, without the broker, and print its result."),
    "submit": Place("tasks", "submit", "Submit one task and print its id."),
    "classes": Place("tasks", "classes", "List the task classes that are registered here."),
    "list": Place("tasks", "list_", "List live tasks, in no order."),
    "status": Place("tasks", "status", "Show one task, live or ended."),
    "explain": Place("locks", "explain", "Say why a task does not run, or where it is."),
    "cancel": Place(
        "cancel", "cancel", "End tasks for good: queued, delayed, waiting or running ones."
    ),
    "queues": Place("views", "queues", "Show the nine streams and the delayed tasks."),
    "workers": Place("workers", "workers", "Show the workers that are registered."),
    "groups": Place("views", "groups", "Show callback groups, the newest first."),
    "pause": Place(
        "control", "pause", "Start nothing of some work any more, until 'task-run resume'."
    ),
    "resume": Place("control", "resume", "Let paused work go on."),
    "paused": Place("control", "paused", "List what is paused: since when, by whom and why."),
    "events": Place("events", "events", "Show what happened to the namespace and who did it."),
    "doctor": Place(
        "doctor", "doctor", "Check that each task is in one place and nothing is left over."
    ),
    "probe": Place("probe", "probe", "Ask the daemon that runs here whether it is live or ready."),
    "demo": Place("demo", "demo", "Audit a directory tree for duplicate files, with real daemons."),
    "locks": Place("locks", "app", "Show who holds locks and limiters, and who waits for them."),
    "limits": Place(
        "limits", "app", "Limits: how many executions at a time, or in a window of time."
    ),
    "delayed": Place(
        "delayed", "app", "Delayed tasks: those that wait for their time, or for a retry."
    ),
    "schedules": Place(
        "schedules", "app", "Periodic entries: what fires when, what is paused, who leads."
    ),
    "dlq": Place("dead_letters", "app", "Dead letters: what failed for good, kept in SQL."),
    "quarantine": Place(
        "quarantine", "app", "Quarantine: bytes in streams or records that are no task."
    ),
    "config": Place("config", "app", "The central configuration: check it, and see what holds."),
    "db": Place("database", "app", "Create, migrate and check the tables of the SQL database."),
}


class _Commands(UserDict[str, Any]):
    """Commands by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, Place):
            found = self[name] = _imported(name, found)
        return found


def _imported(name: str, place: Place) -> Any:
    module = importlib.import_module(f"nonet.cli.commands.{place.module}")
    found = getattr(module, place.attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    return get_group(alone).commands[name]


class _TaskRun(PlainGroup):
    """The group of all commands, which lists them without importing them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands(PLACES)})

    def list_commands(self, ctx: Any) -> list[str]:
        """See `typer.core.TyperGroup`."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See `typer.core.TyperGroup`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in PLACES.items()])


app = typer.Typer(
    cls=_TaskRun,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def task_run(version: Version = False) -> None:
    """Submit tasks and look after them. Settings come from NONET_… variables."""


def main() -> None:
    """Entry point of the console script."""
    app()
