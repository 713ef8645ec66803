"""The quarantine: messages that are not valid tasks."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.base.plain import plain
from nonet.operate.quarantine import PREVIEW_BYTES, claimed, dump
from nonet.rules.permissions import Action
from nonet.stores.namespace.quarantine import Quarantined
from nonet.tasks.secrecy import masked_arguments
from nonet.web import quarantined
from nonet.web.pages.fields import Note
from nonet.web.pages.rendering import back, instant, path_of, render
from nonet.web.site import Discarder, Resubmitter, Revealer, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_ENTRIES = 50


@router.get("/quarantine", name="quarantine")
async def page(
    request: Request, site: SiteOf, who: Viewer, before: Annotated[str, Query(max_length=41)] = ""
) -> Response:
    """List entries, the newest first."""
    found, following = await quarantined.page_of(site, _ENTRIES, before)
    return render(
        request,
        "quarantine.html",
        entries=[(item, _claim(item)) for item in found],
        total=await site.nonet.stores.quarantine.count_since_loss(),
        before=before,
        following=following,
    )


def _claim(item: Quarantined) -> str:
    envelope = claimed(item)
    return envelope.name if envelope else ""


@router.get("/quarantine/{entry}", name="quarantined")
async def one(request: Request, site: SiteOf, who: Viewer, entry: str) -> Response:
    """Show an entry."""
    return _render(request, site, await site.nonet.stores.quarantine.get(entry))


def _render(request: Request, site: Site, item: Quarantined, **more: Any) -> Response:
    return render(
        request,
        "quarantined.html",
        item=item,
        is_whole=item.is_whole,
        claim=claimed(item),
        why_not=quarantined.why_not(site, item),
        instant=instant,
        **{"revealed": None, **more},
    )


@router.post("/quarantine/{entry}/reveal", name="reveal_quarantined")
async def reveal(request: Request, site: SiteOf, who: Revealer, entry: str) -> Response:
    """Show the message of an entry, in this answer only."""
    item = await site.nonet.stores.quarantine.get(entry)
    async with site.changing(who, Action.REVEAL, f"quarantined message {entry}"):
        envelope, arguments = claimed(item, site.nonet.client.cipher), None
        if envelope is not None:
            found = site.nonet.registry.find(envelope.name)
            masked = masked_arguments(envelope.args, found.cls if found else None)
            arguments = json.dumps(plain(masked), indent=2, ensure_ascii=False)
    # An envelope's bytes would show what is masked in its arguments.
    lines = dump(item.data[:PREVIEW_BYTES]) if envelope is None else []
    return _render(request, site, item, revealed={"arguments": arguments, "dump": lines})


@router.post("/quarantine/{entry}/retry", name="retry_quarantined")
async def retry(request: Request, site: SiteOf, who: Resubmitter, entry: str) -> Response:
    """Submit an entry as a task."""
    id = await quarantined.retry(site, who, entry)
    return back(request, path_of(request, "quarantine"), f"Submitted it, as task {id}.")


@router.post("/quarantine/{entry}/discard", name="discard_quarantined")
async def discard(
    request: Request, site: SiteOf, who: Discarder, entry: str, note: Note = ""
) -> Response:
    """Delete an entry."""
    await quarantined.discard(site, who, entry, note.strip())
    return back(request, path_of(request, "quarantine"), f"Discarded entry {entry}.")
