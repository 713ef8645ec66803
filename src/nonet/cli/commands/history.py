"""``task-run history``: tasks that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.options import Json
from nonet.cli.output import print_view
from nonet.cli.target import Target, operation
from nonet.operate import history
from nonet.operate.history import EndedQuery

_COLUMNS = "id task=name state ended attempts=attempt waited ran error=error_line"
_LEAST = ("waited", "attempts")


@operation
async def list_history(
    target: Target,
    query: EndedQuery,
    id: Annotated[str, typer.Argument(metavar="[ID]", help="Show only this task.")] = "",
    as_json: Json = False,
) -> None:
    """List the tasks that ended last, or show how one ended.

    The newest comes first. Labels are known of failures only.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run history --state dead --since 1h --error timeout
    """
    async with target.stores() as stores:
        if id:
            print_view(
                await history.get(stores, id), as_json, f"{_COLUMNS} worker stream traceback"
            )
            return
        found = await history.find(stores, query)
    print_view(found, as_json, _COLUMNS, f"no ended task{query.chosen}", least=_LEAST)
