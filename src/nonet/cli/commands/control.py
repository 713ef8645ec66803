"""``task-run pause|resume|paused``: keep tasks from starting, and let them start again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.completion import classes
from nonet.cli.options import Json
from nonet.cli.output import print_answer, print_rows
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import warn_of_unknown
from nonet.rules.pauses import (
    EVERYTHING,
    Pause,
    as_option,
    in_words,
    pipeline as pipeline_pause,
    streams,
    task as task_pause,
)

Everything = Annotated[bool, typer.Option("--all", help="All tasks of the namespace.")]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="PRIORITY:SIZE",
        help="Tasks of this stream; '*' matches any priority or size. Repeatable.",
    ),
]
Classes = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="CATEGORY:CLASS",
        help="Tasks of this class; a bare name will do. Repeatable.",
        autocompletion=classes,
    ),
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option("--pipeline", metavar="NAME", help="Rows of this pipeline. Repeatable."),
]


@operation
async def pause(
    target: Target,
    everything: Everything = False,
    stream: Streams = None,
    task: Classes = None,
    pipeline: Pipelines = None,
    reason: Annotated[str, typer.Option(help="Reason, shown by 'paused' and 'explain'.")] = "",
    as_json: Json = False,
) -> None:
    """Stop starting some or all tasks, until 'task-run resume'.

    Running tasks continue, and tasks are still accepted and kept. A pause applies to all workers at
    once, and survives restarts of workers, schedulers and Redis. 'task-run events' shows who
    paused.

    \b
    task-run pause --stream 'background:*' --reason "storage is full"
    task-run pause --all
    """
    wanted = _wanted(everything, stream, task, pipeline)
    async with target.observer() as nonet:
        await nonet.stores.controls.pause(wanted, who(), reason)
        found = [item for item in await nonet.stores.controls.load() if item.what in wanted]
        if task:
            warn_of_unknown(nonet, task)
    print_answer([_row(item) for item in found], f"paused: {_list(wanted)}", as_json)


@operation
async def resume(
    target: Target,
    everything: Everything = False,
    stream: Streams = None,
    task: Classes = None,
    pipeline: Pipelines = None,
    as_json: Json = False,
) -> None:
    """End pauses, so that paused tasks can start again.

    Pauses are independent, as 'task-run paused' lists them: --all ends only the pause of the whole
    namespace, not the pauses of streams and classes.

    Exit codes: 0 resumed, 4 none of these pauses exists.

    \b
    task-run resume --stream 'background:*'
    """
    wanted = _wanted(everything, stream, task, pipeline)
    async with target.stores() as stores:
        before = {item.what for item in await stores.controls.load()}
        await stores.controls.resume(
            wanted, who()
        )  # also if it was not paused, so that a repeated command succeeds
        left = await stores.controls.load()
    done = [what for what in wanted if what in before]
    if not done:
        raise NotFoundError(f"{_list(wanted)}: not paused. {_still(left)}")
    print_answer(done, f"resumed: {_list(done)}", as_json)
    if left:
        typer.echo(_still(left), err=True)


@operation
async def paused(target: Target, as_json: Json = False) -> None:
    """List pauses: what, since when, by whom and why.

    \b
    task-run paused
    """
    async with target.stores() as stores:
        found = await stores.controls.load()
    rows = [_row(item) for item in found]
    if not as_json:
        rows = [{**row, "what": in_words(row["what"])} for row in rows]
    print_rows(rows, as_json, "nothing is paused")


def _wanted(
    everything: bool, stream: list[str] | None, task: list[str] | None, pipeline: list[str] | None
) -> list[str]:
    """Return the pauses that the options name, without duplicates.

    Raises:
        ConfigurationError: no option is given, or --all with another one.
    """
    chosen = [what for pattern in stream or [] for what in streams(pattern)]
    chosen += [task_pause(name) for name in task or []]
    chosen += [pipeline_pause(name) for name in pipeline or []]
    if everything and chosen:
        raise ConfigurationError(
            "--all excludes --stream, --task and --pipeline: leave out one or the other"
        )
    if not (everything or chosen):
        raise ConfigurationError(
            "which tasks? Give --stream PRIORITY:SIZE (for example background:small or '*:large'), "
            "--task CLASS, --pipeline NAME, or --all"
        )
    return [EVERYTHING] if everything else list(dict.fromkeys(chosen))


def _list(wanted: Sequence[str]) -> str:
    return ", ".join(in_words(what) for what in wanted)


def _still(left: Sequence[Pause]) -> str:
    if not left:
        return "Nothing is paused"
    options = ", ".join(as_option(item.what) for item in left)
    return f"Still paused, see 'task-run paused': {options}"


def _row(item: Pause) -> dict[str, Any]:
    return {"what": item.what, "since": item.since, "who": item.who, "reason": item.reason}
