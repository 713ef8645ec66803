"""``/api/v1/tenants``: what each tenant has, gets and is due."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from nonet.rules.tenants import TenantTable
from nonet.web.api.routing import resource
from nonet.web.site import SiteOf, Viewer
from nonet.web.tenants import tenants_of

router = resource("tenants")


@router.get("/tenants")
async def list_tenants(
    site: SiteOf,
    who: Viewer,
    since: Annotated[
        float,
        Query(ge=60, le=172_800, description="Count the past of this many seconds until now."),
    ] = 3600,
) -> TenantTable:
    """List the tenants: first those that the configuration names, then those with most tasks.

    At most 100, and one item `(others)` for all beyond. Empty while no task has a tenant.
    """
    return await tenants_of(site, since)
