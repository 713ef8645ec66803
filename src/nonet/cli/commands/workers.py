"""``task-run workers``: the registered workers, their tasks, why they take none, and drains."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nonet.base.errors import ConfigurationError
from nonet.base.streams import Size
from nonet.cli.options import Json
from nonet.cli.output import cell, echo, print_answer, print_view
from nonet.cli.plain_words import PlainGroup
from nonet.cli.process import is_at_terminal, run
from nonet.cli.target import Target, flat, operation
from nonet.operate import workers
from nonet.operate.workers import WorkerQuery

_COLUMNS = "name size state slots memory lag version beat tasks=classes config=applies off"
_LEAST = ("version", "config", "lag", "memory")


class _Workers(PlainGroup):
    """A group whose own argument, the id of a worker, is optional."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `typer.core.TyperGroup`."""
        if args and args[0] in self.commands:
            args = ["", *args]  # a subcommand is no id
        else:
            ctx.allow_interspersed_args = True  # options may follow the id
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Workers, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@flat
def show(
    context: typer.Context,
    target: Target,
    query: WorkerQuery,
    id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Show this worker in full: its id, or pid@host.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the registered workers, or drain some.

    States: working, idle, draining, vetoing (it takes no tasks; column 'off' says why), silent (a
    heartbeat is overdue), lost (its registration expired; other workers take over its tasks).
    Memory is the sum over all processes of the worker. Lag is the longest delay of its event loop.
    Both were measured at its last heartbeat. A later process may reuse a pid@host, but not an id.

    Exit codes: 0 shown, 4 no such worker.

    \b
    task-run workers
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _show(target, id, query, as_json))


async def _show(target: Target, id: str, query: WorkerQuery, as_json: bool) -> None:
    async with target.stores() as stores:
        if not id:
            found = await workers.find(stores, query)
            print_view(found, as_json, _COLUMNS, "no worker is registered", least=_LEAST)
            return
        worker = await workers.get(stores, id)
    print_view(worker, as_json, f"id=worker {_COLUMNS} loop since")
    if not as_json:
        for task in worker.tasks:
            echo(f"task {task.id} ({task.task or 'gone'}), since {cell(task.since)}")


@app.command("drain")
@operation
async def drain(
    target: Target,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Workers: id or pid@host.", show_default=False),
    ] = None,
    size: Annotated[
        Size | None, typer.Option(help="All workers of this size.", show_default="none")
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Drain all workers of a size without asking. Required if stdin is not a terminal.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Let workers finish their tasks and end, on whatever host they run.

    A worker reads the order within a second and then does what it does at SIGTERM. What started it
    may start another one: a fleet leaves its place empty until SIGHUP, and a Deployment fills it.
    Repeating the command changes nothing. The command 'task-run events' shows who drained.

    Exit codes: 0 all of them drain, 2 stdin is not a terminal and --yes is missing, 4 no such
    worker.

    \b
    task-run workers drain 4711@host-3
    task-run workers drain --size large --yes
    """
    async with target.stores() as stores:
        those = await workers.choose(stores, names or (), size)
        if size is not None and not yes:
            if not is_at_terminal():
                raise ConfigurationError(
                    "stdin is not a terminal, so no worker was drained: add --yes"
                )
            typer.confirm(f"Drain {len(those)} {size} workers?", abort=True, err=True)
        found = await workers.drain(stores, those)
    print_answer(found, f"draining: {', '.join(found.draining)}", as_json)
