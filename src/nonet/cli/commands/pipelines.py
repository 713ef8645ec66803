"""``task-run pipelines``: rows of SQL tables that are processed continuously."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.options import Json
from nonet.cli.output import print_answer, print_view
from nonet.cli.target import CodeTarget, Target, operation
from nonet.operate import pipelines
from nonet.operate.lists import ListQuery, Page
from nonet.rules.findings import remedies

_COLUMNS = (
    "pipeline=name due=due_in_words leased stale oldest=oldest_seconds rate wait=wait_seconds "
    "runs waits_for=cause"
)
_MORE = "waiting dying counted_at"
_PROCESSES = "process=name running workers queued rate problem"
_START = "task-worker --pipelines NAME"

app = typer.Typer(
    help="Pipelines: rows of SQL tables that are processed continuously.", rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pipeline.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Primary key of a row.")]


@app.command("list")
@operation
async def list_(target: Target, query: ListQuery, as_json: Json = False) -> None:
    """List the pipelines: due rows, how fast they are processed, and what keeps them waiting.

    'oldest' is the longest wait of a due row, 'stale' the number of rows that dead processes left,
    'rate' the number of rows done within the last minute, 'wait' how long they had been due on
    average, and 'runs' the number of processes. Times are in seconds.

    \b
    task-run pipelines list
    """
    async with target.stores() as stores:
        found = await pipelines.find(stores, query)
    print_view(found, as_json, _COLUMNS, "no process has reported a pipeline: " + _START)


@app.command()
@operation
async def show(
    target: CodeTarget,
    name: Name,
    row: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Explain why the row with this primary key waits."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one pipeline: its rows, the processes that run it, and what keeps it waiting.

    --row reads the row from its database, so this program must know the pipeline: install its
    package, or name its module with --tasks.

    Exit codes: 0 shown, 3 Redis or the database does not answer, 4 unknown pipeline or row.

    \b
    task-run pipelines show volumes
    task-run pipelines show volumes --row 17 --tasks myservice.pipelines
    """
    if row is not None:
        from nonet.cli.commands import pipeline_rows  # it imports SQLAlchemy

        why = await pipeline_rows.explain(target, name, row)
        print_answer(why, f"row {row} of {name}: {why['cause']}", as_json)
        return
    async with target.stores() as stores:
        found = await pipelines.get(stores, name)
    print_view(found, as_json, f"{_COLUMNS} {_MORE}")
    if not as_json:
        start = remedies.command("task-worker", "--pipelines", name)
        print_view(Page(found.processes), False, _PROCESSES, f"no process runs it: {start}")


@app.command()
@operation
async def hint(target: CodeTarget, name: Name, as_json: Json = False) -> None:
    """Let all processes of a pipeline look for due rows now instead of in a few seconds.

    This program must know the pipeline: install its package, or name its module with --tasks.

    \b
    task-run pipelines hint volumes --tasks myservice.pipelines
    """
    from nonet.cli.commands import pipeline_rows  # it imports SQLAlchemy

    number = await pipeline_rows.hint(target, name)
    text = f"hinted {number} {'process' if number == 1 else 'processes'}"
    print_answer({"pipeline": name, "processes": number}, text, as_json)


@app.command()
@operation
async def touch(target: CodeTarget, name: Name, key: Key, as_json: Json = False) -> None:
    """Make a row due now, whatever its state is, and hint its processes.

    A row that is in process is due again when that has ended. This program must know the pipeline:
    install its package, or name its module with --tasks.

    Exit codes: 0 done, 3 the database does not answer, 4 unknown pipeline or row.

    \b
    task-run pipelines touch volumes 17 --tasks myservice.pipelines
    """
    from nonet.cli.commands import pipeline_rows  # it imports SQLAlchemy

    await pipeline_rows.touch(target, name, key)
    document = {"pipeline": name, "key": key, "due": True}
    print_answer(document, f"due now: row {key} of {name}", as_json)
