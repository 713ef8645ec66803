"""The page of components: what pages are made of, with made-up data. No page links to it."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.web.rendering import render
from nonet.web.site import Viewer

router = APIRouter(include_in_schema=False)


@router.get("/components", name="components")
async def show_components(request: Request, who: Viewer) -> Response:
    """Show every component."""
    return render(request, "components.html", at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
