"""Tenants: ``/api/v1/tenants``, and their page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.operate import tenants
from nonet.operate.tenants import TenantQuery
from nonet.rules.fairness import NOBODY
from nonet.rules.tenants import ORDERS, TenantTable
from nonet.web.rendering import render
from nonet.web.resources.figures import SPANS, Charted, charts
from nonet.web.routing import resource
from nonet.web.site import Site, SiteOf, Viewer

api, pages = resource("tenants"), APIRouter(include_in_schema=False)

Listed = Annotated[TenantQuery, Query()]

_RECENT = {"5m": "5 minutes", "1h": "hour", "1d": "day", "14d": "14 days"}


@api.get("/tenants")
async def list_tenants(site: SiteOf, who: Viewer, query: Listed) -> TenantTable:
    """List the tenants: first those that the configuration names, then those with most tasks.

    At most 100, and one item `(others)` for all beyond. Empty while no task has a tenant.
    """
    return await _find(site, query)


@pages.get("/tenants", name="tenants")
async def show_tenants(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """List the tenants."""
    found = await _find(site, query)
    return render(request, "tenants.html", found=found, query=query, orders=ORDERS, spans=_RECENT)


@pages.get("/tenants/{name:path}", name="tenant")
async def show_tenant(
    request: Request, site: SiteOf, who: Viewer, name: str, query: Charted
) -> Response:
    """Show one tenant."""
    found = await site.read(
        tenants.get, site.stores, site.client.live_config, "" if name == NOBODY else name
    )
    history = await charts(site, query, "tenant", name)
    return render(request, "tenant.html", found=found, history=history, spans=SPANS)


async def _find(site: Site, query: TenantQuery) -> TenantTable:
    return await site.read(tenants.find, site.stores, site.client.live_config, query)
