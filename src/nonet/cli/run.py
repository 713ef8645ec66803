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


class Command(NamedTuple):
    """Where a command is, and the first line of its help (at most 62 characters)."""

    module: str
    attribute: str
    help: str


PLACES = {
    "call": Command(
        "tasks", "call", "Run one task here, without the broker, and print its result."
    ),
    "submit": Command("tasks", "submit", "Submit one task and print its id."),
    "classes": Command("tasks", "classes", "List the task classes that are registered here."),
    "list": Command("tasks", "list_", "List live tasks, in no order."),
    "status": Command("tasks", "status", "Show one task, live or ended."),
    "explain": Command("locks", "explain", "Say why a task does not run, or where it is."),
    "cancel": Command(
        "cancel", "cancel", "End tasks for good: queued, delayed, waiting or running ones."
    ),
    "queues": Command("views", "queues", "Show the nine streams and the delayed tasks."),
    "workers": Command("workers", "workers", "Show the workers that are registered."),
    "groups": Command("views", "groups", "Show callback groups, the newest first."),
    "pause": Command(
        "control", "pause", "Start nothing of some work any more, until 'task-run resume'."
    ),
    "resume": Command("control", "resume", "Let paused work go on."),
    "paused": Command("control", "paused", "List what is paused: since when, by whom and why."),
    "events": Command("events", "events", "Show what happened to the namespace and who did it."),
    "doctor": Command(
        "doctor", "doctor", "Check that each task is in one place and nothing is left over."
    ),
    "probe": Command(
        "probe", "probe", "Ask the daemon that runs here whether it is live or ready."
    ),
    "demo": Command(
        "demo", "demo", "Audit a directory tree for duplicate files, with real daemons."
    ),
    "locks": Command("locks", "app", "Show who holds locks and limiters, and who waits for them."),
    "limits": Command(
        "limits", "app", "Limits: how many executions at a time, or in a window of time."
    ),
    "delayed": Command(
        "delayed", "app", "Delayed tasks: those that wait for their time, or for a retry."
    ),
    "schedules": Command(
        "schedules", "app", "Periodic entries: what fires when, what is paused, who leads."
    ),
    "dlq": Command("dead_letters", "app", "Dead letters: what failed for good, kept in SQL."),
    "quarantine": Command(
        "quarantine", "app", "Quarantine: bytes in streams or records that are no task."
    ),
    "config": Command("config", "app", "The central configuration: check it, and see what holds."),
    "db": Command("database", "app", "Create, migrate and check the tables of the SQL database."),
}


class _Commands(UserDict[str, Any]):
    """Commands by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, Command):
            found = self[name] = _imported(name, found)
        return found


def _imported(name: str, place: Command) -> Any:
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
