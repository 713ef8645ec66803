"""The audit: who changed what in the dashboard and the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.durations import moment
from nonet.operate.lists import Age, ListQuery, Page, Text, opened, sealed
from nonet.stores.sql.audit import AuditEntry

if TYPE_CHECKING:
    from nonet.stores.stores import Stores


class AuditQuery(ListQuery):
    """Which entries are listed."""

    who: Text = Field(default="", description="Only of alice, or token:ci.")
    action: Text = Field(default="", description="Only this one: cancel, login, …")
    since: Age = Field(
        default="", description="Not older: a time (UTC without a zone), or an age such as 1d."
    )
    until: Age = Field(
        default="", description="Not younger: a time (UTC without a zone), or an age such as 1d."
    )


@dataclass(frozen=True, slots=True)
class AuditPage(Page[AuditEntry]):
    """A page of the audit.

    Attributes:
        items: newest first.
        unwritten: number of entries of the answering process that are not in SQL, but in its log.
    """

    unwritten: int = 0


async def find(stores: Stores, query: AuditQuery, unwritten: int = 0) -> AuditPage:
    """Return changes, reveals and logins, the newest first."""
    store = await stores.audit()
    found = await store.list(
        who=query.who.strip(),
        action=query.action,
        since=moment(query.since) if query.since else None,
        until=moment(query.until) if query.until else None,
        before=opened(query.cursor),
        limit=query.limit + 1,
    )
    end = found[query.limit - 1].id if len(found) > query.limit else ""
    return AuditPage(found[: query.limit], sealed(end), unwritten)
