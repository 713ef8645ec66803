"""``task-run queues``: how much is in each stream and outside of them."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.base.errors import NotFoundError
from nonet.base.streams import Priority, Size
from nonet.cli.options import Json
from nonet.cli.output import echo, print_line, print_view
from nonet.cli.target import Target, operation
from nonet.operate import queues

_COLUMNS = "queue=name queued running oldest_seconds paused desired active ceiling"
_LEAST = ("desired", "active")


@operation
async def list_queues(
    target: Target,
    name: Annotated[
        str, typer.Argument(metavar="[STREAM]", help="Show this stream in full: normal:small.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the nine streams, and the tasks outside them.

    Columns: 'queued' counts the tasks that no worker has fetched, 'oldest seconds' is the age of
    the oldest of them.
    Column 'paused': no task of the stream starts, see 'task-run paused'.
    Column 'desired': the number of workers that the runnable tasks of this size would use. The
    leading scheduler counts it each second, for autoscalers.
    Columns 'active' and 'ceiling': the number of tasks that have not ended, and how many are
    allowed; 'task-run limits ceilings' shows the other ceilings.
    The last line counts the tasks outside the streams. Waiting: for locks, for a resume or for
    other steps of their workflow. Delayed: until their time or a retry. Dying: until SQL takes
    their dead letters.

    Exit codes: 0 shown, 4 no such stream.

    \b
    task-run queues
    task-run queues normal:small
    """
    async with target.stores() as stores:
        if name:
            await _show(await queues.get(stores, *_place(name)), as_json)
            return
        found = await queues.find(stores)
    print_view(found, as_json, _COLUMNS, least=_LEAST)
    if not as_json:
        about = "about " if found.is_estimate else ""
        print_line(
            f"{about}{found.waiting} waiting, {about}{found.delayed} delayed, "
            f"{about}{found.dying} dying, {found.quarantined} in quarantine"
        )
        if found.paused_classes:
            words = ", ".join(found.paused_classes)
            echo(f"also paused: task {words}; see 'task-run paused'", err=True)


def _place(name: str) -> tuple[Priority, Size]:
    priority, _, size = name.partition(":")
    try:
        return Priority(priority), Size(size)
    except ValueError:
        raise NotFoundError(f"there is no stream {name}: 'task-run queues' lists them") from None


async def _show(found: queues.Stream, as_json: bool) -> None:
    columns = " ".join(f"{path}=load.{path}" for path in ["name", "queued", "running", "paused"])
    print_view(found, as_json, f"{columns} empty_in_seconds classes")
    if not as_json:
        for state in ("queued", "running"):
            for task in getattr(found.tasks, state):
                echo(f"{state} {task.id} ({task.name})")
