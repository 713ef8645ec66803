"""``task-run groups``: callback groups."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.options import Json
from nonet.cli.output import print_view
from nonet.cli.target import Target, operation
from nonet.operate import groups
from nonet.operate.lists import ListQuery

_COLUMNS = "id state=condition total pending failed callback parent opened"
_LEAST = ("parent", "callback")


@operation
async def list_groups(
    target: Target,
    query: ListQuery,
    id: Annotated[str, typer.Argument(metavar="[ID]", help="Show only this group.")] = "",
    children: Annotated[
        bool, typer.Option("--children", help="Show the children of the group instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show callback groups, newest first.

    States: building (its children are being submitted), sealed (all are submitted), fired (the
    callback is submitted), partial (the callback is submitted although some children failed: policy
    all_done), failed (a child failed, and `on_failure` is submitted if set; with policy all_done,
    all children failed). In JSON, 'outcome' tells the last three apart.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run groups --limit 10
    """
    if children and not id:
        raise typer.BadParameter("name the group", param_hint="--children")
    async with target.stores() as stores:
        if children:
            found = await groups.children(stores, id, query)
            print_view(found, as_json, "id task=name state attempt error", "it has no children")
        elif id:
            one = await groups.get(stores, id)
            print_view(one, as_json, f"{_COLUMNS} policy callback_id outcome error")
        else:
            print_view(
                await groups.find(stores, query), as_json, _COLUMNS, "no group", least=_LEAST
            )
