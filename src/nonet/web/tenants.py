"""Tenants, as the page and the API read them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from nonet.operate.tenants import tenant_table
from nonet.rules.tenants import TenantTable
from nonet.web.site import Site

_SECONDS = 5.0


async def tenants_of(site: Site, since: float) -> TenantTable:
    """Return the tenants, read at most every five seconds.

    Args:
        since: count the past from this many seconds ago.
    """
    live, stores = site.nonet.client.live_config, site.nonet.stores
    read = partial(tenant_table, stores.tenants, live, since=timedelta(seconds=since))
    return await site.shared.read(("tenants", since), _SECONDS, read)
