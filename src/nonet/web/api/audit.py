"""``/api/v1/audit``: who changed what in the dashboard and the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from nonet.stores.sql.audit import AuditEntry
from nonet.web.api.routing import resource
from nonet.web.site import AuditReader, SiteOf

router = resource("audit")


class AuditPage(BaseModel):
    """A page of the audit.

    Attributes:
        entries: newest first.
        cursor: of the next page; empty: there is none.
        unwritten: number of entries of the answering process that are not in SQL, but in its log.
    """

    entries: list[AuditEntry]
    cursor: str
    unwritten: int


@router.get("/audit")
async def audit(
    site: SiteOf,
    who: AuditReader,
    name: Annotated[str, Query(alias="who", description="alice, token:ci", max_length=255)] = "",
    action: Annotated[str, Query(description="cancel, login, …", max_length=32)] = "",
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: Annotated[str, Query(max_length=32)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Return changes, reveals and logins, newest first. Times without a zone are in UTC."""
    return await read(site, name, action, since, until, cursor, limit)


async def read(
    site: SiteOf,
    who: str,
    action: str,
    since: datetime | None,
    until: datetime | None,
    cursor: str,
    limit: int,
) -> AuditPage:
    """Read a page of the audit, which the page for people shows, too."""
    await site.audit.flush()
    store = await site.nonet.stores.audit()
    found = await store.list(
        who=who, action=action, since=since, until=until, before=cursor, limit=limit + 1
    )
    return AuditPage(
        entries=found[:limit],
        cursor=found[limit - 1].id if len(found) > limit else "",
        unwritten=site.audit.unwritten,
    )
