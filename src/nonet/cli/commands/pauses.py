"""``task-run pause|resume|paused``: keep tasks from starting, and let them start again."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_view
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import warn_of_unknown
from nonet.operate import pauses
from nonet.operate.lists import ListQuery
from nonet.operate.pauses import Which
from nonet.rules.pauses import in_words


@operation
async def pause(
    target: Target,
    which: Which,
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
    which.named()  # what is wrong with the options comes before an unreachable Redis
    async with target.observer() as nonet:
        found = await pauses.pause(nonet.stores, which, reason)
        warn_of_unknown(nonet, which.tasks)
    print_answer(found, f"paused: {which}", as_json)


@operation
async def resume(target: Target, which: Which, as_json: Json = False) -> None:
    """End pauses, so that paused tasks can start again.

    Pauses are independent, as 'task-run paused' lists them: --all ends only the pause of the whole
    namespace, not the pauses of streams and classes.

    Exit codes: 0 resumed, 4 none of these pauses exists.

    \b
    task-run resume --stream 'background:*'
    """
    which.named()
    async with target.stores() as stores:
        found = await pauses.resume(stores, which)
    print_answer(found, f"resumed: {', '.join(map(in_words, found.resumed))}", as_json)
    if found.items:
        echo(pauses.still_paused(found.items), err=True)


@operation
async def paused(target: Target, query: ListQuery, as_json: Json = False) -> None:
    """List pauses: what, since when, by whom and why.

    \b
    task-run paused
    """
    async with target.stores() as stores:
        found = await pauses.find(stores, query)
    print_view(found, as_json, "what=words since who reason", "nothing is paused")
