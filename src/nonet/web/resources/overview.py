"""The overview: ``/api/v1/overview`` and the first page: what is wrong now, and what goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.base.errors import NonetError
from nonet.base.streams import Priority, Size
from nonet.operate import overview
from nonet.rules.findings.situation import Overview
from nonet.rules.findings.throughput import StreamLoad
from nonet.rules.page_paths import page_of
from nonet.rules.pauses import Pause, of_task
from nonet.rules.permissions import Principal
from nonet.web.rendering import render
from nonet.web.ring import LastHour
from nonet.web.routing import resource
from nonet.web.site import Site, SiteOf, Viewer

api, pages = resource("overview"), APIRouter(include_in_schema=False)

_LETTERS_SECONDS = 30.0
_SQL_SECONDS = 5.0
# Shades of the heat map by the age of the oldest queued task, in seconds.
_SHADES = (10, 60, 600)
_TABLE_MINUTES = 10


class Cell(NamedTuple):
    """A stream in the heat map.

    Attributes:
        load: its tasks; None: it is empty.
        empty_in_seconds: estimate until its queued tasks have started; None: no estimate.
        shade: 0 (nothing queued) to 4 (queued for very long).
        pause: what keeps it from starting tasks.
    """

    priority: str
    size: str
    load: StreamLoad | None
    empty_in_seconds: float | None
    shade: int
    pause: Pause | None


@api.get("/overview")
async def get_overview(site: SiteOf, who: Viewer) -> Overview:
    """Return what is wrong in the namespace now, worst first, and what goes on there."""
    return await _find(site, who)


@api.get("/overview/hour")
async def last_hour(site: SiteOf, who: Viewer) -> LastHour:
    """Return the last hour: samples of this process, and what workers ended by minutes."""
    return await site.last_hour()


@pages.get("/", name="overview")
async def show_overview(request: Request, site: SiteOf, who: Viewer) -> Response:
    """Show the overview."""
    found = await _find(site, who)
    pauses = await site.read(site.stores.controls.load)
    live = site.client.live_config
    await live.refresh()
    return render(
        request,
        "overview.html",
        overview=found,
        rows=_rows(found, pauses),
        sizes=list(Size),
        page_of=page_of,
        letters=await _letters(site) if found.sql in ("", "current", "ahead") else None,
        hour=await site.last_hour(),
        table_minutes=_TABLE_MINUTES,
        tenants_by=live.tenants_by if live.named_tenants else "",
    )


async def _find(site: Site, who: Principal) -> Overview:
    is_viewer, nonet = not who.sees_texts, site.nonet
    read = partial(
        overview.find, nonet.stores, nonet.settings, is_viewer=is_viewer, remember=site.shared.read
    )
    found = await site.shared.read(("overview", is_viewer), 2.0, read)
    return replace(found, submitted=site.ring.submitted)


async def _letters(site: Site) -> int | None:
    """Return how many dead letters SQL has; None: it does not tell."""

    async def count() -> int:
        async with asyncio.timeout(_SQL_SECONDS):
            return sum((await (await site.nonet.dead_letters()).count()).values())

    if not site.nonet.settings.may_have_sql():
        return None
    try:
        return await site.shared.read(("letters",), _LETTERS_SECONDS, count)
    except (NonetError, TimeoutError):
        return None  # the overview has a finding about it


def _rows(found: Overview, pauses: list[Pause]) -> list[list[Cell]]:
    """Return the heat map: a row for each priority, a cell for each size."""
    loads = {load.name: load for load in found.streams}

    def cell(priority: str, size: str) -> Cell:
        name = f"{priority}:{size}"
        load, pause = loads.get(name), of_task(pauses, name, "")
        shade = 0
        if load is not None and load.queued:
            shade = 1 + sum(load.oldest_seconds >= bound for bound in _SHADES)
        seconds = found.empty_in_seconds.get(name) if shade else None
        return Cell(priority, size, load, seconds, shade, pause)

    return [[cell(priority, size) for size in Size] for priority in Priority]
