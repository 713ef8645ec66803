"""The audit: ``/api/v1/audit``, and its page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NonetError
from nonet.operate import audit
from nonet.operate.audit import AuditPage, AuditQuery
from nonet.rules.permissions import READING, Action
from nonet.web.rendering import render
from nonet.web.routing import resource
from nonet.web.site import AuditReader, SiteOf

api, pages = resource("audit"), APIRouter(include_in_schema=False)

Listed = Annotated[AuditQuery, Query()]
_ACTIONS = (*sorted(set(Action) - READING | {Action.REVEAL}), "login", "logout")


@api.get("/audit")
async def list_audit(site: SiteOf, who: AuditReader, query: Listed) -> AuditPage:
    """List changes, reveals and logins, the newest first."""
    await site.audit.flush()
    return await site.read(audit.find, site.stores, query, site.audit.unwritten)


@pages.get("/audit", name="audit")
async def show_audit(request: Request, site: SiteOf, who: AuditReader, query: Listed) -> Response:
    """List changes, reveals and logins, the newest first."""
    problem, found = "", AuditPage((), unwritten=site.audit.unwritten)
    try:
        found = await list_audit(site=site, who=who, query=query)
    except NonetError as error:
        problem = str(error)
    return render(
        request, "audit.html", found=found, query=query, problem=problem, actions=_ACTIONS
    )
