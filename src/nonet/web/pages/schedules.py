"""Periodic entries: when they fire, their calendar, and to run, pause and resume them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import Response

from nonet.daemon.service import who as actor
from nonet.operate import schedules as entries
from nonet.rules.permissions import Action, Principal
from nonet.stores.namespace.leadership import Leader
from nonet.stores.namespace.periodic import EntryStatus
from nonet.tasks.schedules.description import in_words, zone_of
from nonet.tasks.secrecy import masked_arguments
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Site, SiteOf, ensure, may

router = APIRouter(include_in_schema=False)

PAGE = 100
# An entry that is due for longer is late: the leader fires it within a second.
_LATE_SECONDS = 30.0

Reader = Annotated[Principal, may(Action.READ)]
Pauser = Annotated[Principal, may(Action.PAUSE)]
_Text = Annotated[str, Query(max_length=500)]
_Entries = Annotated[list[str], Form(alias="entry", max_length=10_000)]
_Reason = Annotated[str, Form(max_length=300)]


@router.get("/schedules", name="schedules")
async def schedules(
    request: Request,
    site: SiteOf,
    who: Reader,
    text: Annotated[str, Query(alias="q", max_length=500)] = "",
    vo: _Text = "",
    state: _Text = "",
    view: Literal["list", "calendar"] = "list",
    number: Annotated[int, Query(alias="page", ge=1, le=1000)] = 1,
) -> Response:
    """Show the periodic entries, or when they fire in the next 24 hours."""
    known, leader = await _known(site)
    found = [
        item
        for item in known
        if who.may(Action.READ, item.task)
        and text.lower() in f"{item.task} {item.name}".lower()
        and vo in ("", item.vo)
        and state in ("", entries.state_of(item, leader))
    ]
    shown = found[(number - 1) * PAGE : number * PAGE]
    now = await site.nonet.broker.now()
    values: dict[str, Any] = {"rows": shown, "lines": [], "hours": []}
    if view == "calendar":
        lines = await site.shared.read(
            ("schedules", "calendar", *(item.entry for item in shown)),
            5.0,
            partial(asyncio.to_thread, entries.calendar, shown, leader, now),
        )
        values |= {
            "lines": lines,
            "hours": [cell.start for cell in lines[0].cells] if lines else (),
        }
    else:
        values["ends"] = await _ends(site, shown)
    return render(
        request,
        "schedules.html",
        total=len(found),
        changeable=[item.entry for item in found if who.may(Action.PAUSE, item.task)],
        vos=sorted({item.vo for item in known if item.vo and who.may(Action.READ, item.task)}),
        filters={"q": text, "vo": vo, "state": state},
        view=view,
        number=number,
        last=max(1, -(-len(found) // PAGE)),
        now=now,
        leader=_leader(leader, who),
        held_back=entries.held_back(shown),
        refused=_refused(known, leader, who),
        states=entries.STATES,
        **_words(leader, now),
        **values,
    )


@router.get("/schedules/{entry:path}", name="schedule")
async def schedule(request: Request, site: SiteOf, who: Reader, entry: str) -> Response:
    """Show one entry."""
    return await _page_of(request, site, who, await _entry(site, who, entry, Action.READ))


@router.post("/schedules/run", name="schedule_run")
async def run_now(
    request: Request,
    site: SiteOf,
    who: Annotated[Principal, may(Action.SCHEDULE)],
    entry: Annotated[str, Form(max_length=2000)],
) -> Response:
    """Submit the task of an entry now."""
    item = await _entry(site, who, entry, Action.SCHEDULE)
    async with site.changing(who, Action.SCHEDULE, f"periodic entry {entry}: run now"):
        handle = await site.nonet.run_entry(item)
    return back(request, path_of(request, "schedule", entry=entry), f"submitted task {handle}")


@router.post("/schedules/pause", name="schedule_pause")
async def pause(
    request: Request, site: SiteOf, who: Pauser, chosen: _Entries, reason: _Reason = ""
) -> Response:
    """Pause entries."""
    await _ensure(site, who, chosen)
    async with site.changing(who, Action.PAUSE, f"{_named(chosen)}: pause: {reason}"):
        done = await site.nonet.stores.periodic.pause(chosen, actor(), reason)
    return _turned(request, site, chosen, done, "paused", "were paused already")


@router.post("/schedules/resume", name="schedule_resume")
async def resume(request: Request, site: SiteOf, who: Pauser, chosen: _Entries) -> Response:
    """Resume entries from their next occurrence on."""
    await _ensure(site, who, chosen)
    async with site.changing(who, Action.PAUSE, f"{_named(chosen)}: resume"):
        done = await site.nonet.stores.periodic.resume(chosen, actor())
    return _turned(request, site, chosen, done, "resumed", "were not paused")


def _turned(
    request: Request,
    site: Site,
    chosen: Sequence[str],
    done: Sequence[str],
    now: str,
    otherwise: str,
) -> Response:
    path = path_of(request, "schedules")
    if len(chosen) == 1:
        path = path_of(request, "schedule", entry=chosen[0])
        return back(request, path, now if done else f"it {otherwise.replace('were', 'was')}")
    left = len(chosen) - len(done)
    text = f"{now} {len(done)} entries" + (f"; {left} {otherwise}" if left else "")
    return back(request, path, text)


@router.post("/schedules/{entry:path}", name="schedule_reveal")
async def reveal(
    request: Request, site: SiteOf, who: Annotated[Principal, may(Action.REVEAL)], entry: str
) -> Response:
    """Show one entry with its arguments. It is the path of the entry, which the page reads anew."""
    item = await _entry(site, who, entry, Action.REVEAL)
    async with site.changing(who, Action.REVEAL, f"arguments of periodic entry {entry}"):
        known = {one.name: one.cls for one in site.nonet.registry}
        shown = masked_arguments(item.args, known.get(item.task))
    args = json.dumps(shown, indent=2, ensure_ascii=False, default=str)
    return await _page_of(request, site, who, item, args)


async def _known(site: Site) -> tuple[list[EntryStatus], Leader | None]:
    known = await site.shared.read(("schedules",), 5.0, site.nonet.stores.periodic.statuses)
    return known, await site.shared.read(("schedules", "leader"), 2.0, site.nonet.leader)


async def _entry(site: Site, who: Principal, key: str, action: Action) -> EntryStatus:
    """Return an entry, if `who` may do something with it."""
    ensure(who, action, key.partition("|")[0])
    for item in await site.nonet.stores.periodic.statuses():
        if item.entry == key:
            return item
    raise HTTPException(404, f"no periodic entry {key}: it may have left the configuration")


async def _ensure(site: Site, who: Principal, chosen: Sequence[str]) -> None:
    """Raise unless all entries exist, and `who` may pause and resume them."""
    for key in chosen:
        ensure(who, Action.PAUSE, key.partition("|")[0])
    unknown = set(chosen) - await site.nonet.stores.periodic.known()
    if unknown:
        raise HTTPException(404, f"no periodic entry {min(unknown)}: nothing was changed")


async def _page_of(
    request: Request, site: Site, who: Principal, item: EntryStatus, args: str | None = None
) -> Response:
    leader = await site.nonet.leader()
    now = await site.nonet.broker.now()
    coming, is_complete = await asyncio.to_thread(entries.coming, item, now)
    zone = zone_of(item.schedule)
    return render(
        request,
        "schedule.html",
        item=item,
        zone=zone,
        coming=[(at, _local(at, zone)) for at in coming],
        is_complete=is_complete,
        args=args,
        ends=await _ends(site, [item]),
        why=why_of(item, leader, who),
        now=now,
        **_words(leader, now),
    )


def why_of(item: EntryStatus, leader: Leader | None, who: Principal) -> str:
    """Say why an entry does not run now; the errors of authors' code need a permission."""
    if who.may(Action.DETAILS, item.task):
        return entries.why(item, leader, "")
    state = entries.state_of(item, leader)
    return state if state == "broken" or entries.held_up(leader) else entries.why(item, leader, "")


