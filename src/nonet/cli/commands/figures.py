"""``task-run figures``: rates and times of each class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nonet.cli.options import Json, OfClass, Since
from nonet.cli.output import cell, print_json, print_line, print_rows
from nonet.cli.target import Target, operation

if TYPE_CHECKING:
    from nonet.rules.figures import ClassFigures

_HOUR = timedelta(hours=1)


@operation
async def figures(
    target: Target, task: OfClass = None, since: Since = None, as_json: Json = False
) -> None:
    """Show how many tasks of each class end and fail, and how fast.

    Wait is how long tasks were runnable before a worker fetched them, and run is how long attempts
    ran: of each the time below which half, 95 % and 99 % lie. Workers count, and report every few
    seconds; tasks that ended without a worker are not counted. --json has the series too, by
    minutes for two hours, else by ten minutes.

    \b
    task-run figures --since 1d
    task-run figures --task RemoveFile --json
    """
    async with target.stores() as stores:
        found = await stores.history.figures(since=since or _HOUR, task=task)
    of_class = f" of class {task!r}" if task else ""
    if as_json:
        print_json(found)
    else:
        nothing = f"no worker has run a task{of_class} since then"
        # Of other classes workers have only counted how long their tasks waited.
        counted = [item for item in found if item.total.ended or item.total.retried]
        print_rows([_row(item) for item in counted], False, nothing, least=("retried", "per_min"))
        if counted:
            print_line(f"since {cell(counted[0].since)}", err=True)


def _row(item: ClassFigures) -> Mapping[str, Any]:
    return {
        "task": item.name,
        "ended": item.total.ended,
        "per_min": f"{item.ended_per_minute:.3g}",
        "failed": item.total.failed,
        "retried": item.total.retried,
        "wait_50_95_99_%": item.total.wait.in_words,
        "run_50_95_99_%": item.total.run.in_words,
    }
