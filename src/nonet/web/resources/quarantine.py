"""The quarantine: ``/api/v1/quarantine``, and the pages of messages that are not valid tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from nonet.operate import quarantine
from nonet.operate.lists import ListQuery
from nonet.operate.quarantine import Content, Entries, EntryInFull, Retried, dump
from nonet.rules.permissions import Principal
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import Discard, FormText, resource
from nonet.web.site import SiteOf, Viewer, may

api, pages = resource("quarantine"), APIRouter(include_in_schema=False)

Entry = Annotated[
    str,
    Path(pattern=r"^[0-9]{1,19}-[0-9]{1,19}$", description="Id of the entry, `1767225600000-0`."),
]
Listed = Annotated[ListQuery, Query()]
Revealer = Annotated[Principal, may(quarantine.reveal)]
Retrier = Annotated[Principal, may(quarantine.retry)]
Discarder = Annotated[Principal, may(quarantine.discard)]


@api.get("/quarantine")
async def list_quarantine(site: SiteOf, who: Viewer, query: Listed) -> Entries:
    """Return quarantined messages, the newest first."""
    return await quarantine.find(site.stores, query)


@api.get("/quarantine/{entry}")
async def get_quarantine_entry(site: SiteOf, who: Viewer, entry: Entry) -> EntryInFull:
    """Return a quarantined message, without its content."""
    return await quarantine.get(site.client, entry)


@api.get("/quarantine/{entry}/content")
async def reveal_quarantine_entry(site: SiteOf, who: Revealer, entry: Entry) -> Content:
    """Return what a quarantined message contains. This is audited."""
    return await site.perform(who, quarantine.reveal, site.client, entry, site.registry)


@api.post("/quarantine/{entry}/retry")
async def retry_quarantine_entry(site: SiteOf, who: Retrier, entry: Entry) -> Retried:
    """Submit a quarantined message as a task, once, if a worker would accept it now."""
    return await site.perform(who, quarantine.retry, site.client, entry)


@api.post("/quarantine/{entry}/discard", status_code=204)
async def discard_quarantine_entry(
    site: SiteOf, who: Discarder, entry: Entry, how: Discard | None = None
) -> None:
    """Delete a quarantined message."""
    why = how.why if how else ""
    await site.perform(who, quarantine.discard, site.stores, [entry], why)


@pages.get("/quarantine", name="quarantine")
async def show_quarantine(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """List entries, the newest first."""
    found = await quarantine.find(site.stores, query)
    return render(request, "quarantine.html", found=found, query=query)


@pages.get("/quarantine/{entry}", name="quarantined")
async def show_entry(request: Request, site: SiteOf, who: Viewer, entry: str) -> Response:
    """Show an entry."""
    item = await quarantine.get(site.client, entry)
    return render(request, "quarantined.html", item=item, arguments=None, dump=[])


@pages.post("/quarantine/{entry}/reveal", name="reveal_quarantined")
async def reveal(request: Request, site: SiteOf, who: Revealer, entry: str) -> Response:
    """Show the message of an entry, in this answer only."""
    item = await quarantine.get(site.client, entry)
    found = await site.perform(who, quarantine.reveal, site.client, entry, site.registry)
    lines = dump(bytes.fromhex(found.preview))
    return render(request, "quarantined.html", item=item, arguments=found.arguments, dump=lines)


@pages.post("/quarantine/{entry}/retry", name="retry_quarantined")
async def retry(request: Request, site: SiteOf, who: Retrier, entry: str) -> Response:
    """Submit an entry as a task."""
    done = await site.perform(who, quarantine.retry, site.client, entry)
    return back(request, path_of(request, "quarantine"), f"Submitted it, as task {done.id}.")


@pages.post("/quarantine/{entry}/discard", name="discard_quarantined")
async def discard(
    request: Request, site: SiteOf, who: Discarder, entry: str, why: FormText = ""
) -> Response:
    """Delete an entry."""
    await site.perform(who, quarantine.discard, site.stores, [entry], why.strip())
    return back(request, path_of(request, "quarantine"), f"Discarded entry {entry}.")
