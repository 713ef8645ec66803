"""``/api/v1/groups``: callback groups."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from nonet.stores.queue.groups import GroupStatus
from nonet.web.api.routing import Listed, resource
from nonet.web.site import SiteOf, Viewer

router = resource("groups")


@router.get("/groups")
async def list_groups(
    site: SiteOf,
    who: Viewer,
    limit: Annotated[int, Query(ge=1, le=200, description="The most items of the answer.")] = 50,
) -> Listed[GroupStatus]:
    """List the groups that were opened last, the newest first."""
    return Listed(items=await site.nonet.stores.groups.list(limit))


@router.get("/groups/{id:path}")
async def get_group(
    id: Annotated[str, Path(pattern=r"^[!-~]{1,200}$", description="Id of the group.")],
    site: SiteOf,
    who: Viewer,
) -> GroupStatus:
    """Return how far a group is."""
    return await site.nonet.stores.groups.status(id)
