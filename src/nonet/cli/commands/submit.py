"""``task-run submit``: submit one task, and await its result if asked to; or many from stdin."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import AdmissionRejected, ResultError
from nonet.cli.commands.task_arguments import Args, Kwargs, labels_of, start_of
from nonet.cli.completion import classes
from nonet.cli.options import Json
from nonet.cli.output import echo, print_json, print_line, print_result
from nonet.cli.process import print_error
from nonet.cli.target import CodeTarget, operation
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.queue.results import Results
    from nonet.tasks.handles import Handle, TaskStatus
    from nonet.tasks.task import SubmitOptions


@dataclass(frozen=True, kw_only=True)
class SubmissionOptions:
    """The arguments of one task, and the options of its submission."""

    args: Args = "[]"
    kwargs: Kwargs = "{}"
    at: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Do not start before this time: ISO 8601, UTC unless it has an offset.",
            show_default="now",
        ),
    ] = None
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Start after this delay: 3600 (seconds), 90m or 2h.",
            show_default="none",
        ),
    ] = None
    id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id of the task; submitting the same id again creates no second task.",
            show_default="random",
        ),
    ] = None
    start_by: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Let the task expire if it has not started this many seconds from now.",
            show_default="as the class defines",
        ),
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Label of the task; 'priority' and 'size' override the class. Repeatable.",
        ),
    ] = None
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Wait at most this many seconds for the task to end, and print its result.",
            show_default="do not wait",
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """The options that the user gave."""
        chosen = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        return [f"--{name.replace('_', '-')}" for name in chosen]

    def options(self, name: str) -> SubmitOptions:
        """Return the options for `nonet.Nonet.submit`.

        Args:
            name: full name of the class, for errors.
        """
        options: SubmitOptions = {"id": self.id, "labels": labels_of(self.label)}
        options["at_time"], options["delay"] = start_of(name, self.at, self.delay, "--")
        if self.start_by is not None:
            options["start_by"] = self.start_by
        return options


@operation
async def submit(
    target: CodeTarget,
    one: SubmissionOptions,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="[CATEGORY:CLASS]",
            help="Full name of the class, or its bare name if unique. Without it, tasks are read "
            "from stdin.",
            show_default=False,
            autocompletion=classes,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Submit one task, or many from stdin, and print the ids.

    Without a class, each line of stdin is a JSON object with the fields task, args, kwargs, id, at,
    delay, start_by and labels, which mean the same as the options. All lines are checked before the
    first task is submitted: if one is invalid, none is. An id makes a line safe to submit again.

    Exit codes: 0 submitted (with --wait: done), 1 the awaited task failed or has not ended, or a
    ceiling rejected the task and it was not submitted (--json prints count and ceiling), 2 unknown
    class or invalid arguments: nothing was submitted, 3 Redis unreachable. When reading stdin,
    after exit code 1 or 3 the reported line and all later ones may not have been submitted.

    \b
    task-run submit mytasks:RemoveFile --args '["/lhcb/a"]' --wait 30
    task-run submit RemoveFile --args '["/lhcb/a"]' --delay 1h --label priority=background
    echo '{"task": "RemoveFile", "args": ["/lhcb/a"], "id": "a"}' | task-run submit
    """
    from nonet.cli.commands import submit_lines, task_building  # they import redis

    if task is None:
        return await submit_lines.submit(target, one.given, as_json)
    nonet = target.application()
    name, built = task_building.build_task(nonet, task, one.args, one.kwargs)
    options = one.options(name)
    async with nonet:
        try:
            handle = await nonet.submit(built, **options)
        except AdmissionRejected as error:
            if as_json:
                names = ("scope", "active", "ceiling", "retry_after")
                print_json({name: getattr(error, name) for name in names})
            raise
        return await _report(nonet, handle, one.wait, as_json)


async def _report(nonet: Nonet, handle: Handle[Any], wait: float | None, as_json: bool) -> int:
    """Print the id and, with --wait, the outcome of the task."""
    report: dict[str, Any] = {"id": str(handle), "created": handle.created}
    if not as_json:
        # Print the id before the wait, which the user may interrupt.
        echo(handle)
        if not handle.created:
            echo("this id was submitted before: it is the same task", err=True)
    code = ExitCode.OK
    if wait is not None:
        results = nonet.stores.results
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
        print_line(f"no live worker has size {size}: start task-worker --size {size}", err=True)
