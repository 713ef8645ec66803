"""``task-run logs``: what the code of a task has logged."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from nonet.cli.options import Json, TaskId
from nonet.cli.output import echo, print_json, print_text
from nonet.cli.target import Target, operation
from nonet.operate import logs
from nonet.stores.queue.places import LIVE_STATES

_POLL_SECONDS = 1.0


@operation
async def show_logs(
    target: Target,
    id: TaskId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the task has ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what the code of a task has logged, by attempts.

    The last lines of each of the last 20 attempts are kept as long as the result of the task, as
    many as `log_lines` of the class and NONET_TASK_LOG_BYTES allow. Workers store those of running
    attempts every two seconds; --follow reads every second.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run logs 3f9d1c0a
    task-run logs 3f9d1c0a --follow
    """
    async with target.observer() as nonet:
        found = await logs.get(nonet.client, id)
        if as_json:
            print_json(found)
            return
        shown: dict[int, str] = {}
        while True:
            for item in found.attempts:
                if item.attempt not in shown:
                    echo(f"attempt {item.attempt}:", err=True)
                if more := new_lines(shown.get(item.attempt, ""), item.log):
                    print_text(more)
                shown[item.attempt] = item.log
            if not follow or found.state not in LIVE_STATES:
                break
            await asyncio.sleep(_POLL_SECONDS)
            found = await logs.get(nonet.client, id)
    if not shown:
        echo(f"task {id} has logged nothing", err=True)


def new_lines(before: str, now: str) -> str:
    """Return what follows the lines that were printed before.

    >>> new_lines("a\\nb", "… 1 earlier lines were dropped\\nb\\nc")
    'c'
    """
    last = before.rpartition("\n")[2]
    if not before or last not in now:
        return now
    return f"{now}\n".rpartition(f"{last}\n")[2].removesuffix("\n")
