"""``task-run result`` and ``resubmit``: what a task returned, and once more."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import NotFoundError, ResultError, ResultUnavailable
from nonet.base.plain import plain
from nonet.cli.options import Json, TaskId
from nonet.cli.output import echo, print_answer, print_json, print_result
from nonet.cli.process import print_error
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode
from nonet.operate.history import resubmit_ended

if TYPE_CHECKING:
    from nonet.app import Nonet


@operation
async def result(
    target: Target,
    id: TaskId,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait this long for a task that has not ended."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> int:
    """Print the result of a task, or its error with the traceback.

    Exit codes: 0 done, 1 dead, cancelled or expired, or not ended in time, 4 unknown, or its result
    is not kept or cannot be read.

    \b
    task-run result 3f9d1c0a
    task-run result 3f9d1c0a --timeout 60 --json
    """
    report: dict[str, Any] = {"id": id}
    async with target.observer() as nonet:
        if await nonet.stores.workflows.exists(id):
            from nonet.rules.workflows import not_a_task  # only this mistake needs it

            raise NotFoundError(not_a_task(id))
        try:
            report |= {"state": "done", "result": await nonet.result(id, timeout=timeout)}
        except TimeoutError as error:
            report |= {"state": (await nonet.status(id)).state, "error": str(error)}
        except ResultError as error:
            report |= await _failure(nonet, id, error)
    if as_json:
        print_json(report)
    elif "result" in report:
        print_result(report["result"])
    if "error" in report:
        for line in report.get("traceback", "").splitlines():
            echo(line, err=True)
        print_error(report["error"])
    return ExitCode.FAILED if "error" in report else ExitCode.OK


async def _failure(nonet: Nonet, id: str, error: ResultError) -> Mapping[str, Any]:
    """Return state, error and traceback of a failed task, if need be from the history.

    Raises:
        NotFoundError: the task is unknown, or is done and its result is not kept.
    """
    found = None if isinstance(error, ResultUnavailable) else await nonet.status(id)
    if found is not None and found.error:
        return {"state": found.state, "error": str(error), "traceback": found.traceback}
    kept = await nonet.stores.history.find(id)
    if kept is None:
        if found is None:
            raise NotFoundError(str(error)) from None
        return {"state": found.state, "error": str(error)}
    ended = kept.task
    if ended.state == "done":
        why = "its result is not kept any more (NONET_RESULT_TTL)"
        with suppress(NotFoundError):
            why = (await nonet.status(id)).note or why  # it is too large, or encrypted
        raise NotFoundError(
            f"task {id} ({ended.name}) is done since {plain(ended.ended)}, but {why}"
        ) from None
    text = f"task {id} ({ended.name}) is {ended.state}: {ended.error_line}"
    return {"state": ended.state, "error": text, "traceback": ended.traceback}


@operation
async def resubmit(target: CodeTarget, id: TaskId, as_json: Json = False) -> None:
    """Submit a failed task again as a new task, and print its id.

    The history must have it: see 'task-run history --state dead'. A second call submits
    nothing, and prints the state of the new task. A dead letter has a command of its own, 'task-run
    dlq resubmit'.

    Exit codes: 0 submitted, 1 not, 2 unknown class or invalid arguments, 4 not in the history.

    \b
    task-run resubmit 3f9d1c0a
    """
    async with target.application() as nonet:
        stores = nonet.stores
        handle = await resubmit_ended(id, nonet.client, stores.history, stores.dead_letters)
    print_answer({"id": id, "resubmitted_as": str(handle)}, handle, as_json)
