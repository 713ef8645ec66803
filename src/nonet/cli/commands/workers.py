"""``task-run workers``: the registered workers, their tasks, and why they take none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.amounts import format_bytes
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.options import Json
from nonet.cli.output import print_fields, print_json, print_rows
from nonet.cli.target import Target, operation
from nonet.daemon.service import ExitCode
from nonet.rules.refusal import span

if TYPE_CHECKING:
    from nonet.stores.queue.workers import WorkerStatus


@operation
async def workers(
    target: Target,
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Show this worker in full: its id, or pid@host."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show the registered workers.

    States: working, idle, draining, vetoing (it takes no tasks; column 'off' says why), silent (a
    heartbeat is overdue), lost (its registration expired; other workers take over its tasks).
    Memory is the sum over all processes of the worker. Lag is the longest delay of its event loop.
    Both were measured at its last heartbeat. A later process may reuse a pid@host, but not an id.

    Exit codes: 0 shown, 4 no such worker.

    \b
    task-run workers
    """
    async with target.stores() as stores:
        found = await stores.results.workers()
    if id is not None:
        _print_one(_chosen(found, id), as_json)
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
    return ExitCode.OK


def _chosen(found: Sequence[WorkerStatus], id: str) -> WorkerStatus:
    matching = [item for item in found if id in (item.worker, item.name)]
    if not matching:
        raise NotFoundError(f"no worker {id} is registered: 'task-run workers' lists them")
    if len(matching) > 1:
        ids = " or ".join(item.worker for item in matching)
        raise ConfigurationError(f"several workers had the name {id}: give an id, {ids}")
    return matching[0]


def _print_one(worker: WorkerStatus, as_json: bool) -> None:
    if as_json:
        print_json(worker)
        return
    row = _row(worker)
    row.pop("tasks")
    print_fields({"id": worker.worker, **row, "loop": worker.loop, "since": worker.since})
    for task in worker.tasks:
        since = f", since {task.since:%Y-%m-%d %H:%M:%SZ}" if task.since else ""
        typer.echo(f"task {task.id} ({task.task or 'gone'}){since}")
    if worker.running > len(worker.tasks):
        typer.echo(f"and {worker.running - len(worker.tasks)} more tasks")


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
