"""``/api/v1/locks``: who holds locks and limiters and who waits; forced release."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path, Query

from nonet.base.actor import who as actor
from nonet.rules.permissions import Action
from nonet.stores.namespace.lock_board import LockStatus, Released
from nonet.web.api.routing import Cursor, Page, SearchText, resource, slice_of
from nonet.web.pages.locks import locks_of
from nonet.web.site import Releaser, SiteOf, Viewer

router = resource("locks")

Name = Annotated[
    str, Path(pattern=r"^[!-~]{1,1000}$", description="Name of the lock, as the list has it.")
]
_Show = Annotated[
    int, Query(ge=1, le=1000, description="Name at most this many holders and waiters.")
]


@router.get("/locks")
async def list_locks(
    site: SiteOf,
    who: Viewer,
    object_type: SearchText = "",
    text: SearchText = "",
    limit: Annotated[int, Query(ge=1, le=200, description="The most items of the answer.")] = 50,
    cursor: Cursor = "",
) -> Page[LockStatus]:
    """List the locks that are held or waited for, the most wanted first.

    `object_type` and a part of their names (`text`) select locks.
    """
    found = await locks_of(site)
    names = slice_of(found.matching(object_type, text), limit, cursor)
    read = partial(site.nonet.stores.locks.some, list(names.items))
    rows = await site.shared.read(("locks", "page", *names.items), 2.0, read)
    items = [row for row in rows if row.is_held or row.waiting]
    return Page(items=items, cursor=names.cursor)


@router.get("/locks/{name:path}")
async def get_lock(name: Name, site: SiteOf, who: Viewer, show: _Show = 100) -> LockStatus:
    """Return one lock, which may be free."""
    return await site.nonet.stores.locks.get(name, show=show)


@router.post("/locks/{name:path}/release")
async def release_lock(name: Name, site: SiteOf, who: Releaser) -> Released:
    """Take a lock from its holders by force.

    A holder that still runs learns of it at its next renewal, and may overlap with the next holder
    until then: end it first if you can. A limiter is only emptied.
    """
    async with site.changing(who, Action.RELEASE, f"lock {name}: release"):
        return await site.nonet.stores.locks.release(name, actor())
