"""Locks and limiters: who holds them, who waits, and their forced release."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from nonet.base.actor import who as actor
from nonet.operate.locks import WARNING, LocksInUse, locks_in_use
from nonet.rules.findings.peers import counted
from nonet.rules.findings.refusal import named, refused_by
from nonet.rules.limits import LimitAddress
from nonet.rules.permissions import Action
from nonet.stores.namespace.lock_board import LockStatus, is_name, not_held, waiters_of
from nonet.web.pages.fields import Number, Text
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Releaser, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

PAGE = 50
_SHOWN = 3
_MOST_SHOWN = 500


async def locks_of(site: Site) -> LocksInUse:
    """Return the locks in use, read at most every few seconds for all viewers."""
    return await locks_in_use(site.nonet.stores.locks, site.shared.read)


@router.get("/locks", name="locks")
async def locks(
    request: Request,
    site: SiteOf,
    who: Viewer,
    object_type: Annotated[str, Query(alias="type", max_length=200)] = "",
    text: Text = "",
    number: Number = 1,
) -> Response:
    """Show the locks in use, the most wanted first."""
    text = text.strip()
    if is_name(text):
        return RedirectResponse(path_of(request, "lock", name=text), 303)
    found = await locks_of(site)
    names = found.matching(object_type, text)
    chosen = names[(number - 1) * PAGE : number * PAGE]
    read = partial(site.nonet.stores.locks.some, chosen, show=_SHOWN)
    rows = await site.shared.read(("locks", _SHOWN, *chosen), 2.0, read)
    return render(
        request,
        "locks.html",
        found=found,
        rows=[row for row in rows if row.is_held or row.waiting],
        total=len(names),
        contended=sum(name in found.waiting for name in names),
        object_type=object_type,
        text=text,
        number=number,
        last=max(1, -(-len(names) // PAGE)),
    )


@router.get("/release/{name:path}", name="lock_release")
async def release_preview(request: Request, site: SiteOf, who: Releaser, name: str) -> Response:
    """Show what a forced release would do, and ask for the name of the lock."""
    return _preview(request, await site.nonet.stores.locks.get(name, show=_MOST_SHOWN))


@router.post("/release/{name:path}")
async def release(
    request: Request, site: SiteOf, who: Releaser, name: str, typed: Annotated[str, Form()] = ""
) -> Response:
    """Release a lock by force."""
    board = site.nonet.stores.locks
    if typed.strip() != name:
        problem = f"{typed.strip()!r:.200} is not the name of this lock: nothing was released"
        return _preview(request, await board.get(name, show=_MOST_SHOWN), problem)
    async with site.changing(who, Action.RELEASE, f"lock {name}: release"):
        done = await board.release(name, actor())
    told = [f"released {name}"]
    told += [f"voided {named(holder)}" for holder in done.voided[:_SHOWN]]
    if len(done.voided) > _SHOWN:
        told.append(f"and {len(done.voided) - _SHOWN} more")
    if done.dropped:
        told.append(f"emptied it of {done.dropped}")
    if done.woken:
        told.append(f"woke {counted(len(done.woken), 'task')}")
    return back(request, path_of(request, "lock", name=name), ", ".join(told))


def _preview(request: Request, found: LockStatus, problem: str = "") -> Response:
    status = 422 if problem else 200
    return render(
        request, "lock_release.html", status, lock=found, problem=problem, warning=WARNING
    )


@router.get("/locks/{name:path}", name="lock")
async def lock(request: Request, site: SiteOf, who: Viewer, name: str) -> Response:
    """Show one lock with its holders and its queue."""
    read = partial(site.nonet.stores.locks.get, name, show=_MOST_SHOWN)
    found = await site.shared.read(("locks", "lock", name), 1.0, read)
    return render(
        request,
        "lock.html",
        lock=found,
        is_limiter=LimitAddress.of_counter(name) is not None,
        refusal=refused_by(waiters_of(found).refusal) if found.waiting else "",
        free=not_held(name),
    )
