"""Limits and ceilings: ``/api/v1/limits``, ``/api/v1/ceilings``, and the page of both."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.operate import limits
from nonet.operate.limits import LimitQuery, LimitView
from nonet.operate.lists import ListQuery, Page
from nonet.rules.findings.remedies import command
from nonet.rules.limit_changes import ParsedAddress, effects, limit_of, parse_address
from nonet.rules.limits import CONCURRENCY, DEFAULT, OFF, RATE, Limit, LimitAddress
from nonet.rules.permissions import Principal
from nonet.stores.namespace.ceilings import Load
from nonet.tasks.locks import LockedObjectType
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import Body, FormText, Text, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("limits"), APIRouter(include_in_schema=False)

Name = Annotated[
    str,
    Path(
        pattern=r"^limiter:[!-~]{1,1000}$",
        description="Name of the limiter, such as `limiter:conc:job:7`.",
    ),
]
Setter = Annotated[Principal, may(limits.override)]
Unsetter = Annotated[Principal, may(limits.unset)]
Listed = Annotated[LimitQuery, Query()]


class NewLimit(Body):
    """A limit that overrides the configured one."""

    limit: Annotated[int, Field(ge=0, le=10**9)] | None = Field(
        description="How many tasks run at a time, or start in the window; null: no limit."
    )
    window_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="The window of a rate."
    )


@dataclass(frozen=True)
class LimitSet:
    """A limit that was set.

    Attributes:
        name: of its limiter.
        note: what its operator should know; may be empty.
    """

    name: str
    note: str


@api.get("/limits")
async def list_limits(site: SiteOf, who: Viewer, query: Listed) -> Page[LimitView]:
    """List the limits in force: configured, set by hand, or declared by a class and in use."""
    return await site.read(limits.find, site.stores, query, site.shared.read)


@api.get("/ceilings")
async def list_ceilings(
    site: SiteOf, who: Viewer, query: Annotated[ListQuery, Query()]
) -> Page[Load]:
    """List how many tasks there are: in all, by stream, class and tenant, with their ceilings."""
    return await site.read(limits.ceilings, site.stores, query)


@api.get("/limits/{name:path}")
async def get_limit(name: Name, site: SiteOf, who: Viewer) -> LimitView:
    """Return the limit of a limiter."""
    return await limits.get(site.stores, parse_address(name, None).address)


@api.put("/limits/{name:path}")
async def set_limit(name: Name, body: NewLimit, site: SiteOf, who: Setter) -> LimitSet:
    """Set a limit by hand, from the next task that starts until Redis loses its data."""
    address, note = await _resolved(site, parse_address(name, None))
    number = OFF if body.limit is None else str(body.limit)
    limit = limit_of(address.limiter, number, body.window_seconds)
    await site.perform(who, limits.override, site.stores, address, limit)
    return LimitSet(address.counter, note)


@api.delete("/limits/{name:path}", status_code=204)
async def unset_limit(name: Name, site: SiteOf, who: Unsetter) -> None:
    """Remove a limit that was set by hand; the configured one applies again."""
    await site.perform(who, limits.unset, site.stores, parse_address(name, None).address)


@pages.get("/limits", name="limits")
async def show_limits(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show the limits in force, and the ceilings."""
    stores = site.stores
    found = await site.read(limits.find, stores, query, site.shared.read)
    ceilings = await site.read(limits.ceilings, stores, ListQuery(limit=1000))
    return render(request, "limits.html", found=found, query=query, ceilings=ceilings.items)


class Draft(BaseModel):
    """What the form knows of a limit: its name, or the parts of its address; and its value."""

    name: Text = ""
    type: Text = ""
    key: Text = ""
    action: Text = ""
    vo: Text = ""
    limiter: Text = CONCURRENCY
    number: Text = ""
    window: Text = ""

    @property
    def parsed(self) -> ParsedAddress:
        """What it applies to."""
        if self.name:
            return parse_address(self.name, None)
        if not self.key:
            raise ConfigurationError(f"the key is missing: name an object, or '{DEFAULT}' for all")
        if self.limiter not in (CONCURRENCY, RATE):
            raise ConfigurationError(f"{self.limiter!r} is neither {CONCURRENCY} nor {RATE}")
        parsed = parse_address(self.type, self.key.strip(), self.action.strip(), self.vo.strip())
        return replace(parsed, address=replace(parsed.address, limiter=self.limiter))

    def value(self, limiter: str) -> Limit:
        """The limit."""
        try:
            window = float(self.window) if self.window.strip() else None
        except ValueError:
            raise ConfigurationError(
                f"window: {self.window!r} is not a number of seconds"
            ) from None
        return limit_of(limiter, self.number.strip(), window)


@pages.get("/limits/edit", name="limit_edit")
async def edit(
    request: Request, site: SiteOf, who: Setter, draft: Annotated[Draft, Query()]
) -> Response:
    """Ask for a limit; with a number, show what it would change."""
    values: dict[str, Any] = dict.fromkeys(("address", "now", "preview", "command"))
    values |= {"note": "", "problem": "", "effects": []}
    try:
        if draft.name or draft.type:
            address, values["note"] = await _resolved(site, draft.parsed)
            values["address"] = address
            with suppress(NotFoundError):
                values["now"] = await limits.get(site.stores, address)
            if draft.number:
                preview, now = draft.value(address.limiter), values["now"]
                used, waiting = (now.used, now.waiting) if now else (None, None)
                values |= {"preview": preview, "effects": effects(preview, used, waiting)}
                values["command"] = _command(address, preview)
    except ConfigurationError as error:
        values["problem"] = str(error)
    return render(
        request,
        "limit_edit.html",
        422 if values["problem"] else 200,
        draft=draft,
        types=sorted(LockedObjectType.registered()),
        limiters=(CONCURRENCY, RATE),
        **values,
    )


@pages.post("/limits/edit")
async def change(
    request: Request, site: SiteOf, who: Setter, draft: Annotated[Draft, Form()]
) -> Response:
    """Set a limit by hand."""
    address, _ = await _resolved(site, draft.parsed)
    limit = draft.value(address.limiter)
    await site.perform(who, limits.override, site.stores, address, limit)
    return back(request, path_of(request, "limits"), f"set {address}: {limit}")


@pages.post("/limits/unset", name="limit_unset")
async def unset(request: Request, site: SiteOf, who: Unsetter, name: FormText) -> Response:
    """Remove a limit that was set by hand."""
    address, path = parse_address(name, None).address, path_of(request, "limits")
    try:
        await site.perform(who, limits.unset, site.stores, address)
    except NotFoundError as error:
        return back(request, path, str(error), "bad")
    return back(request, path, f"{address}: as configured")


async def _resolved(site: Site, parsed: ParsedAddress) -> tuple[LimitAddress, str]:
    classes = [item.name for item in site.registry]
    return await limits.resolve(parsed, site.stores, classes)


def _command(address: LimitAddress, limit: Limit) -> str:
    """Return the command that does the same."""
    number = OFF if limit.limit is None else str(limit.limit)
    options = [f"--{address.limiter}", number]
    if limit.window_seconds is not None:
        options += ["--window", f"{limit.window_seconds:.15g}"]
    return command("task-run", "limits", "set", address.counter, *options)
