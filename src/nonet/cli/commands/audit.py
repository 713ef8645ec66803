"""``task-run audit``: who changed what in the dashboard and the API."""

from __future__ import annotations

from nonet.cli.options import Json
from nonet.cli.output import print_view
from nonet.cli.target import Target, operation
from nonet.operate import audit
from nonet.operate.audit import AuditQuery


@operation
async def list_audit(target: Target, query: AuditQuery, as_json: Json = False) -> None:
    """Show who changed what in the dashboard and the API.

    The newest entry comes first.

    \b
    task-run audit --who alice --since 1d
    """
    async with target.stores() as stores:
        found = await audit.find(stores, query)
    nothing = "no change was made in the dashboard"
    print_view(found, as_json, "at who action what outcome address", nothing, least=("address",))
