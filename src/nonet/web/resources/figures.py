"""Figures over time: ``/api/v1/figures``, and the charts that several pages have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from nonet.operate import figures
from nonet.operate.figures import By, FigureQuery
from nonet.operate.lists import Page, Selection
from nonet.rules.figures import FigureSeries, SlotFigures
from nonet.web.routing import resource
from nonet.web.site import Site, SiteOf, Viewer

api, pages = resource("figures"), APIRouter(include_in_schema=False)

SPANS = {"3h": "3 hours", "1d": "24 hours", "14d": "14 days"}
# Minutes end once a minute, and workers report every few seconds.
_SECONDS = 30.0
_ROWS = 24


class ChartQuery(Selection):
    """Which time the charts of a page show."""

    since: Literal["3h", "1d", "14d"] = "3h"


Charted = Annotated[ChartQuery, Query()]
"""The query of a page with charts."""


@dataclass(frozen=True, slots=True)
class Charts:
    """What charts show.

    Attributes:
        query: the figures.
        found: None: there are none.
    """

    query: FigureQuery
    found: FigureSeries | None

    @property
    def newest(self) -> list[SlotFigures]:
        """The slots that the table shows, the newest first."""
        return list(islice(reversed(self.found.series if self.found else ()), _ROWS))

    @property
    def ends(self) -> list[tuple[str, int]]:
        """How many tasks ended for each reason, the most frequent first."""
        ends = self.found.total.ends if self.found else {}
        return sorted(ends.items(), key=lambda item: -item[1])


@api.get("/figures")
async def list_figures(
    site: SiteOf, who: Viewer, query: Annotated[FigureQuery, Query()]
) -> Page[FigureSeries]:
    """Return how many tasks ended and failed, and how long they waited and ran."""
    return await _read(site, query)


async def charts(site: Site, query: ChartQuery, by: By, name: str = "") -> Charts:
    """Return the charts of a class, a stream, a tenant or of all."""
    wanted = FigureQuery(by=by, name=name, since=query.since)
    return Charts(wanted, next(iter((await _read(site, wanted)).items), None))


async def _read(site: Site, query: FigureQuery) -> Page[FigureSeries]:
    read = partial(figures.find, site.stores, query)
    return await site.shared.read(("figures", query), _SECONDS, read)
