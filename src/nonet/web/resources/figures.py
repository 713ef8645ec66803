"""The figures of task classes: ``/api/v1/figures``; the pages of classes show them, too."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from nonet.operate import figures
from nonet.operate.figures import FigureQuery
from nonet.operate.lists import Page
from nonet.rules.figures import ClassFigures
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("figures"), APIRouter(include_in_schema=False)


@api.get("/figures")
async def list_figures(
    site: SiteOf, who: Viewer, query: Annotated[FigureQuery, Query()]
) -> Page[ClassFigures]:
    """Return how many tasks of each class ended and failed, and how long they waited and ran."""
    return await site.read(figures.find, site.stores, query)
