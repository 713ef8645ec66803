"""``/api/v1/overview``: what is wrong now, and what goes on."""

from __future__ import annotations

from nonet.rules.findings.situation import Overview
from nonet.web import shown
from nonet.web.api.routing import resource
from nonet.web.ring import LastHour
from nonet.web.site import SiteOf, Viewer

router = resource("overview")


@router.get("/overview")
async def overview(site: SiteOf, who: Viewer) -> Overview:
    """Return what is wrong in the namespace now, worst first, and what goes on there."""
    return await shown.overview(site, who)


@router.get("/overview/hour", name="last_hour")
async def last_hour(site: SiteOf, who: Viewer) -> LastHour:
    """Return the last hour: samples of this process, and what workers ended by minutes."""
    return await site.last_hour()
