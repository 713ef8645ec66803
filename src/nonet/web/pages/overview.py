"""The first page: what is wrong now, and what goes on."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.web import shown
from nonet.web.pages.rendering import render
from nonet.web.site import SiteOf, Viewer

router = APIRouter(include_in_schema=False)


@router.get("/", name="overview")
async def page(request: Request, site: SiteOf, who: Viewer) -> Response:
    """Show the overview."""
    found = await shown.overview(site, who)
    return render(request, "overview.html", overview=found)
