"""Callback groups: ``/api/v1/groups``, and the pages of the list and of one group."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from nonet.base.errors import NotFoundError
from nonet.operate import groups
from nonet.operate.audited import Changed
from nonet.operate.lists import ListQuery, Page
from nonet.rules.permissions import Principal
from nonet.stores.queue.groups import GroupStatus, problem_of
from nonet.tasks.handles import TaskStatus
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import NO_REASON, FormText, Reason, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("groups"), APIRouter(include_in_schema=False)

Id = Annotated[str, Path(pattern=r"^[!-~]{1,200}$", description="Id of the group.")]
Canceller = Annotated[Principal, may(groups.cancel)]
Listed = Annotated[ListQuery, Query()]


@api.get("/groups")
async def list_groups(site: SiteOf, who: Viewer, query: Listed) -> Page[GroupStatus]:
    """List the groups that are kept, those opened last first."""
    return await site.read(groups.find, site.stores, query)


@api.get("/groups/{id:path}/children")
async def list_children(id: Id, site: SiteOf, who: Viewer, query: Listed) -> Page[TaskStatus]:
    """List the children of a group, in the order of spawning."""
    return await site.read(groups.children, site.stores, id, query)


@api.get("/groups/{id:path}")
async def get_group(id: Id, site: SiteOf, who: Viewer) -> GroupStatus:
    """Return how far a group is."""
    return await site.read(groups.get, site.stores, id)


@api.post("/groups/{id:path}/cancel")
async def cancel_group_children(
    id: Id, site: SiteOf, who: Canceller, body: Reason = NO_REASON
) -> Changed:
    """Cancel the children of a group that have not ended."""
    return await site.perform(who, groups.cancel, site.client, id, body.reason)


@pages.get("/groups", name="groups")
async def show_groups(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show the groups that were opened last."""
    found = await site.read(groups.find, site.stores, query)
    return render(request, "groups.html", found=found, query=query)


@pages.get("/groups/{id}", name="group")
async def show_group(
    request: Request, site: SiteOf, id: str, who: Viewer, query: Listed
) -> Response:
    """Show a group and its children."""
    stores = site.stores
    found = await site.read(groups.get, stores, id)
    parent = await _status_of(site, found.parent)
    return render(
        request,
        "group.html",
        group=found,
        children=await site.read(groups.children, stores, id, query),
        query=query,
        follower=await _status_of(site, found.callback_id),
        parent=parent,
        problem=problem_of(found, is_parent_live=parent is not None and parent.finished is None),
    )


@pages.post("/groups/{id}/cancel", name="cancel_group")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: FormText = ""
) -> Response:
    """Cancel the children of a group that have not ended."""
    found = await site.perform(who, groups.cancel, site.client, id, reason)
    path = path_of(request, "group", id=id)
    if not found.changed:
        return back(request, path, "All children have ended: there is nothing to cancel.", "bad")
    return back(request, path, f"Cancelled {len(found.changed)} children.")


async def _status_of(site: Site, id: str) -> TaskStatus | None:
    try:
        return await site.nonet.status(id) if id else None
    except NotFoundError:
        return None
