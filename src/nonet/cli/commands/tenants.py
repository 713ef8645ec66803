"""``task-run tenants``: what each tenant has, gets and is due."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from nonet.cli.options import Json
from nonet.cli.output import cell, print_line, print_view
from nonet.cli.target import Target, operation
from nonet.cli.watching import show
from nonet.operate import tenants
from nonet.operate.tenants import TenantQuery
from nonet.rules.tenants import TenantTable

_COLUMNS = (
    "tenant=label weight live waiting oldest_seconds running used_%=used_percent due_%=due_percent "
    "started failed retried wait_50_95_99_%=wait.in_words"
)
_LEAST = ("retried", "started", "weight", "wait_50_95_99_%", "live")


@operation
async def list_tenants(
    target: Target,
    query: TenantQuery,
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
    async with target.observer() as nonet:
        read = partial(tenants.find, nonet.stores, nonet.client.live_config, query)
        await show(read, partial(_print, as_json=as_json), watch=watch, as_json=as_json)


def _print(found: TenantTable, *, as_json: bool) -> None:
    print_view(found, as_json, _COLUMNS, f"no tenant has tasks, by {found.by}", least=_LEAST)
    if found.items and not as_json:
        print_line(f"by {found.by}, since {cell(found.since)}", err=True)
