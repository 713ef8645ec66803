"""Events: ``/api/v1/events``, and the page that lists them."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from markupsafe import Markup, escape

from nonet.base.keys import EVENT_KINDS
from nonet.operate import events
from nonet.operate.events import EventQuery
from nonet.operate.lists import Page
from nonet.rules.permissions import Principal
from nonet.stores.namespace.events import Event
from nonet.web.rendering import path_of, render
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("events"), APIRouter(include_in_schema=False)

Listed = Annotated[EventQuery, Query()]
# Ids that Nonet makes; a word of 20 letters is none.
_ID = re.compile(r"\b(?=[a-z]*[2-9])[a-km-z2-9]{20}\b")


@api.get("/events")
async def list_events(site: SiteOf, who: Viewer, query: Listed) -> Page[Event]:
    """List the last changes, the newest first."""
    return await _find(site, who, query)


@pages.get("/events", name="events")
async def show_events(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """List the events."""
    return render(
        request,
        "events.html",
        found=await _find(site, who, query),
        query=query,
        kinds=EVENT_KINDS,
        tasks_linked=partial(_linked, request),
    )


async def _find(site: SiteOf, who: Principal, query: EventQuery) -> Page[Event]:
    return await site.read(events.find, site.stores, query, is_viewer=not who.sees_texts)


def _linked(request: Request, text: str) -> Markup:
    """Escape a text, and link the ids of tasks in it."""
    parts, end = Markup(), 0
    for found in _ID.finditer(text):
        link = Markup('<a class="mono" href="{}">{}</a>').format(
            path_of(request, "task", id=found[0]), found[0]
        )
        parts += escape(text[end : found.start()]) + link
        end = found.end()
    return parts + escape(text[end:])
