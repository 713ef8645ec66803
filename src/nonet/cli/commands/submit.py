"""``task-run submit``: submit one task, and await its result if asked to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import AdmissionRejected, InvalidArgumentsError, ResultError
from nonet.cli.commands.task_arguments import Args, Kwargs, Task, build_task, labels_of
from nonet.cli.durations import duration
from nonet.cli.options import Json
from nonet.cli.output import print_json, print_result
from nonet.cli.process import print_error
from nonet.cli.target import CodeTarget, operation
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.queue.results import Results
    from nonet.tasks.handles import Handle, TaskStatus


@operation
async def submit(
    target: CodeTarget,
    task: Task,
    args: Args = "[]",
    kwargs: Kwargs = "{}",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Do not start before this time: ISO 8601 (UTC unless it has an offset), or "
            "+DURATION from now, as in +3600 (seconds) or +2h.",
            show_default="now",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id of the task; submitting the same id again creates no second task.",
            show_default="random",
        ),
    ] = None,
    start_by: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Let the task expire if it has not started this many seconds from now.",
            show_default="as the class defines",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Label of the task; 'priority' and 'size' override the class. Repeatable.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Wait this many seconds for the task to end, and print its result.",
            show_default="do not wait",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Submit one task and print its id.

    Exit codes: 0 submitted (with --wait: done), 1 the awaited task failed or has not ended, or a
    ceiling rejected the task and it was not submitted (--json prints the numbers), 2 unknown class
    or invalid arguments, 3 Redis unreachable.

    \b
    task-run submit mytasks:RemoveFile --args '["/lhcb/a"]' --wait 30
    task-run submit RemoveFile --args '["/lhcb/a"]' --at +3600 --label priority=background
    """
    from nonet.tasks.task import FROM_CLASS

    nonet = target.application()
    name, built = build_task(nonet, task, args, kwargs)
    labels, when = labels_of(label), _when(name, at)
    async with nonet:
        if isinstance(when, timedelta):
            when = await nonet.broker.now() + when
        try:
            handle = await nonet.submit(
                built,
                at_time=when,
                id=id,
                labels=labels,
                start_by=FROM_CLASS if start_by is None else start_by,
            )
        except AdmissionRejected as error:
            if as_json:
                names = ("scope", "active", "ceiling", "retry_after")
                print_json({name: getattr(error, name) for name in names})
            raise
        return await _report(nonet, handle, wait, as_json)


def _when(task: str, text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    try:
        if text.startswith("+"):
            return duration(text[1:], default_unit="s")
        instant = datetime.fromisoformat(text)
    except (ValueError, typer.BadParameter) as error:
        problem = f"--at {text!r} is neither ISO 8601 nor +DURATION: {error}"
        raise InvalidArgumentsError(task, [problem]) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


async def _report(nonet: Nonet, handle: Handle[Any], wait: float | None, as_json: bool) -> int:
    """Print the id and, with --wait, the outcome of the task."""
    report: dict[str, Any] = {"id": str(handle), "created": handle.created}
    if not as_json:
        # Print the id before the wait, which the user may interrupt.
        typer.echo(handle)
        if not handle.created:
            typer.echo("this id was submitted before: it is the same task", err=True)
    code = ExitCode.OK
    if wait is not None:
        results = nonet.client.results
        await warn_of_no_worker(results, await results.status(handle))
        code = await _await(handle, wait, report)
        if not as_json and "result" in report:
            print_result(report["result"])
    if as_json:
        print_json(report)
    return code


async def _await(handle: Handle[Any], wait: float, report: dict[str, Any]) -> ExitCode:
    try:
        report["result"] = await handle.result(timeout=wait)
        report["state"] = "done"
        return ExitCode.OK
    except TimeoutError as error:
        problem = str(error)
    except ResultError as error:
        problem = report["error"] = str(error)
    report["state"] = (await handle.status()).state
    print_error(problem)
    return ExitCode.FAILED


async def warn_of_no_worker(results: Results, found: TaskStatus | None) -> None:
    """Report on stderr that no live worker can run a queued task."""
    if found is None or found.state != "queued":
        return
    size = found.stream.partition(":")[2]
    workers = await results.workers()
    if not any(worker.alive and worker.size == size for worker in workers):
        typer.echo(f"no live worker has size {size}: start task-worker --size {size}", err=True)
