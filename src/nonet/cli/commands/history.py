"""``task-run history`` and ``resubmit``: tasks that have ended; submit a failed one again."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.commands.task_arguments import Changes
from nonet.cli.commands.task_building import read_json
from nonet.cli.options import Json, TaskId
from nonet.cli.output import print_answer, print_view
from nonet.cli.target import CodeTarget, Target, operation
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


@operation
async def resubmit(
    target: CodeTarget, id: TaskId, changes: Changes = "{}", as_json: Json = False
) -> None:
    """Submit a failed task again as a new task, and print its id.

    The history must have it: see 'task-run history --state dead'. A second call submits
    nothing, and prints the state of the new task. A dead letter has a command of its own, 'task-run
    dlq resubmit'.

    Exit codes: 0 submitted, 1 not, 2 unknown class or invalid arguments, 4 not in the history.

    \b
    task-run resubmit 3f9d1c0a
    task-run resubmit 3f9d1c0a --changes '{"host": "db-2"}'
    """
    wanted = read_json(id, "--changes", changes, dict)
    async with target.application() as nonet:
        handle = await history.resubmit(nonet.client, id, wanted)
    print_answer({"id": id, "resubmitted_as": str(handle)}, handle, as_json)
