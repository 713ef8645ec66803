"""The options that several commands have, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import nonet
from nonet.cli.completion import classes


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nonet {nonet.__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        metavar="MODULE",
        help="Import this module of task classes; several as a,b. Repeatable.",
    ),
]
Namespace = Annotated[
    str | None, typer.Option(help="Prefix of all keys in Redis.", show_default="nonet")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory for data of embedded servers and SQLite.",
        show_default="~/.local/state/nonet",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Serve /livez, /readyz and /metrics on this port; 0 serves nothing.",
        show_default="0",
    ),
]
ConfigSource = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="SOURCE",
        help="Central configuration: a file, a directory or git+https://…#BRANCH.",
        show_default="NONET_CONFIG",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log at level DEBUG, with tracebacks.")]

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")]
TaskIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of tasks.", show_default=False)
]
OfClass = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="CATEGORY:CLASS",
        help="Only tasks of this class; a bare name will do.",
        autocompletion=classes,
    ),
]
WithLabels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Only tasks with this label. Repeatable."),
]
OfTenant = Annotated[str, typer.Option(metavar="NAME", help="Only live tasks of this tenant.")]
# What the options for fields of queries have, besides the description; see `nonet.cli.target.flat`.
QUERIES: dict[str, dict[str, Any]] = {
    "task": {"metavar": "CATEGORY:CLASS", "autocompletion": classes},
    "older_than": {"metavar": "AGE"},
    "newer_than": {"metavar": "AGE"},
    "since": {"metavar": "AGE"},
    "everything": {"flags": ["--all"]},
    "streams": {"flags": ["--stream"], "metavar": "PRIORITY:SIZE"},
    "tasks": {"flags": ["--task"], "metavar": "CATEGORY:CLASS", "autocompletion": classes},
    "pipelines": {"flags": ["--pipeline"], "metavar": "NAME"},
    "label": {"metavar": "NAME=VALUE"},
    "worker": {"metavar": "PID@HOST"},
}
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]
CancelReason = Annotated[str, typer.Option(help="Reason, shown to callers that await the results.")]
Why = Annotated[str, typer.Option(help="Why, shown by 'task-run events'.", show_default="none")]
ShowArgs = Annotated[
    bool,
    typer.Option(
        "--show-args",
        help="Show the arguments too. Secrets are masked; if the class is not loaded (see "
        "--tasks), all arguments are.",
    ),
]
