"""``task-run workers``: the registered workers, their tasks, why they take none, and drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.amounts import format_bytes
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.base.streams import Size
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_fields, print_json, print_rows
from nonet.cli.plain_words import PlainGroup
from nonet.cli.process import is_at_terminal, run
from nonet.cli.target import Target, flat, operation
from nonet.rules.findings.refusal import span

if TYPE_CHECKING:
    from nonet.stores.queue.workers import WorkerStatus


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
def workers(
    context: typer.Context,
    target: Target,
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Show this worker in full: its id, or pid@host."),
    ] = None,
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
        run(target.debug, lambda: _show(target, id, as_json))


async def _show(target: Target, id: str | None, as_json: bool) -> None:
    from nonet.stores.queue.workers import chosen  # it imports redis

    async with target.stores() as stores:
        found = await stores.results.workers()
    if id:
        _print_one(chosen(found, id), as_json)
    elif as_json:
        print_json(found)
    else:
        names = Counter(item.name for item in found)
        rows = [_row(item) for item in found]
        for row, item in zip(rows, found, strict=True):
            if names[item.name] > 1:  # a restart may reuse a pid@host
                row["name"] = f"{item.name} ({item.worker})"
        least = ("version", "config", "lag", "memory")
        print_rows(rows, False, "no worker is registered", least=least)


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
    if bool(names) == (size is not None):
        raise ConfigurationError(
            "which workers? Name them (see 'task-run workers'), or give --size"
        )
    async with target.stores() as stores:
        those = _chosen(await stores.results.workers(), names or (), size)
        if size is not None and not yes:
            if not is_at_terminal():
                raise ConfigurationError(
                    "stdin is not a terminal, so no worker was drained: add --yes"
                )
            typer.confirm(f"Drain {len(those)} {size} workers?", abort=True, err=True)
        asked = await stores.results.drain(list(those), who())
    draining = [item.name for item in those.values()]
    text = f"draining: {', '.join(draining)}"
    print_answer({"asked": asked, "draining": draining}, text, as_json)


def _chosen(
    workers: Iterable[WorkerStatus], names: Iterable[str], size: Size | None
) -> Mapping[str, WorkerStatus]:
    """Return the live workers with these names, or of this size, by incarnation."""
    from nonet.stores.queue.workers import chosen  # it imports redis

    alive = [item for item in workers if item.alive]
    if size is None:
        return {item.worker: item for item in (chosen(alive, name) for name in names)}
    found = {item.worker: item for item in alive if item.size == size}
    if not found:
        raise NotFoundError(f"no {size} worker is registered: see 'task-run workers'")
    return found


def _print_one(worker: WorkerStatus, as_json: bool) -> None:
    if as_json:
        print_json(worker)
        return
    row = _row(worker)
    row.pop("tasks")
    print_fields({"id": worker.worker, **row, "loop": worker.loop, "since": worker.since})
    for task in worker.tasks:
        since = f", since {task.since:%Y-%m-%d %H:%M:%SZ}" if task.since else ""
        echo(f"task {task.id} ({task.task or 'gone'}){since}")
    if worker.running > len(worker.tasks):
        echo(f"and {worker.running - len(worker.tasks)} more tasks")


def _row(worker: WorkerStatus) -> dict[str, Any]:
    return {
        "name": worker.name,
        "size": worker.size,
        "state": worker.state,
        "slots": f"{worker.running}/{worker.concurrency}",
        "memory": None if worker.rss is None else format_bytes(worker.rss),
        "lag": None if worker.lag_ms is None else f"{worker.lag_ms} ms",
        "version": worker.version,
        "beat": f"{span(worker.beat_seconds)} ago",
        "tasks": _summary(worker),
        "config": ": ".join(part for part in (worker.config, worker.config_problem) if part),
        "off": worker.off,
    }


def _summary(worker: WorkerStatus) -> str:
    """Return the classes of running tasks, most frequent first; not all tasks may be known."""
    counts = Counter(task.task or "gone" for task in worker.tasks)
    known = [f"{name} {count}" for name, count in counts.most_common(3)]
    return ", ".join(known + ["…"] * (worker.running > sum(counts.values()) or len(counts) > 3))
