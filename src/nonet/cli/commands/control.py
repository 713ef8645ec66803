"""``task-run pause|resume|paused``: hold work back, and let it go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    observer,
    run,
    stores,
    warn_of_unknown,
)
from nonet.cli.output import print_json, print_rows
from nonet.daemon.service import ExitCode, who
from nonet.rules.pauses import EVERYTHING, Pause, as_option, in_words, streams
from nonet.rules.pauses import task as task_pause

Everything = Annotated[bool, typer.Option("--all", help="Everything.")]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="PRIORITY:SIZE",
        help="A stream; '*' is any priority or size. May be repeated.",
    ),
]
Classes = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="CLASS", help="A task class, bare or full name. Repeatable."),
]


def pause(
    everything: Everything = False,
    stream: Streams = None,
    task: Classes = None,
    reason: Annotated[
        str, typer.Option(help="Why, for all who ask what their tasks wait for.")
    ] = "",
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Start nothing of some work any more, until 'task-run resume'.

    What runs goes on, tasks are still accepted, and nothing is lost. It holds for all workers at
    once, and survives restarts of workers, schedulers and Redis. 'task-run events' shows who did.
    """

    async def command() -> int:
        wanted = _wanted(everything, stream, task)
        async with observer(namespace, state_dir) as nonet:
            await nonet.stores.controls.pause(wanted, who(), reason)
            found = [item for item in await nonet.stores.controls.load() if item.what in wanted]
            if task:
                warn_of_unknown(nonet, task)
        if as_json:
            print_json([_row(item) for item in found])
        else:
            typer.echo(f"paused: {_list(wanted)}")
        return ExitCode.OK

    run(debug, command)


def resume(
    everything: Everything = False,
    stream: Streams = None,
    task: Classes = None,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let paused work go on. Exit code 4: none of it is paused.

    Each pause is taken back by itself, as 'task-run paused' lists it: --all takes back a pause of
    everything, and leaves those of streams and classes.
    """

    async def command() -> int:
        wanted = _wanted(everything, stream, task)
        async with stores(namespace, state_dir) as kept:
            before = {item.what for item in await kept.controls.load()}
            await kept.controls.resume(wanted, who())  # also if nothing is: it may be repeated
            left = await kept.controls.load()
        done = [what for what in wanted if what in before]
        if not done:
            raise NotFoundError(f"{_list(wanted)}: not paused. {_still(left)}")
        if as_json:
            print_json(done)
        else:
            typer.echo(f"resumed: {_list(done)}")
        if left:
            typer.echo(_still(left), err=True)
        return ExitCode.OK

    run(debug, command)


def paused(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List what is paused: since when, by whom and why."""

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            found = await kept.controls.load()
        rows = [_row(item) for item in found]
        if not as_json:
            rows = [{**row, "what": in_words(row["what"])} for row in rows]
        print_rows(rows, as_json, "nothing is paused")
        return ExitCode.OK

    run(debug, command)


def _wanted(everything: bool, stream: list[str] | None, task: list[str] | None) -> list[str]:
    """What a command means, each once.

    Raises:
        ConfigurationError: nothing, or everything beside something.
    """
    chosen = [what for pattern in stream or [] for what in streams(pattern)]
    chosen += [task_pause(name) for name in task or []]
    if everything and chosen:
        raise ConfigurationError("--all means everything: leave out --stream and --task, or --all")
    if not (everything or chosen):
        raise ConfigurationError(
            "what? Give --stream PRIORITY:SIZE (for example background:small or '*:large'), "
            "--task CLASS, or --all"
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
