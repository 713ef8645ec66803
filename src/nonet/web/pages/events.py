"""The events: who changed what, and incidents."""

from __future__ import annotations

import re
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup, escape

from nonet.base.keys import EVENT_KINDS
from nonet.rules.permissions import Principal
from nonet.stores.namespace.events import Event
from nonet.web import shown
from nonet.web.pages.rendering import path_of, render
from nonet.web.site import SiteOf, Viewer

router = APIRouter(include_in_schema=False)
_PER_PAGE = 100
# Ids that Nonet makes; a word of 20 letters is none.
_ID = re.compile(r"\b(?=[a-z]*[2-9])[a-km-z2-9]{20}\b")


@router.get("/events", name="events")
async def page(
    request: Request, site: SiteOf, who: Viewer, kind: str = "", q: str = "", cursor: str = ""
) -> Response:
    """List events, the newest first."""
    q = q.strip()
    keep = partial(_matches, who, kind, q.casefold())
    found = await site.shared.read(
        ("events", who.sees_texts, kind, q, cursor),
        2.0,
        lambda: site.nonet.stores.events.page(_PER_PAGE, keep, cursor),
    )
    return render(
        request,
        "events.html",
        events=found.events,
        cursor=found.cursor,
        kinds=EVENT_KINDS,
        chosen={"kind": kind, "q": q, "cursor": cursor},
        linked=partial(_linked, request),
    )


def _matches(who: Principal, kind: str, text: str, event: Event) -> bool:
    """Return whether a filter accepts an event; it must not find what `who` may not see."""
    seen = shown.seen(event, who)
    return kind in ("", seen.kind) and (
        not text or text in seen.text.casefold() or text in seen.who.casefold()
    )


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
