"""``/api/v1/live``: changes as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from nonet.stores.namespace.events import Event
from nonet.web import shown
from nonet.web.site import SiteOf, Viewer

router = APIRouter(prefix="/api/v1", tags=["events"])

_BUSY_SECONDS = 10
_EVENTS = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "/live",
    name="live",
    response_class=StreamingResponse,
    responses={200: {"content": {_EVENTS: {"schema": {"type": "string"}}}}},
)
async def live(
    request: Request,
    site: SiteOf,
    who: Viewer,
    last_event_id: Annotated[str, Header(max_length=50)] = "",
    after: Annotated[str, Query(max_length=50)] = "",
) -> StreamingResponse:
    """Follow what changes.

    Messages are `hello`, `event` (an entry of the event stream, with its id), `tick` (read again
    what you show), `lost` (Redis does not answer) and `end` (its `reason` is `session`,
    `replaced`, `stopping` or `slow`). A comment comes every 15 seconds. With `Last-Event-ID`, or
    `after`, the events that were missed come first. A second stream of a session replaces the
    first.
    """
    owner = who.session or who.name
    if not site.live.has_room(owner, is_session=bool(who.session)):
        raise HTTPException(
            503,
            "too many live streams are open, or the server stops: try again",
            {"Retry-After": str(_BUSY_SECONDS)},
        )

    async def allowed() -> bool:
        found = await site.access.identify(request)
        # With fewer permissions it has to begin anew: `show` goes by those of its beginning.
        return (
            found is not None
            and found.session == who.session
            and found.classes == who.classes
            and found.actions >= who.actions
        )

    def show(event: Event) -> Event:
        return shown.event(event, who)

    messages = site.live.stream(
        owner, allowed, show, is_session=bool(who.session), after=last_event_id or after
    )
    return StreamingResponse(messages, headers=_HEADERS, media_type=_EVENTS)
