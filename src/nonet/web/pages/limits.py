"""Limits: which are in force, how full they are, and their changes by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from nonet.base.actor import who as actor
from nonet.base.errors import ConfigurationError
from nonet.operate.limits import find_limit, limits_in_use, resolve
from nonet.rules.findings.remedies import command
from nonet.rules.limit_changes import (
    OFF,
    address_in_words,
    effects,
    limit_in_words,
    limit_of,
    place_of,
)
from nonet.rules.limits import CONCURRENCY, DEFAULT, RATE, Limit, LimitAddress
from nonet.rules.permissions import Action
from nonet.tasks.locks import LockedObjectType
from nonet.web.pages.fields import Text, Word
from nonet.web.pages.locks import locks_of
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Limiter, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)


@router.get("/limits", name="limits")
async def limits(request: Request, site: SiteOf, who: Viewer, text: Text = "") -> Response:
    """Show the limits in force, and the ceilings."""
    stores = site.nonet.stores
    names = (await locks_of(site)).names
    rows = await site.shared.read(("limits",), 2.0, partial(limits_in_use, stores, names))
    shown = [row for row in rows if text.lower() in address_in_words(row.limit.address).lower()]
    return render(
        request,
        "limits.html",
        rows=shown,
        text=text,
        ceilings=await site.shared.read(("limits", "ceilings"), 2.0, stores.ceilings.loads),
        in_words=limit_in_words,
        address_in_words=address_in_words,
    )


@router.get("/limits/edit", name="limit_edit")
async def edit(
    request: Request,
    site: SiteOf,
    who: Limiter,
    name: Word = "",
    object_type: Annotated[str, Query(alias="type", max_length=500)] = "",
    key: Word = "",
    action: Word = "",
    vo: Word = "",
    limiter: Word = CONCURRENCY,
    number: Word = "",
    window: Word = "",
) -> Response:
    """Ask for a limit; with a number, show what it would change."""
    fields = {"object_type": object_type, "key": key, "action": action, "vo": vo}
    fields |= {"limiter": limiter, "number": number, "window": window}
    values: dict[str, Any] = {"fields": fields, "address": None, "now": None, "note": ""}
    values |= {"preview": None, "limiters": (CONCURRENCY, RATE)}
    values["types"] = sorted(LockedObjectType.registered())
    try:
        if name or object_type:
            address, values["note"] = await _address(site, name, object_type, key, action, vo)
            address = address if name else replace(address, limiter=_kind(limiter))
            found = await find_limit(site.nonet.stores, address)
            values |= {"address": address, "now": found}
            if number:
                limit = limit_of(address.limiter, number.strip(), _window(window))
                values["preview"] = limit
                used, waiting = (found.used, found.waiting) if found else (None, None)
                values["effects"] = effects(limit, used, waiting)
                values["command"] = _command(address, limit)
    except ConfigurationError as error:
        return _form(request, values, problem=str(error))
    return _form(request, values)


def _form(request: Request, values: dict[str, Any], problem: str = "") -> Response:
    return render(
        request,
        "limit_edit.html",
        422 if problem else 200,
        problem=problem,
        in_words=limit_in_words,
        address_in_words=address_in_words,
        default=DEFAULT,
        rate=RATE,
        **values,
    )


@router.post("/limits/edit")
async def change(
    request: Request,
    site: SiteOf,
    who: Limiter,
    name: Annotated[str, Form(max_length=500)],
    number: Annotated[str, Form(max_length=20)],
    window: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Set a limit by hand."""
    address, _ = await _address(site, name)
    limit = limit_of(address.limiter, number.strip(), _window(window))
    told = f"{address_in_words(address)}: {limit_in_words(limit)}"
    async with site.changing(who, Action.LIMIT, f"limit {told}"):
        await site.nonet.stores.limits.override(address, limit, actor())
    return back(request, path_of(request, "limits"), f"set {told}")


@router.post("/limits/unset", name="limit_unset")
async def unset(
    request: Request, site: SiteOf, who: Limiter, name: Annotated[str, Form(max_length=500)]
) -> Response:
    """Remove a limit that was set by hand."""
    address = place_of(name, None).address
    told = address_in_words(address)
    async with site.changing(who, Action.LIMIT, f"limit {told}: as configured"):
        gone = await site.nonet.stores.limits.go_back(address, actor())
    path = path_of(request, "limits")
    if not gone:
        return back(request, path, f"{told}: no limit was set by hand", "bad")
    return back(request, path, f"{told}: as configured")


async def _address(
    site: Site, name: str, object_type: str = "", key: str = "", action: str = "", vo: str = ""
) -> tuple[LimitAddress, str]:
    """Return the address that a form names, and what its user should know of it."""
    if name:
        place = place_of(name, None)
    elif not key:
        raise ConfigurationError(f"the key is missing: name an object, or '{DEFAULT}' for all")
    else:
        place = place_of(object_type, key.strip(), action.strip(), vo.strip())
    classes = {item.name.rpartition(":")[2] for item in site.nonet.registry}
    address, note = await resolve(place.address, site.nonet.stores, classes)
    return address, place.note or note


def _kind(limiter: str) -> str:
    if limiter not in (CONCURRENCY, RATE):
        raise ConfigurationError(f"{limiter!r} is neither {CONCURRENCY} nor {RATE}")
    return limiter


def _window(text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise ConfigurationError(f"window: {text!r} is not a number of seconds") from None


def _command(address: LimitAddress, limit: Limit) -> str:
    """Return the command that does the same."""
    number = OFF if limit.limit is None else str(limit.limit)
    options = [f"--{address.limiter}", number]
    if limit.window_seconds is not None:
        options += ["--window", f"{limit.window_seconds:.15g}"]
    return command("task-run", "limits", "set", address.counter, *options)