async def _ends(site: Site, items: Sequence[EntryStatus]) -> dict[str, str]:
    """Return how the last task of each entry ended, unless it is live."""
    ids = sorted({item.last_id for item in items if item.last_id and not item.last_state})
    read = partial(site.nonet.stores.results.ends, ids)
    return await site.shared.read(("schedules", "ends", *ids), 5.0, read) if ids else {}


def _words(leader: Leader | None, now: datetime) -> dict[str, Any]:
    """Return the functions of the templates."""

    def late(item: EntryStatus) -> float | None:
        is_held = item.paused or item.held_back or item.last_state
        if not item.enabled or is_held or item.next is None:
            return None
        seconds = (now - item.next).total_seconds()
        return seconds if seconds >= _LATE_SECONDS else None

    return {
        "in_words": in_words,
        "late": late,
        "local": lambda item: _local(item.next, zone_of(item.schedule)) if item.next else "",
        "state_of": lambda item: entries.state_of(item, leader),
    }


def _refused(
    known: Sequence[EntryStatus], leader: Leader | None, who: Principal
) -> list[tuple[str, str]]:
    """Return the entries that could not be planned, and why if `who` may see errors."""
    planned = {item.entry for item in known}
    return [
        (key, why if who.may(Action.DETAILS, key.partition("|")[0]) else "")
        for key, why in entries.problems(leader).items()
        if key not in planned and who.may(Action.READ, key.partition("|")[0])
    ]


def _leader(leader: Leader | None, who: Principal) -> str:
    """Describe the leader; its errors need a permission."""
    if leader is None or who.may(Action.DETAILS):
        return entries.in_words(leader)
    return f"leader {entries.told(leader).get('name', leader.owner)}, term {leader.term}"


def _local(at: datetime, zone: str) -> str:
    """Return a time in the zone of its entry; empty if that is UTC."""
    return "" if zone == "UTC" else at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")


def _named(chosen: Sequence[str]) -> str:
    more = f" and {len(chosen) - 1} more" if len(chosen) > 1 else ""
    return f"periodic entry {chosen[0] if chosen else ''}{more}"
