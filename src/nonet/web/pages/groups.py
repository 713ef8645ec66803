"""Callback groups: the list, and one group with its children."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.base.errors import NotFoundError
from nonet.rules.permissions import Action
from nonet.stores.queue.groups import GroupStatus, problem_of
from nonet.tasks.handles import TaskStatus
from nonet.web.pages.fields import Offset, Reason
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Canceller, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_SECONDS = 2.0
_LIMIT = 100
_CHILDREN = 50


@router.get("/groups", name="groups")
async def page(request: Request, site: SiteOf, who: Viewer) -> Response:
    """Show the groups that were opened last."""
    source = partial(site.nonet.stores.groups.list, _LIMIT)
    found = await site.shared.read(("groups",), _SECONDS, source)
    return render(request, "groups.html", groups=found, limit=_LIMIT)


@router.get("/groups/{id}", name="group")
async def group(
    request: Request, site: SiteOf, id: str, who: Viewer, offset: Offset = 0
) -> Response:
    """Show a group and some of its children, in the order of spawning."""
    stores = site.nonet.stores
    found = await site.shared.read(("group", id), _SECONDS, partial(stores.groups.status, id))
    children = await site.shared.read(
        ("group children", id, offset), _SECONDS, partial(_children, site, found, offset)
    )
    follower = await _status_of(site, found.callback_id)
    parent = await _status_of(site, found.parent)
    return render(
        request,
        "group.html",
        group=found,
        children=children,
        offset=offset,
        step=_CHILDREN,
        follower=follower,
        parent=parent,
        problem=problem_of(found, is_parent_live=parent is not None and parent.finished is None),
        now=await site.nonet.broker.logical_now(),
    )


@router.post("/groups/{id}/cancel", name="cancel_group")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: Reason = ""
) -> Response:
    """Cancel the children of a group that have not ended."""
    async with site.changing(who, Action.CANCEL, f"group {id}: {reason}".removesuffix(": ")):
        states = await site.nonet.client.cancel_group(id, reason=reason)
    done = sum(state in ("cancelled", "cancelling") for state in states.values())
    path = path_of(request, "group", id=id)
    if not done:
        return back(request, path, "All children have ended: there is nothing to cancel.", "bad")
    return back(request, path, f"Cancelled {done} children.")


async def _children(site: Site, group: GroupStatus, offset: int) -> list[TaskStatus]:
    """Return the status of some children; one of which nothing is kept is ``unknown``."""
    stores = site.nonet.stores
    ids, ended = await stores.groups.children(group, offset, _CHILDREN)
    live = {item.id: item for item in await stores.results.statuses(ids)}
    return [live.get(id) or ended.get(id) or TaskStatus(id, "", "unknown") for id in ids]


async def _status_of(site: Site, id: str) -> TaskStatus | None:
    if not id:
        return None
    try:
        return await site.nonet.status(id)
    except NotFoundError:
        return None
