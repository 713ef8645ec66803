"""``task-run figures``: rates and times of each class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nonet.cli.options import Json, OfClass, Since
from nonet.cli.output import cell, print_json, print_line, print_rows
from nonet.cli.target import Target, operation

if TYPE_CHECKING:
    from nonet.rules.figures import ClassFigures, Times

_HOUR = timedelta(hours=1)
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))


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
        "wait_50_95_99_%": times_in_words(item.total.wait),
        "run_50_95_99_%": times_in_words(item.total.run),
    }


def times_in_words(times: Times) -> str:
    """Return three percentiles in one column, so that a row fits 80 columns.

    >>> from nonet.rules.figures import Times
    >>> times_in_words(Times(0.0042, 1.25, 300)), times_in_words(Times())
    ('4.2ms 1.2s 5min', '')
    """
    known = (times.p50, times.p95, times.p99)
    return " ".join(_brief(seconds) for seconds in known if seconds is not None)


def _brief(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.2g}ms" if seconds < 0.1 else f"{1000 * seconds:.0f}ms"
    size, unit = next(item for item in _UNITS if seconds >= item[0] * (1 if item[0] == 1 else 2))
    return f"{seconds / size:.2g}{unit}" if seconds / size < 10 else f"{seconds / size:.0f}{unit}"
