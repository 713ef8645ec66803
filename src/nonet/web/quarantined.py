"""What the page and the API do with the quarantine."""

from __future__ import annotations

from nonet.base.actor import who as actor
from nonet.base.errors import ConflictError, NotFoundError
from nonet.operate.quarantine import readable, retry as retry_entry
from nonet.rules.permissions import Action, Principal
from nonet.stores.namespace.quarantine import Quarantined
from nonet.web.site import Site


async def page_of(site: Site, limit: int, before: str) -> tuple[list[Quarantined], str]:
    """Read entries, the newest first, and where the next page begins (empty: nowhere)."""
    newest = site.nonet.stores.quarantine.newest(limit + 1, before=before)
    found = [item async for item in newest]
    return found[:limit], found[limit - 1].entry if len(found) > limit else ""


def why_not(site: Site, item: Quarantined) -> str:
    """Return why an entry cannot be submitted from here; empty if it perhaps can."""
    try:
        readable(item, site.nonet.client)
    except ConflictError as error:
        return str(error)
    return ""


async def retry(site: Site, who: Principal, entry: str) -> str:
    """Submit an entry, and return the id of its task.

    Raises:
        NotFoundError: there is no such entry.
        ConflictError: it is not a valid task, or was submitted before.
    """
    nonet = site.nonet
    async with site.changing(who, Action.RESUBMIT, f"quarantined message {entry}"):
        return str(await retry_entry(entry, nonet.client, nonet.stores.quarantine, actor()))


async def discard(site: Site, who: Principal, entry: str, note: str) -> None:
    """Delete an entry.

    Raises:
        NotFoundError: there is no such entry.
    """
    about = f": {note}" if note else ""
    async with site.changing(who, Action.DISCARD, f"quarantined message {entry}{about}"):
        (gone,) = await site.nonet.stores.quarantine.discard([entry], actor(), note)
        if not gone:
            raise NotFoundError(f"the quarantine has no entry {entry}: it was discarded or retried")
