"""The tenants: what each has, gets and is due."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.rules.tenants import ORDERS, sorted_by, tenant_label
from nonet.web.pages.rendering import render
from nonet.web.site import SiteOf, Viewer
from nonet.web.tenants import tenants_of

router = APIRouter(include_in_schema=False)

_SPANS = {300: "5 minutes", 3600: "hour", 86_400: "day", 172_800: "2 days"}


@router.get("/tenants", name="tenants")
async def page(
    request: Request,
    site: SiteOf,
    who: Viewer,
    order: str = "tasks",
    since: Annotated[int, Query(ge=60, le=172_800)] = 3600,
) -> Response:
    """List the tenants."""
    order, since = order if order in ORDERS else "tasks", since if since in _SPANS else 3600
    table = await tenants_of(site, since)
    return render(
        request,
        "tenants.html",
        table=table,
        tenants=sorted_by(table.items, order),
        label=tenant_label,
        chosen={"order": order, "since": since},
        orders=ORDERS,
        spans=_SPANS,
    )
