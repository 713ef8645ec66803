"""The configuration: ``/api/v1/configuration``; the pages of classes show it, too."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from nonet.operate import configuration
from nonet.operate.configuration import ClassConfig, ConfigStatus
from nonet.tasks.registry import vos_from_entry_points
from nonet.web.routing import Text, resource
from nonet.web.site import SiteOf, Viewer

api, pages = resource("configuration"), APIRouter(include_in_schema=False)


@api.get("/configuration")
async def get_configuration(site: SiteOf, who: Viewer) -> ConfigStatus:
    """Return the published configuration, the problem of its source, and who applies it."""
    return await site.read(configuration.status, site.stores)


@api.get("/configuration/{task}")
async def get_class_configuration(
    site: SiteOf,
    who: Viewer,
    task: Annotated[str, Path(description="Task class: its full or bare name.")],
    vo: Annotated[
        Text | None, Query(description="Values for this VO; left out: common ones.")
    ] = None,
) -> ClassConfig:
    """Return what the published configuration makes of a class, and where each value comes from."""
    nonet = site.nonet
    vos = vos_from_entry_points(nonet.settings.groups)
    return await configuration.get(nonet.stores, nonet.registry, vos, task, vo)
