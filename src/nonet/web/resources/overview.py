"""The overview: ``/api/v1/overview`` and the first page: what is wrong now, and what goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import Field

from nonet.base.errors import NonetError, NotFoundError
from nonet.base.streams import Priority, Size
from nonet.operate import overview
from nonet.rules.findings.buttons import button_of
from nonet.rules.findings.finding import Finding
from nonet.rules.findings.situation import Overview
from nonet.rules.findings.throughput import StreamLoad
from nonet.rules.page_paths import page_of
from nonet.rules.pauses import Pause, of_task
from nonet.rules.permissions import Principal
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.figures import SPANS, Charted, charts
from nonet.web.routing import Body, FormText, Text, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("overview"), APIRouter(include_in_schema=False)

_LETTERS_SECONDS = 30.0
_SQL_SECONDS = 5.0
# Shades of the heat map by the age of the oldest queued task, in seconds.
_SHADES = (10, 60, 600)
_MOST_HOURS = 24 * 90

Noter = Annotated[Principal, may(overview.see)]


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


class SeenFinding(Body):
    """Which finding is seen, and for how long."""

    kind: Text = Field(description="`kind` of the finding.")
    what: Text = Field(description="`what` of the finding.")
    seconds: float = Field(
        ge=0, le=3600 * _MOST_HOURS, description="How long; 0: it is no longer seen."
    )


@api.post("/overview/seen")
async def see(body: SeenFinding, site: SiteOf, who: Noter) -> Finding:
    """Mark a finding as seen: until an end it is below the others, for all operators."""
    return await _see(site, who, body.kind, body.what, timedelta(seconds=body.seconds))


@pages.get("/", name="overview")
async def show_overview(request: Request, site: SiteOf, who: Viewer, query: Charted) -> Response:
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
        links=[_links(site, item) for item in found.findings],
        button_of=button_of,
        letters=await _letters(site) if found.sql in ("", "current", "ahead") else None,
        history=await charts(site, query, "all"),
        spans=SPANS,
        tenants_by=live.tenants_by if live.named_tenants else "",
    )


def _links(site: Site, finding: Finding) -> tuple[str, str]:
    """Return the page of a finding, and the preview that submits its failures again, or nothing."""
    known = site.registry.find(finding.what) if finding.kind == "class" else None
    has_letters = known is not None and known.cls.dlq_eligible
    page = page_of(finding.kind, finding.what, finding.cause, has_letters=has_letters)
    for list_, preview in (
        ("/dead-letters?cluster=", "/dead-letters/resubmit?cluster="),
        ("/history?", "/bulk/resubmit?"),
    ):
        if finding.kind == "class" and page.startswith(list_):
            return page, page.replace(list_, preview)
    return page, ""


@pages.post("/findings/seen", name="see_finding")
async def see_finding(
    request: Request,
    site: SiteOf,
    who: Noter,
    kind: FormText,
    what: FormText,
    hours: Annotated[float, Form(ge=0, le=_MOST_HOURS)],
) -> Response:
    """Mark a finding as seen, or (0 hours) no longer as seen."""
    path, lasts = path_of(request, "overview"), timedelta(hours=hours)
    try:
        done = await _see(site, who, kind, what, lasts)
    except NotFoundError as error:
        return back(request, path, str(error), "bad")
    how = f"seen until {done.seen.until:%Y-%m-%d %H:%M} UTC" if done.seen else "not seen any more"
    return back(request, path, f"{what}: {how}")


async def _see(site: Site, who: Principal, kind: str, what: str, lasts: timedelta) -> Finding:
    nonet = site.nonet
    return await site.perform(who, overview.see, nonet.stores, nonet.settings, kind, what, lasts)


async def _find(site: Site, who: Principal) -> Overview:
    is_viewer, nonet = not who.sees_texts, site.nonet
    read = partial(
        overview.find, nonet.stores, nonet.settings, is_viewer=is_viewer, remember=site.shared.read
    )
    return await site.shared.read(("overview", is_viewer), 2.0, read)


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
