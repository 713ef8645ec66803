"""Tenants for operators: what each has, gets and is due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from nonet.rules.fairness import MOST_TENANTS
from nonet.rules.tenants import TenantTable

if TYPE_CHECKING:
    from nonet.client.live import LiveConfig
    from nonet.stores.namespace.tenants import Tenants


async def tenant_table(
    store: Tenants,
    live_config: LiveConfig,
    *,
    since: timedelta = timedelta(hours=1),
    most: int = MOST_TENANTS,
) -> TenantTable:
    """Return the tenants, first those that the published configuration names.

    Args:
        since: count the past from at least so long ago; at most two days.
        most: how many tenants to tell apart. The others are added up.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    await live_config.refresh()
    by, named = live_config.tenants_by, live_config.named_tenants
    return await store.table(by, named, since=since, most=most)
