"""``task-run``: the list of its commands, each of which is imported when it is called.

Imports take longer than most commands run. `PLACES` has all that ``task-run --help`` needs.
To add a command: write its module in `commands`, and name it here with its group.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer
from typer.main import get_group

from nonet.cli import completion
from nonet.cli.options import Version
from nonet.cli.plain_words import PlainCommand, PlainGroup

# It shows something, changes tasks, or prepares an installation.
_GROUPS = ("look", "act", "set-up")


class Command(NamedTuple):
    """A command: where it is, and how ``task-run --help`` lists it."""

    module: str
    attribute: str
    help: str
    group: str


# Name, group, module and attribute, and the first line of the help (at most 62 characters).
_COMMANDS = """
call       act    call.call         Run one task here, without the broker, and print its result.
submit     act    submit.submit     Submit one task, or many from stdin, and print the ids.
classes    look   classes.list_classes   List the task classes that are registered here.
list       look   tasks.list_       List live tasks; 'task-run history' has those that ended.
history    look   history.list_history List the tasks that ended last, or show how one ended.
status     look   tasks.status      Show one task, live or ended.
logs       look   logs.show_logs    Show what the code of a task has logged, by attempts.
result     look   tasks.result      Print the result of a task, or its error with the traceback.
explain    look   tasks.explain     Explain why a task does not run, or where it runs.
overview   look   overview.show_overview Show what is wrong now, and the command that mends it.
seen       act    overview.see_finding Mark a finding as seen, for all operators.
resubmit   act    history.resubmit  Submit a failed task again as a new task, and print its id.
cancel     act    cancel.cancel     Cancel tasks for good: queued, delayed, waiting or running.
queues     look   queues.list_queues Show the nine streams, and the tasks outside them.
figures    look   figures.list_figures Show how many tasks of each class end and fail, and how fast.
tenants    look   tenants.list_tenants Show what each tenant has, gets and is due.
workers    look   workers.app       Show the registered workers, or drain some.
groups     look   groups.list_groups Show callback groups, newest first.
pause      act    pauses.pause      Stop starting some or all tasks, until 'task-run resume'.
resume     act    pauses.resume     End pauses, so that paused tasks can start again.
paused     look   pauses.paused     List pauses: what, since when, by whom and why.
events     look   events.list_events Show what happened to the namespace and who did it.
audit      look   audit.list_audit  Show who changed what in the dashboard and the API.
doctor     look   doctor.doctor     Find tasks, locks and keys that are lost, stuck or left over.
probe      look   probe.probe       Ask the daemon on this machine whether it is live or ready.
dev        set-up dev.dev           Run all that tasks need on a laptop, and reload their code.
demo       set-up demo.demo         Audit a directory tree for duplicate files, with real workers.
locks      look   locks.app         Show who holds locks and limiters, and who waits for them.
limits     set-up limits.app        Limits: how many tasks run at a time, or start in a window.
delayed    look   delayed.app       Delayed tasks: waiting for their start time or for a retry.
schedules  look   schedules.app     Periodic entries: when they fire, their pauses, the leader.
pipelines  look   pipelines.app     Pipelines: rows of SQL tables that are processed continuously.
workflows  look   workflows.app     List workflows, or show, cancel or resume one.
dlq        act    dead_letters.app  Dead letters: tasks that failed for good, kept in SQL.
quarantine act    quarantine.app    Quarantine: messages in Redis that are not valid tasks.
config     set-up config.app        The central configuration: check it, and show what it sets.
web        set-up web.app           The dashboard: users, tokens, and links to log in.
db         set-up database.app      Create, migrate and check the tables of the SQL database.
"""


def _places() -> Iterator[tuple[str, Command]]:
    for line in _COMMANDS.strip().splitlines():
        name, group, place, text = line.split(maxsplit=3)
        module, attribute = place.split(".")
        yield name, Command(module, attribute, text, group)


PLACES = dict(_places())


class _LazyCommands(UserDict[str, Any]):
    """Commands by name; a command is imported when it is looked up."""

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
    """The group of all commands; it lists them without importing them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _LazyCommands(PLACES)})

    def list_commands(self, ctx: Any) -> list[str]:
        """See `typer.core.TyperGroup`."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See `typer.core.TyperGroup`."""
        longest = max(map(len, PLACES))
        for group in _GROUPS:
            with formatter.section(group.replace("-", " ").capitalize()):
                formatter.write_dl(
                    [
                        (name.ljust(longest), place.help)
                        for name, place in PLACES.items()
                        if place.group == group
                    ]
                )

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """See `typer.core.TyperGroup`. Complete the names of commands without importing them."""
        self.commands = {
            name: PlainCommand(name, short_help=place.help) for name, place in PLACES.items()
        }
        return super().shell_complete(ctx, incomplete)


app = typer.Typer(
    cls=_TaskRun, pretty_exceptions_enable=False, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def task_run(version: Version = False) -> None:
    """Submit tasks, watch them and operate a namespace.

    Settings come from NONET_… variables.

    \b
    task-run --version
    """


def main() -> None:
    """Entry point of the console script."""
    if completion.is_wanted():
        completion.complete(app)
    else:
        app()
