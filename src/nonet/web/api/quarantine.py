"""``/api/v1/quarantine``: messages that are not valid tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel

from nonet.base.plain import plain
from nonet.operate.lists import opened
from nonet.operate.quarantine import PREVIEW_BYTES, claimed
from nonet.rules.permissions import Action
from nonet.stores.namespace.quarantine import Quarantined
from nonet.tasks.secrecy import masked_arguments
from nonet.web import quarantined
from nonet.web.api.routing import Cursor, Limit, Made, Note, Page, page, resource
from nonet.web.site import Discarder, Resubmitter, Revealer, SiteOf, Viewer

router = resource("quarantine")

_EntryId = Annotated[
    str,
    Path(pattern=r"^[0-9]{1,19}-[0-9]{1,19}$", description="Id of the entry, `1767225600000-0`."),
]


class Entry(BaseModel):
    """A message in the quarantine. `claims` is the class that it says it has, unchecked."""

    entry: str
    at: datetime
    reason: str
    task_id: str
    stream: str
    stream_entry: str
    size: int
    claims: str


class Content(BaseModel):
    """What a quarantined message contains.

    Attributes:
        arguments: of an envelope, with secret ones masked; null: it is none.
        preview: hexadecimal digits of its first 512 bytes, if it is no envelope.
    """

    arguments: dict[str, Any] | None
    preview: str


def _entry(item: Quarantined) -> Entry:
    envelope = claimed(item)
    known = {name: getattr(item, name) for name in Entry.model_fields if name != "claims"}
    return Entry(claims=envelope.name if envelope else "", **known)


@router.get("/quarantine")
async def list_quarantine(
    site: SiteOf, who: Viewer, limit: Limit = 100, cursor: Cursor = ""
) -> Page[Entry]:
    """Return quarantined messages, the newest first."""
    found, following = await quarantined.page_of(site, limit, opened(cursor))
    return page([_entry(item) for item in found], following)


@router.get("/quarantine/{entry}")
async def get_quarantine_entry(site: SiteOf, who: Viewer, entry: _EntryId) -> Entry:
    """Return a quarantined message, without its content."""
    return _entry(await site.nonet.stores.quarantine.get(entry))


@router.get("/quarantine/{entry}/content")
async def reveal_quarantine_entry(site: SiteOf, who: Revealer, entry: _EntryId) -> Content:
    """Return what a quarantined message contains. This is audited."""
    item = await site.nonet.stores.quarantine.get(entry)
    async with site.changing(who, Action.REVEAL, f"quarantined message {entry}"):
        envelope = claimed(item, site.nonet.client.cipher)
    if envelope is None:
        return Content(arguments=None, preview=item.data[:PREVIEW_BYTES].hex())
    found = site.nonet.registry.find(envelope.name)
    arguments = plain(masked_arguments(envelope.args, found.cls if found else None))
    return Content(arguments=arguments, preview="")


@router.post("/quarantine/{entry}/retry")
async def retry_quarantine_entry(site: SiteOf, who: Resubmitter, entry: _EntryId) -> Made:
    """Submit a quarantined message as a task, once, if a worker would accept it now."""
    return Made(id=await quarantined.retry(site, who, entry))


@router.post("/quarantine/{entry}/discard", status_code=204)
async def discard_quarantine_entry(
    site: SiteOf, who: Discarder, entry: _EntryId, why: Note | None = None
) -> None:
    """Delete a quarantined message."""
    await quarantined.discard(site, who, entry, why.note if why else "")
