"""The metrics of tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nonet.client.live import LiveConfig
from nonet.operate.tenants import tenant_table
from nonet.rules.figures import figures_of
from nonet.rules.tenants import TenantFigures, TenantTable, tenant_label
from nonet.rules.vectors import started_in
from nonet.stores.namespace.tenants import SHARE_TIME, Tenants
from nonet.telemetry.metrics import Sample

# Each has sixteen series.
_MOST = 50


class TenantCensus(NamedTuple):
    """What metrics show of tenants.

    Attributes:
        table: what they have, and their last minutes.
        totals: what workers have counted since Redis was empty, as vectors.
    """

    table: TenantTable
    totals: Mapping[str, Mapping[int, int]]


async def take_census(store: Tenants, live_config: LiveConfig) -> TenantCensus:
    """Read the tenants."""
    await live_config.refresh()
    table = await tenant_table(store, live_config, since=SHARE_TIME, most=_MOST)
    return TenantCensus(table, await store.totals())


def tenant_samples(census: TenantCensus) -> Iterator[Sample]:
    """Yield the tenants as metrics."""
    for item in census.table.items:
        yield from _gauges(item)
    for name, vector in census.totals.items():
        tenant, figures = (tenant_label(name),), figures_of(vector)
        yield "nonet_tenant_started_total", tenant, started_in(vector)
        yield "nonet_tenant_ended_total", tenant, figures.ended
        yield "nonet_tenant_failed_total", tenant, figures.failed
        yield "nonet_tenant_retried_total", tenant, figures.retried


def _gauges(item: TenantFigures) -> Iterator[Sample]:
    tenant, wait = tenant_label(item.name), item.wait
    oldest = None if item.waiting is None else item.oldest_seconds or 0.0
    for name, value in (
        ("nonet_tenant_active_tasks", item.live),
        ("nonet_tenant_waiting_tasks", item.waiting),
        ("nonet_tenant_oldest_age_seconds", oldest),
        ("nonet_tenant_running_tasks", item.running),
        ("nonet_tenant_share_used", item.share_used),
        ("nonet_tenant_share_due", item.share_due),
    ):
        if value is not None:
            yield name, (tenant,), value
    for quantile, seconds in (("0.5", wait.p50), ("0.95", wait.p95), ("0.99", wait.p99)):
        if seconds is not None:
            yield "nonet_tenant_wait_seconds", (tenant, quantile), seconds
