"""``task-run pause|resume|paused``: keep tasks from starting, and let them start again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.completion import classes
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_rows
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import warn_of_unknown
from nonet.rules.pauses import (
    EVERYTHING,
    Pause,
    as_option,
    in_words,
    meant_by,
    pipeline as pipeline_pause,
    streams,
    task as task_pause,
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to pause, or whose pause to end."""

    everything: Annotated[bool, typer.Option("--all", help="All tasks of the namespace.")] = False
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIORITY:SIZE",
            help="Tasks of this stream; '*' matches any priority or size. Repeatable.",
        ),
    ] = None
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CATEGORY:CLASS",
            help="Tasks of this class; a bare name will do. Repeatable.",
            autocompletion=classes,
        ),
    ] = None
    pipeline: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Rows of this pipeline. Repeatable.")
    ] = None

    def pauses(self) -> list[str]:
        """Return the pauses that the options name, without duplicates.

        Raises:
            ConfigurationError: no option is given, or --all with another one.
        """
        chosen = [what for pattern in self.stream or [] for what in streams(pattern)]
        chosen += [task_pause(name) for name in self.task or []]
        chosen += [pipeline_pause(name) for name in self.pipeline or []]
        if self.everything and chosen:
            raise ConfigurationError(
                "--all excludes --stream, --task and --pipeline: leave out one or the other"
            )
        if not (self.everything or chosen):
            raise ConfigurationError(
                "which tasks? Give --stream PRIORITY:SIZE (for example background:small or "
                "'*:large'), --task CLASS, --pipeline NAME, or --all"
            )
        return [EVERYTHING] if self.everything else list(dict.fromkeys(chosen))


@operation
async def pause(
    target: Target,
    options: Wanted,
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
    wanted = options.pauses()
    async with target.observer() as nonet:
        await nonet.stores.controls.pause(wanted, who(), reason)
        found = [item for item in await nonet.stores.controls.load() if item.what in wanted]
        if options.task:
            warn_of_unknown(nonet, options.task)
    print_answer([asdict(item) for item in found], f"paused: {_list(wanted)}", as_json)


@operation
async def resume(target: Target, options: Wanted, as_json: Json = False) -> None:
    """End pauses, so that paused tasks can start again.

    Pauses are independent, as 'task-run paused' lists them: --all ends only the pause of the whole
    namespace, not the pauses of streams and classes.

    Exit codes: 0 resumed, 4 none of these pauses exists.

    \b
    task-run resume --stream 'background:*'
    """
    wanted = options.pauses()
    async with target.stores() as stores:
        found = await stores.controls.load()
        before, wanted = {item.what for item in found}, meant_by(wanted, found)
        await stores.controls.resume(
            wanted, who()
        )  # also if it was not paused, so that a repeated command succeeds
        left = await stores.controls.load()
    done = [what for what in wanted if what in before]
    if not done:
        raise NotFoundError(f"{_list(wanted)}: not paused. {_still(left)}")
    print_answer(done, f"resumed: {_list(done)}", as_json)
    if left:
        echo(_still(left), err=True)


@operation
async def paused(target: Target, as_json: Json = False) -> None:
    """List pauses: what, since when, by whom and why.

    \b
    task-run paused
    """
    async with target.stores() as stores:
        found = await stores.controls.load()
    rows = [asdict(item) for item in found]
    if not as_json:
        rows = [{**row, "what": in_words(row["what"])} for row in rows]
    print_rows(rows, as_json, "nothing is paused")


def _list(wanted: Sequence[str]) -> str:
    return ", ".join(in_words(what) for what in wanted)


def _still(left: Sequence[Pause]) -> str:
    if not left:
        return "Nothing is paused"
    options = ", ".join(as_option(item.what) for item in left)
    return f"Still paused, see 'task-run paused': {options}"
