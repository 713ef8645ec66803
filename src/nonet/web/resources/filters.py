"""Saved filters: ``/api/v1/filters``, and the forms that save and remove one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field

from nonet.operate import filters
from nonet.operate.filters import FilterQuery, ListName, Name, SavedFilter
from nonet.operate.lists import Page
from nonet.rules.permissions import Principal
from nonet.web.rendering import back, path_of
from nonet.web.routing import Body, Text, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("filters"), APIRouter(include_in_schema=False)

Noter = Annotated[Principal, may(filters.save)]
Listed = Annotated[FilterQuery, Query()]
Named = Annotated[Name, Path(description="Name of the filter.")]


class Filter(Body):
    """What a filter searches."""

    list: ListName = Field(description="The list that it searches.")
    query: Text = Field(description="Parameters of the list: `state=dead&task=Report`.")


async def of(site: Site, list: ListName) -> Sequence[SavedFilter]:
    """Return the saved filters of a list, for its page."""
    return (await site.read(filters.find, site.stores, FilterQuery(list=list))).items


@api.get("/filters")
async def list_filters(site: SiteOf, who: Viewer, query: Listed) -> Page[SavedFilter]:
    """List the saved filters by name."""
    return await filters.find(site.stores, query)


@api.put("/filters/{name}")
async def save_filter(name: Named, site: SiteOf, who: Noter, body: Filter) -> SavedFilter:
    """Save a filter, also in place of the one with its name. At most 50 are kept."""
    return await site.perform(who, filters.save, site.stores, name, body.list, body.query)


@api.delete("/filters/{name}", status_code=204)
async def remove_filter(name: Named, site: SiteOf, who: Noter) -> None:
    """Delete a filter."""
    await site.perform(who, filters.remove, site.stores, name)


@pages.post("/filters/save", name="keep_filter")
async def save(
    request: Request,
    site: SiteOf,
    who: Noter,
    name: Annotated[Name, Form()],
    list: Annotated[ListName, Form()],
    query: Annotated[Text, Form()],
) -> Response:
    """Save a filter, and show its list."""
    await site.perform(who, filters.save, site.stores, name, list, query)
    return back(request, _path(request, list, f"?{query}"), f"Saved filter {name}.")


@pages.post("/filters/remove", name="drop_filter")
async def remove(
    request: Request,
    site: SiteOf,
    who: Noter,
    name: Annotated[Name, Form()],
    list: Annotated[ListName, Form()],
) -> Response:
    """Delete a filter, and show its list."""
    await site.perform(who, filters.remove, site.stores, name)
    return back(request, _path(request, list), f"Removed filter {name}.")


def _path(request: Request, list: str, query: str = "") -> str:
    return path_of(request, list.replace("-", "_")) + query
