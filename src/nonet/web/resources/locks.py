"""Locks and limiters: ``/api/v1/locks``, their pages, and their forced release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.plain import counted
from nonet.operate import locks
from nonet.operate.locks import LockQuery, Locks
from nonet.rules.findings.refusal import named, refused_by
from nonet.rules.limits import LimitAddress
from nonet.rules.permissions import Principal
from nonet.stores.namespace.lock_board import LockStatus, Released, is_name, not_held, waiters_of
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import resource
from nonet.web.site import SiteOf, Viewer, may

api, pages = resource("locks"), APIRouter(include_in_schema=False)

Name = Annotated[
    str, Path(pattern=r"^[!-~]{1,1000}$", description="Name of the lock, as the list has it.")
]
Show = Annotated[
    int, Query(ge=1, le=1000, description="Name at most this many holders and waiters.")
]
Listed = Annotated[LockQuery, Query()]
Releaser = Annotated[Principal, may(locks.release)]

_SHOWN = 3
_MOST_SHOWN = 500


@api.get("/locks")
async def list_locks(site: SiteOf, who: Viewer, query: Listed) -> Locks:
    """List the locks that are held or waited for, the most wanted first."""
    return await site.read(locks.find, site.stores, query, site.shared.read)


@api.get("/locks/{name:path}")
async def get_lock(name: Name, site: SiteOf, who: Viewer, show: Show = 100) -> LockStatus:
    """Return one lock, which may be free."""
    return await locks.get(site.stores, name, show)


@api.post("/locks/{name:path}/release")
async def release_lock(name: Name, site: SiteOf, who: Releaser) -> Released:
    """Take a lock from its holders by force.

    A holder that still runs learns of it at its next renewal, and may overlap with the next holder
    until then: end it first if you can. A limiter is only emptied.
    """
    return await site.perform(who, locks.release, site.stores, name)


@pages.get("/locks", name="locks")
async def show_locks(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show the locks in use, the most wanted first."""
    if is_name(query.text.strip()):
        return RedirectResponse(path_of(request, "lock", name=query.text.strip()), 303)
    found = await site.read(locks.find, site.stores, query, site.shared.read)
    return render(request, "locks.html", found=found, query=query, shown=_SHOWN)


@pages.get("/release/{name:path}", name="lock_release")
async def release_preview(request: Request, site: SiteOf, who: Releaser, name: str) -> Response:
    """Show what a forced release would do, and ask for the name of the lock."""
    return _preview(request, await locks.get(site.stores, name, _MOST_SHOWN))


@pages.post("/release/{name:path}")
async def release(
    request: Request,
    site: SiteOf,
    who: Releaser,
    name: str,
    typed: Annotated[str, Form()] = "",
    holder: Annotated[Sequence[str], Form()] = (),
) -> Response:
    """Release a lock by force, from a holder that the form has shown."""
    stores, problem = site.stores, ""
    found = await locks.get(stores, name, _MOST_SHOWN)
    if typed.strip() != name:
        problem = f"{typed.strip()!r:.200} is not the name of this lock: nothing was released"
    elif holder and found.holders and not {one.id for one in found.holders} & {*holder}:
        problem = "It has another holder now: nothing was released. Look who holds it."
    if problem:
        return _preview(request, found, problem)
    done = await site.perform(who, locks.release, stores, name)
    lines = [f"released {name}"]
    lines += [f"voided {named(holder)}" for holder in done.voided[:_SHOWN]]
    if len(done.voided) > _SHOWN:
        lines.append(f"and {len(done.voided) - _SHOWN} more")
    if done.dropped:
        lines.append(f"released {counted(done.dropped, 'slot')}")
    if done.woken:
        lines.append(f"woke {counted(len(done.woken), 'task')}")
    return back(request, path_of(request, "lock", name=name), ", ".join(lines))


def _preview(request: Request, found: LockStatus, problem: str = "") -> Response:
    status = 422 if problem else 200
    return render(
        request, "lock_release.html", status, lock=found, problem=problem, warning=locks.WARNING
    )


@pages.get("/locks/{name:path}", name="lock")
async def show_lock(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one lock with its holders and its queue."""
    found = await site.read(locks.get, site.stores, name, _MOST_SHOWN)
    return render(
        request,
        "lock.html",
        lock=found,
        is_limiter=LimitAddress.of_counter(name) is not None,
        refusal=refused_by(waiters_of(found).refusal) if found.waiting else "",
        free=not_held(name),
    )
