"""The audit: who changed what in the dashboard and the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NonetError
from nonet.rules.permissions import READING, Action
from nonet.web.api.audit import AuditPage, read
from nonet.web.pages.fields import Cursor
from nonet.web.pages.rendering import render
from nonet.web.site import AuditReader, SiteOf

router = APIRouter(include_in_schema=False)
_PER_PAGE = 100
_LOGINS = ("login", "logout")


@router.get("/audit", name="audit")
async def page(
    request: Request,
    site: SiteOf,
    principal: AuditReader,
    who: Annotated[str, Query(max_length=255)] = "",
    action: str = "",
    since: str = "",
    until: str = "",
    cursor: Cursor = "",
) -> Response:
    """List changes, reveals and logins, the newest first."""
    wanted = who.strip(), action, _time(since), _time(until), cursor, _PER_PAGE
    problem, found = "", AuditPage(entries=[], cursor="", unwritten=site.audit.unwritten)
    try:
        found = await site.shared.read(("audit", *wanted), 2.0, lambda: read(site, *wanted))
    except NonetError as error:
        problem = str(error)
    return render(
        request,
        "audit.html",
        problem=problem,
        entries=found.entries,
        unwritten=found.unwritten,
        cursor=found.cursor,
        is_first=not cursor,
        actions=[*sorted(set(Action) - READING | {Action.REVEAL}), *_LOGINS],
        chosen={"who": who, "action": action, "since": since, "until": until},
    )


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
