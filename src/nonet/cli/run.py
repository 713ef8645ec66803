"""``task-run``: submit tasks and look after them. Each command is in a module beside this one.

What costs time to import (the application, SQL, rich) is imported by the commands that need it,
so that ``--help`` and a mistyped option are answered at once.
"""

from __future__ import annotations

import typer

from nonet.cli.commands import (
    config,
    control,
    database,
    delayed,
    limits,
    locks,
    quarantine,
    schedules,
    tasks,
    views,
)
from nonet.cli.commands import (
    dead_letters as dlq,
)
from nonet.cli.commands.cancel import cancel
from nonet.cli.commands.demo import demo
from nonet.cli.commands.doctor import doctor
from nonet.cli.commands.events import events
from nonet.cli.commands.probe import probe
from nonet.cli.commands.workers import workers
from nonet.cli.common import PlainGroup, Version

app = typer.Typer(
    cls=PlainGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def task_run(version: Version = False) -> None:
    """Submit tasks and look after them. Settings come from NONET_… variables."""


app.command()(tasks.call)
app.command()(tasks.submit)
app.command()(tasks.classes)
app.command("list")(tasks.list_)
app.command()(tasks.status)
app.command()(locks.explain)
app.command()(cancel)
app.command()(views.queues)
app.command()(workers)
app.command()(views.groups)
app.add_typer(locks.app, name="locks")
app.add_typer(limits.app, name="limits")
app.command()(control.pause)
app.command()(control.resume)
app.command()(control.paused)
app.add_typer(delayed.app, name="delayed")
app.command()(events)
app.add_typer(schedules.app, name="schedules")
app.add_typer(dlq.app, name="dlq")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(config.app, name="config")
app.add_typer(database.app, name="db")
app.command()(doctor)
app.command()(probe)
app.command()(demo)


def main() -> None:
    """Entry point of the console script."""
    app()
