"""``task-run figures``: rates and times of each class."""

from __future__ import annotations

from dataclasses import replace

from nonet.cli.options import Json
from nonet.cli.output import cell, print_line, print_view
from nonet.cli.target import Target, operation
from nonet.operate import figures
from nonet.operate.figures import FigureQuery

_COLUMNS = (
    "task=name ended=total.ended per_min=ended_per_minute failed=total.failed "
    "expected=total.expected retried=total.retried wait_50_95_99_%=total.wait.in_words "
    "run_50_95_99_%=total.run.in_words"
)


@operation
async def list_figures(target: Target, query: FigureQuery, as_json: Json = False) -> None:
    """Show how many tasks of each class end and fail, and how fast.

    Expected counts tasks that ended dead with an error that their class declares as expected; they
    are not among the failed ones. Wait is how long tasks were runnable before a worker fetched
    them, and run is how long attempts ran: of each the time below which half, 95 % and 99 % lie.
    Workers count, and report every few seconds; tasks that ended without a worker are not counted.
    --json has the series too, by minutes for two hours, else by ten minutes.

    \b
    task-run figures --since 1d
    task-run figures --task RemoveFile --json
    """
    async with target.stores() as stores:
        found = await figures.find(stores, query)
    if not as_json:
        # Of other classes workers have only counted how long their tasks waited.
        counted = [item for item in found.items if item.total.ended or item.total.retried]
        found = replace(found, items=counted)
    nothing = "no worker has run a task" + (f" of class {query.task!r}" if query.task else "")
    least = ("expected", "retried", "per_min")
    print_view(found, as_json, _COLUMNS, f"{nothing} since then", least=least)
    if found.items and not as_json:
        print_line(f"since {cell(found.items[0].since)}", err=True)
