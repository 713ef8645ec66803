"""``task-run figures``: rates and times of each class, stream or tenant."""

from __future__ import annotations

from dataclasses import replace

from nonet.cli.options import Json
from nonet.cli.output import cell, print_line, print_view
from nonet.cli.target import Target, operation
from nonet.operate import figures
from nonet.operate.figures import FigureQuery
from nonet.operate.lists import Page

_COLUMNS = (
    "name ended=total.ended per_min=ended_per_minute day_before=ended_per_minute_before "
    "failed=total.failed expected=total.expected retried=total.retried "
    "wait_50_95_99_%=total.wait.in_words run_50_95_99_%=total.run.in_words"
)
_SLOTS = (
    "at ended=figures.ended failed=figures.failed retried=figures.retried "
    "wait_50_95_99_%=figures.wait.in_words run_50_95_99_%=figures.run.in_words"
)


@operation
async def list_figures(target: Target, query: FigureQuery, as_json: Json = False) -> None:
    """Show how many tasks of each class end and fail, and how fast.

    Expected counts tasks that ended dead with an error that their class declares as expected; they
    are not among the failed ones. Wait is how long tasks were runnable before a worker fetched
    them, and run is how long attempts ran: of each the time below which half, 95 % and 99 % lie.
    Day before is the rate per minute of the same time a day earlier. Workers count, and report
    every few seconds; tasks that ended without a worker are not counted. --name and --by all show
    a line for each minute of the last three hours, or for each hour of the last two weeks. --json
    has the reasons for which tasks ended, too, and how much was queued.

    \b
    task-run figures --since 1d
    task-run figures --name RemoveFile --json
    task-run figures --by stream --name normal:small --since 14d
    """
    async with target.stores() as stores:
        found = await figures.find(stores, query)
    if as_json:
        print_view(found, as_json, _COLUMNS)
        return
    # Of other classes workers have only counted how long their tasks waited.
    counted = [item for item in found.items if item.total.ended or item.total.retried]
    nothing = "no worker has run a task" + (f" of {query.name!r}" if query.name else "")
    nothing += " since then"
    if query.name or query.by == "all":
        slots = [slot for item in counted for slot in item.series]
        print_view(Page(slots), as_json, _SLOTS, nothing, least=("retried",))
        return
    least = ("expected", "retried", "day_before", "per_min")
    print_view(replace(found, items=counted), as_json, _COLUMNS, nothing, least=least)
    if found.items:
        print_line(f"since {cell(found.items[0].since)}", err=True)
