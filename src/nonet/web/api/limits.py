"""``/api/v1/limits``: limits in force; set one by hand, and go back to the configured one."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from nonet.base.actor import who as actor
from nonet.base.errors import NotFoundError
from nonet.operate.limits import LimitInUse, find_limit, limits_in_use, resolve
from nonet.rules.limit_changes import (
    OFF,
    EffectiveLimit,
    address_in_words,
    limit_in_words,
    limit_of,
    place_of,
)
from nonet.rules.limits import LimitAddress
from nonet.rules.permissions import Action
from nonet.web.api.routing import Body, Listed, resource
from nonet.web.pages.locks import locks_of
from nonet.web.site import Limiter, Site, SiteOf, Viewer

router = resource("limits")

Name = Annotated[
    str,
    Path(
        pattern=r"^limiter:[!-~]{1,1000}$",
        description="Name of the limiter, such as `limiter:conc:job:7`.",
    ),
]


class LimitItem(BaseModel):
    """A limit in force, and how full it is."""

    name: str = Field(description="Name of its limiter.")
    limit: int | None = Field(description="How many tasks; null: the limit is off.")
    window_seconds: float | None = Field(description="Of a rate: in which time they start.")
    source: str = Field(
        description="`configuration`, `override` (set by hand) or `class` (declared by a class)."
    )
    configured: int | None = Field(description="The configured limit that is overridden.")
    by: str = Field(description="Who set it by hand.")
    used: int | None = Field(description="How many tasks count now; null for `default`.")
    waiting: int | None = Field(description="How many tasks wait; null for `default`.")


class CeilingItem(BaseModel, from_attributes=True):
    """How many tasks there are in a scope, and how many there may be."""

    scope: str = Field(
        description="`namespace`, `stream:PRIORITY:SIZE`, `task:CATEGORY:CLASS` or `tenant:NAME`."
    )
    active: int = Field(description="How many tasks have not ended.")
    ceiling: int | None = Field(
        description="Submissions beyond it are refused; null: there is no ceiling."
    )


class NewLimit(Body):
    """A limit that overrides the configured one."""

    limit: Annotated[int, Field(ge=0, le=10**9)] | None = Field(
        description="How many tasks run at a time, or start in the window; null: no limit."
    )
    window_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="The window of a rate."
    )


class LimitSet(BaseModel):
    """A limit that was set."""

    name: str
    note: str = Field(description="What its operator should know; may be empty.")


@router.get("/limits")
async def list_limits(site: SiteOf, who: Viewer) -> Listed[LimitItem]:
    """List the limits in force: configured, set by hand, or declared by a class and in use."""
    names = (await locks_of(site)).names
    read = partial(limits_in_use, site.nonet.stores, names)
    found = await site.shared.read(("limits",), 2.0, read)
    return Listed(items=[_item(row) for row in found])


@router.get("/ceilings")
async def list_ceilings(site: SiteOf, who: Viewer) -> Listed[CeilingItem]:
    """List how many tasks there are: in all, by stream and by class, with their ceilings."""
    found = await site.shared.read(("limits", "ceilings"), 2.0, site.nonet.stores.ceilings.loads)
    return Listed(items=[CeilingItem.model_validate(load) for load in found])


@router.get("/limits/{name:path}")
async def get_limit(name: Name, site: SiteOf, who: Viewer) -> LimitItem:
    """Return the limit of a limiter."""
    found = await find_limit(site.nonet.stores, place_of(name, None).address)
    if found is None:
        raise NotFoundError(f"no limit is set for {name}: GET /api/v1/limits lists them")
    return _item(found)


@router.put("/limits/{name:path}")
async def set_limit(name: Name, body: NewLimit, site: SiteOf, who: Limiter) -> LimitSet:
    """Set a limit by hand, from the next task that starts until Redis loses its data."""
    address, note = await _address(site, name)
    number = OFF if body.limit is None else str(body.limit)
    limit = limit_of(address.limiter, number, body.window_seconds)
    told = f"{address_in_words(address)}: {limit_in_words(limit)}"
    async with site.changing(who, Action.LIMIT, f"limit {told}"):
        await site.nonet.stores.limits.override(address, limit, actor())
    return LimitSet(name=address.counter, note=note)


@router.delete("/limits/{name:path}", status_code=204)
async def unset_limit(name: Name, site: SiteOf, who: Limiter) -> None:
    """Remove a limit that was set by hand; the configured one applies again."""
    address = place_of(name, None).address
    told = address_in_words(address)
    async with site.changing(who, Action.LIMIT, f"limit {told}: as configured"):
        if not await site.nonet.stores.limits.go_back(address, actor()):
            raise NotFoundError(f"{told}: no limit was set by hand")


async def _address(site: Site, name: str) -> tuple[LimitAddress, str]:
    place = place_of(name, None)
    classes = {item.name.rpartition(":")[2] for item in site.nonet.registry}
    address, note = await resolve(place.address, site.nonet.stores, classes)
    return address, place.note or note


def _item(row: LimitInUse) -> LimitItem:
    found: EffectiveLimit = row.limit
    return LimitItem(
        name=found.address.counter,
        limit=found.limit.limit,
        window_seconds=found.limit.window_seconds,
        source=found.source,
        configured=found.configured.limit if found.configured else None,
        by=found.by,
        used=row.used,
        waiting=row.waiting,
    )
