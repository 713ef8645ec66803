"""``task-run tenants``: what each tenant has, gets and is due."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.cli.commands.figures import times_in_words
from nonet.cli.durations import duration
from nonet.cli.options import Json
from nonet.cli.output import cell, clear_screen, print_json, print_line, print_rows
from nonet.cli.process import run
from nonet.cli.target import Target, flat, operation
from nonet.daemon.service import ExitCode, until_signal, who
from nonet.rules.peers import counted
from nonet.rules.tenants import ORDERS, sorted_by, tenant_label

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.rules.tenants import TenantFigures, TenantTable

_HOUR = timedelta(hours=1)
_REFRESH_SECONDS = 2.0
app = typer.Typer(rich_markup_mode=None)
# How many delayed tasks `move` prints.
_SHOWN = 10
_LEAST = ("memory_gib_s", "cpu_s", "retried", "started", "weight", "wait_50_95_99_%", "live")


@app.callback(invoke_without_command=True)
@flat
def tenants(
    context: typer.Context,
    target: Target,
    since: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="AGE",
            help="Count the past of this long until now: at most 48h.",
            show_default="1h",
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(metavar="|".join(ORDERS), help="What comes first."),
    ] = "tasks",
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every 2 seconds, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what each tenant has, gets and is due; or move one.

    Now: 'live' tasks have not ended, 'waiting' ones wait for the turn of their tenant, the oldest
    of them for so long, and 'running' counts attempts. 'used %' is the part of all starts of the
    last 5 minutes that were of the tenant, and 'due %' the part that its weight gives it among
    those that had tasks.
    Since AGE: attempts started, tasks failed for good, attempts retried, how long tasks
    waited (half, 95 % and 99 % waited less), and CPU time and memory of attempts in child
    processes: peak memory of the process x duration.
    Tenants that the configuration names come first, then those with most tasks. 100 are shown;
    '(others)' adds up all beyond. '(none)' are tasks without a tenant.

    Exit codes: 0 shown, 3 Redis unreachable.

    \b
    task-run tenants --sort behind
    task-run tenants --since 1d --json
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _show(target, since or _HOUR, sort, watch, as_json))


async def _show(target: Target, since: timedelta, sort: str, watch: bool, as_json: bool) -> int:
    if sort not in ORDERS:
        raise ConfigurationError(f"--sort {sort}: must be one of {', '.join(ORDERS)}")
    async with target.observer() as nonet:
        if watch:
            await until_signal(_watch(nonet, since, sort, as_json))
        else:
            _print(await _read(nonet, since), sort, as_json)
    return ExitCode.OK


@app.command()
@operation
async def move(
    target: Target,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of a tenant.")],
    to: Annotated[str, typer.Option(metavar="NAMESPACE", help="Where its new tasks go.")],
    with_delayed: Annotated[
        bool,
        typer.Option(
            "--with-delayed",
            help="Move its delayed tasks, too, but for retries and tasks of groups and workflows.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Move a tenant to another namespace on the same Redis or Redis Cluster.

    From now on its new tasks and periodic entries go to the new namespace. The old one ends what it
    has. Until then, tasks in the new one that need a lock, a limit or a unique key wait, so that no
    lock is held in both; others run at once. The scheduler of the new namespace goes on with the
    move; repeat the command to see how far it is.

    The move is lost with the data of Redis: write it into the configuration ('namespaces') soon.

    Exit codes: 0 moved or under way, 1 it is there already or still moves elsewhere, 2 the new
    namespace has no scheduler.

    \b
    task-run tenants move lhcb --to b --with-delayed
    """
    from nonet.operate.moving import begin  # it imports redis
    from nonet.stores.queue.places import TaskFilter

    async with target.observer() as nonet:
        await nonet.client.live_config.refresh()
        found = await begin(nonet.client, tenant, to, who(), with_delayed=with_delayed)
        old = nonet.client.routing.client(found.source)
        selection = TaskFilter(states=("delayed",), tenant=tenant)
        page = await old.results.page(selection, limit=_SHOWN)
    if as_json:
        print_json({**asdict(found), "delayed": page.rows})
        return ExitCode.OK
    state = "has moved" if found.is_done else "moves"
    print_line(f"{tenant} {state} from {found.source} to {to}: new tasks go to {to}")
    if found.moved:
        print_line(f"moved {counted(found.moved, 'delayed task')}")
    if not found.is_done:
        left = f"left in {found.source}: {counted(found.tasks, 'task')}"
        print_line(f"{left}; until it has none, tasks with locks wait in {to}")
    of_old = f"delayed in {found.source}"
    if rows := [{of_old: row.id, "task": row.name, "due": row.due} for row in page.rows]:
        print_rows(rows, False, "")
    if page.matched > len(rows):
        more = f"task-run list --namespace {found.source} --state delayed --tenant {tenant}"
        print_line(f"{counted(page.matched, 'delayed task')}: {more}")
    typer.echo(f"write 'namespaces: {{{tenant}: {to}}}' into the configuration", err=True)
    return ExitCode.OK


async def _read(nonet: Nonet, since: timedelta) -> TenantTable:
    from nonet.operate.tenants import tenant_table

    return await tenant_table(nonet.stores.tenants, nonet.client.live_config, since=since)


async def _watch(nonet: Nonet, since: timedelta, sort: str, as_json: bool) -> None:
    while True:
        try:
            found = await _read(nonet, since)
        except ServerUnreachableError as error:
            typer.echo(f"{error}; trying again", err=True)
        else:
            if not as_json:
                clear_screen()
            _print(found, sort, as_json)
        await asyncio.sleep(_REFRESH_SECONDS)


def _print(found: TenantTable, sort: str, as_json: bool) -> None:
    items = sorted_by(found.items, sort)
    if as_json:
        print_json({"by": found.by, "since": found.since, "items": items})
        return
    nothing = f"no tenant has tasks, by {found.by}"
    print_rows([_row(item) for item in items], False, nothing, least=_LEAST)
    if items:
        print_line(f"by {found.by}, since {cell(found.since)}", err=True)


def _row(item: TenantFigures) -> Mapping[str, Any]:
    return {
        "tenant": tenant_label(item.name),
        "weight": None if item.weight is None else f"{item.weight:g}",
        "live": item.live,
        "waiting": item.waiting,
        "oldest_seconds": item.oldest_seconds,
        "running": item.running,
        "used_%": _percent(item.share_used),
        "due_%": _percent(item.share_due),
        "started": item.started,
        "failed": item.failed,
        "retried": item.retried,
        "wait_50_95_99_%": times_in_words(item.wait),
        "cpu_s": None if item.cpu_seconds is None else f"{item.cpu_seconds:.3g}",
        "memory_gib_s": _gib(item.memory_byte_seconds),
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3g}"


def _gib(byte_seconds: float | None) -> str | None:
    return None if byte_seconds is None else f"{byte_seconds / 2**30:.3g}"
