"""Tenants: what each has, gets and is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from nonet.base.durations import duration
from nonet.base.errors import NotFoundError, suggestion
from nonet.operate.lists import Recent, Selection
from nonet.rules.fairness import MOST_TENANTS, OTHERS
from nonet.rules.tenants import ORDERS, TenantFigures, TenantTable, sorted_by, tenant_label

if TYPE_CHECKING:
    from nonet.client.live import LiveConfig
    from nonet.stores.namespace.tenants import Tenants
    from nonet.stores.stores import Stores


class TenantQuery(Selection):
    """What is shown of tenants."""

    since: Recent = "1h"
    sort: str = Field(
        default="tasks",
        json_schema_extra={"enum": [*ORDERS]},
        description=f"Sort order: {', '.join(ORDERS)}.",
    )

    @field_validator("sort")
    @classmethod
    def _is_known(cls, sort: str) -> str:
        if sort not in ORDERS:
            raise ValueError(
                f"{sort!r:.100} must be one of {', '.join(ORDERS)}.{suggestion(sort, ORDERS)}"
            )
        return sort


async def find(stores: Stores, live_config: LiveConfig, query: TenantQuery) -> TenantTable:
    """Return the tenants: first those that the configuration names, then those with most tasks.

    At most 100, and one item `(others)` for all beyond. Empty while no task has a tenant.
    """
    found = await tenant_table(stores.tenants, live_config, since=duration(query.since))
    return replace(found, items=sorted_by(found.items, query.sort))


async def get(stores: Stores, live_config: LiveConfig, name: str) -> TenantFigures:
    """Return what one tenant has; empty `name`: the tasks without a tenant.

    Raises:
        NotFoundError: it has no tasks, and had none in the last hour, or it is one of the others.
    """
    table = await tenant_table(stores.tenants, live_config, since=timedelta(hours=1))
    for item in table.items:
        if item.name == name:
            return item
    raise NotFoundError(
        f"tenant {tenant_label(name)!r:.100}: none of its tasks is live or started in the last "
        f"hour, or it is one of {OTHERS}: see task-run tenants"
    )


async def tenant_table(
    store: Tenants, live_config: LiveConfig, *, since: timedelta, most: int = MOST_TENANTS
) -> TenantTable:
    """Return the tenants, first those that the published configuration names.

    Args:
        since: count the past from at least so long ago; at most two weeks.
        most: how many tenants to tell apart. The others are added up.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    await live_config.refresh()
    by, named = live_config.tenants_by, live_config.named_tenants
    return await store.table(by, named, since=since, most=most)
