"""``task-run pipelines``: rows of SQL tables that are processed continuously."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import NotFoundError
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_json, print_rows
from nonet.cli.target import CodeTarget, Target, operation
from nonet.rules.findings import remedies
from nonet.rules.pauses import pipeline as pipeline_pause
from nonet.rules.pipelines import MOST, PipelineStatus, explain_row
from nonet.stores.stores import Stores

app = typer.Typer(
    help="Pipelines: rows of SQL tables that are processed continuously.", rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pipeline.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Primary key of a row.")]


@app.command("list")
@operation
async def list_(target: Target, as_json: Json = False) -> None:
    """List the pipelines: due rows, how fast they are processed, and what keeps them waiting.

    OLDEST is the longest wait of a due row, STALE the number of rows that dead processes left, RATE
    the number of rows done within the last minute, WAIT how long they had been due on average, and
    RUNS the number of processes.

    \b
    task-run pipelines list
    """
    async with target.stores() as stores:
        found = await stores.pipelines.read()
    rows = [item.document() if as_json else _line(item) for item in found]
    print_rows(rows, as_json, "no process has reported a pipeline: task-worker --pipelines NAME")


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
        await _explain(target, name, row, as_json)
        return
    async with target.stores() as stores:
        found = await _status(stores, name)
    if as_json:
        print_json(found.document() | {"replicas": [_replica(item) for item in found.replicas]})
        return
    rows = found.rows
    echo(f"rows due     {_number(rows.due)}; longest wait: {rows.oldest:.0f} s")
    echo(f"in process   {rows.leased}; left by dead processes: {rows.stale}")
    echo(f"held up      by related rows: {rows.waiting}; by the dead letters: {rows.dying}")
    echo(f"speed        {found.rate} rows in the last minute; mean wait: {found.wait:.1f} s")
    echo(f"waits for    {found.cause or 'nothing'}")
    echo("")
    lines = [_replica(item) for item in found.replicas]
    start = remedies.command("task-worker", "--pipelines", name)
    print_rows(lines, False, f"no process runs it: {start}")


async def _explain(target: CodeTarget, name: str, key: str, as_json: bool) -> None:
    from nonet.pipelines.figures import look
    from nonet.pipelines.loading import load_pipelines
    from nonet.pipelines.table_keys import key_from_text

    async with target.application() as nonet:
        pipelines = load_pipelines(nonet.settings)
        leasing = pipelines.leasing(pipelines.find(name))
        async with leasing.database.used_once(name):
            found = await look(leasing, key_from_text(leasing.table, key))
        if found is None:
            raise NotFoundError(f"pipeline {name}: table {leasing.table.name} has no row {key}")
        known = {item.name: item for item in await nonet.stores.pipelines.read()}
        why = explain_row(found, key, known.get(name, PipelineStatus(name)))
    document = {"pipeline": name, "key": key, "cause": why, "attempts": abs(found.attempts)}
    print_answer(document, f"row {key} of {name}: {why}", as_json)


@app.command()
@operation
async def pause(
    target: Target,
    name: Name,
    reason: Annotated[str, typer.Option(help="Reason, shown by 'paused' and 'overview'.")] = "",
    as_json: Json = False,
) -> None:
    """Fetch no more rows of a pipeline, until 'task-run pipelines resume'.

    Rows in process end, and the leased ones that wait are released.

    \b
    task-run pipelines pause volumes --reason "the cloud is down"
    """
    async with target.stores() as stores:
        await stores.controls.pause([pipeline_pause(name)], who(), reason)
        known = [item.name for item in await stores.pipelines.read()]
    document = {"pipeline": name, "paused": True, "reported": name in known}
    print_answer(document, f"paused: pipeline {name}", as_json)
    if name not in known:
        echo(f"no process has reported a pipeline {name!r} yet", err=True)


@app.command()
@operation
async def resume(target: Target, name: Name, as_json: Json = False) -> None:
    """End the pause of a pipeline.

    Exit codes: 0 resumed, 4 it was not paused by a command.

    \b
    task-run pipelines resume volumes
    """
    what = pipeline_pause(name)
    async with target.stores() as stores:
        paused = [item.what for item in await stores.controls.load()]
        await stores.controls.resume([what], who())
        status = {item.name: item for item in await stores.pipelines.read()}.get(name)
    if what not in paused:
        by = f"; it is paused {status.paused}" if status is not None and status.paused else ""
        raise NotFoundError(f"pipeline {name} was not paused by a command{by}")
    print_answer({"pipeline": name, "paused": False}, f"resumed: pipeline {name}", as_json)


@app.command()
@operation
async def hint(target: CodeTarget, name: Name, as_json: Json = False) -> None:
    """Let all processes of a pipeline look for due rows now instead of in a few seconds.

    This program must know the pipeline: install its package, or name its module with --tasks.

    \b
    task-run pipelines hint volumes --tasks myservice.pipelines
    """
    from nonet.pipelines.loading import load_pipelines
    from nonet.pipelines.table_keys import table_of

    async with target.application() as nonet:
        table = table_of(load_pipelines(nonet.settings).find(name).model).name
        number = await nonet.client.hints.send({table})
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
    from nonet.pipelines.loading import load_pipelines
    from nonet.pipelines.rows import Rows
    from nonet.pipelines.table_keys import key_from_text

    async with target.application() as nonet:
        cls = load_pipelines(nonet.settings).find(name)
        rows = Rows(cls.model)
        async with cls.database.used_once(name), cls.database.transaction() as session:
            found = await rows.touch(session, [key_from_text(rows.table, key)])
        if not found:
            raise NotFoundError(f"pipeline {name}: table {rows.table.name} has no row {key}")
        await nonet.client.hints.send({rows.table.name})
    document = {"pipeline": name, "key": key, "due": True}
    print_answer(document, f"due now: row {key} of {name}", as_json)


async def _status(stores: Stores, name: str) -> PipelineStatus:
    found = {item.name: item for item in await stores.pipelines.read()}
    if name not in found:
        known = ", ".join(found) or "none"
        raise NotFoundError(f"no process has reported a pipeline {name!r} (reported: {known})")
    return found[name]


def _number(rows: int) -> str:
    return f"more than {MOST}" if rows > MOST else str(rows)


def _line(item: PipelineStatus) -> dict[str, Any]:
    rows = item.rows
    return {
        "pipeline": item.name,
        "due": _number(rows.due),
        "leased": rows.leased,
        "stale": rows.stale,
        "oldest": f"{rows.oldest:.0f} s",
        "rate": item.rate,
        "wait": f"{item.wait:.1f} s",
        "runs": len(item.replicas),
        "waits for": item.cause,
    }


def _replica(item: Any) -> dict[str, Any]:
    return {
        "process": item.name,
        "running": item.running,
        "workers": item.workers,
        "queued": item.queued,
        "rate": item.rate,
        "problem": item.problem,
    }
