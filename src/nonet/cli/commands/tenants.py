"""``task-run tenants``: what each tenant has, gets and is due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError
from nonet.cli.commands.figures import times_in_words
from nonet.cli.options import Json, Since
from nonet.cli.output import cell, print_json, print_line, print_rows
from nonet.cli.target import Target, operation
from nonet.cli.watching import show
from nonet.rules.tenants import ORDERS, sorted_by, tenant_label

if TYPE_CHECKING:
    from nonet.rules.tenants import TenantFigures, TenantTable

_HOUR = timedelta(hours=1)
_LEAST = ("retried", "started", "weight", "wait_50_95_99_%", "live")


@operation
async def tenants(
    target: Target,
    since: Since = None,
    sort: Annotated[
        str, typer.Option(metavar="|".join(ORDERS), help="What comes first.")
    ] = "tasks",
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every 2 seconds, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what each tenant has, gets and is due.

    Now: 'live' tasks have not ended, 'waiting' ones wait for the turn of their tenant, the oldest
    of them for so long, and 'running' counts attempts. 'used %' is the part of all starts of the
    last 5 minutes that were of the tenant, and 'due %' the part that its weight gives it among
    those that had tasks.
    Since AGE: attempts started, tasks failed for good, attempts retried, and how long tasks
    waited (half, 95 % and 99 % waited less).
    Tenants that the configuration names come first, then those with most tasks. 100 are shown;
    '(others)' adds up all beyond. '(none)' are tasks without a tenant.

    Exit codes: 0 shown, 3 Redis unreachable.

    \b
    task-run tenants --sort behind
    task-run tenants --since 1d --json
    """
    if sort not in ORDERS:
        raise ConfigurationError(f"--sort {sort}: must be one of {', '.join(ORDERS)}")
    from nonet.operate.tenants import tenant_table  # it imports redis

    async with target.observer() as nonet:
        live = nonet.client.live_config
        read = partial(tenant_table, nonet.stores.tenants, live, since=since or _HOUR)
        display = partial(_print, sort=sort, as_json=as_json)
        await show(read, display, watch=watch, as_json=as_json)


def _print(found: TenantTable, *, sort: str, as_json: bool) -> None:
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
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3g}"
