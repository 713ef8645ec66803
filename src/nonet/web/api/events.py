"""``/api/v1/events``: the changes that were made in the namespace."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from nonet.base.keys import EVENT_KINDS
from nonet.operate.lists import opened
from nonet.stores.namespace.events import Event
from nonet.web.api.routing import Cursor, Limit, Page, page, resource
from nonet.web.site import SiteOf, Viewer

router = resource("events")


@router.get("/events")
async def list_events(
    site: SiteOf,
    who: Viewer,
    kind: Annotated[
        str | None,
        Query(json_schema_extra={"enum": sorted(EVENT_KINDS)}, description="Only this kind."),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Page[Event]:
    """List the last changes, the newest first."""
    if kind is not None and kind not in EVENT_KINDS:
        raise ValueError(f"kind: {kind!r:.100} is none of {', '.join(sorted(EVENT_KINDS))}")
    found = await site.nonet.stores.events.page(
        limit, lambda event: kind in (None, event.kind), opened(cursor)
    )
    return page(found.events, found.cursor)
