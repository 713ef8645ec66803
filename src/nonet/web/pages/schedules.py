"""Periodic entries: when they fire, their calendar, and to run, pause and resume them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import Response

from nonet.base.actor import who as actor
from nonet.operate import schedules as entries
from nonet.rules.permissions import Action, Principal
from nonet.stores.namespace.leadership import Leader
from nonet.stores.namespace.periodic import EntryStatus
from nonet.tasks.schedules.description import in_words, zone_of
from nonet.tasks.secrecy import masked_arguments
from nonet.web import shown
from nonet.web.pages.fields import Number, Reason, Text, Word
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Pauser, Revealer, Scheduler, Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

PAGE = 100
# An entry that is due for longer is late: the leader fires it within a second.
_LATE_SECONDS = 30.0

_Entries = Annotated[list[str], Form(alias="entry", max_length=10_000)]


@router.get("/schedules", name="schedules")
async def schedules(
    request: Request,
    site: SiteOf,
    who: Viewer,
    text: Text = "",
    vo: Word = "",
    state: Word = "",
    view: Literal["list", "calendar"] = "list",
    number: Number = 1,
) -> Response:
    """Show the periodic entries, or when they fire in the next 24 hours."""
    known = await site.shared.read(("schedules",), 5.0, site.nonet.stores.periodic.statuses)
    leader = await shown.leader(site, who)
    found = [
        item
        for item in known
        if text.lower() in f"{item.task} {item.name}".lower()
        and vo in ("", item.vo)
        and state in ("", entries.state_of(item, leader))
    ]
    rows = found[(number - 1) * PAGE : number * PAGE]
    now = await site.nonet.broker.now()
    values: dict[str, Any] = {"rows": rows, "lines": [], "hours": []}
    if view == "calendar":
        lines = await site.shared.read(
            ("schedules", "calendar", *(item.entry for item in rows)),
            5.0,
            partial(asyncio.to_thread, entries.calendar, rows, leader, now),
        )
        values |= {
            "lines": lines,
            "hours": [cell.start for cell in lines[0].cells] if lines else (),
        }
    else:
        values["ends"] = await _ends(site, rows)
    return render(
        request,
        "schedules.html",
        total=len(found),
        changeable=[item.entry for item in found],
        vos=sorted({item.vo for item in known if item.vo}),
        filters={"q": text, "vo": vo, "state": state},
        view=view,
        number=number,
        last=max(1, -(-len(found) // PAGE)),
        now=now,
        leader=entries.in_words(leader),
        held_back=entries.held_back(rows),
        refused=_refused(known, leader),
        states=entries.STATES,
        **_words(leader, now),
        **values,
    )


@router.get("/schedules/{entry:path}", name="schedule")
async def schedule(request: Request, site: SiteOf, who: Viewer, entry: str) -> Response:
    """Show one entry."""
    return await _page_of(request, site, who, await _entry(site, entry))


@router.post("/schedules/run", name="schedule_run")
async def run_now(
    request: Request, site: SiteOf, who: Scheduler, entry: Annotated[str, Form(max_length=2000)]
) -> Response:
    """Submit the task of an entry now."""
    item = await _entry(site, entry)
    async with site.changing(who, Action.SCHEDULE, f"periodic entry {entry}: run now"):
        handle = await site.nonet.run_entry(item)
    return back(request, path_of(request, "schedule", entry=entry), f"submitted task {handle}")


@router.post("/schedules/pause", name="schedule_pause")
async def pause(
    request: Request, site: SiteOf, who: Pauser, chosen: _Entries, reason: Reason = ""
) -> Response:
    """Pause entries."""
    await _ensure_known(site, chosen)
    async with site.changing(who, Action.PAUSE, f"{_named(chosen)}: pause: {reason}"):
        done = await site.nonet.stores.periodic.pause(chosen, actor(), reason)
    return _turned(request, site, chosen, done, "paused", "were paused already")


@router.post("/schedules/resume", name="schedule_resume")
async def resume(request: Request, site: SiteOf, who: Pauser, chosen: _Entries) -> Response:
    """Resume entries from their next occurrence on."""
    await _ensure_known(site, chosen)
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
async def reveal(request: Request, site: SiteOf, who: Revealer, entry: str) -> Response:
    """Show one entry with its arguments. It is the path of the entry, which the page reads anew."""
    item = await _entry(site, entry)
    async with site.changing(who, Action.REVEAL, f"arguments of periodic entry {entry}"):
        known = {one.name: one.cls for one in site.nonet.registry}
        masked = masked_arguments(item.args, known.get(item.task))
    args = json.dumps(masked, indent=2, ensure_ascii=False, default=str)
    return await _page_of(request, site, who, item, args)


async def _entry(site: Site, key: str) -> EntryStatus:
    for item in await site.nonet.stores.periodic.statuses():
        if item.entry == key:
            return item
    raise HTTPException(404, f"no periodic entry {key}: it may have left the configuration")


async def _ensure_known(site: Site, chosen: Sequence[str]) -> None:
    """Raise 404 unless all entries exist."""
    unknown = set(chosen) - await site.nonet.stores.periodic.known()
    if unknown:
        raise HTTPException(404, f"no periodic entry {min(unknown)}: nothing was changed")


async def _page_of(
    request: Request, site: Site, who: Principal, item: EntryStatus, args: str | None = None
) -> Response:
    leader = await shown.leader(site, who)
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
        why=entries.why(item, leader, ""),
        now=now,
        **_words(leader, now),
    )


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


def _refused(known: Sequence[EntryStatus], leader: Leader | None) -> list[tuple[str, str]]:
    """Return the entries that could not be planned, and why."""
    planned = {item.entry for item in known}
    return [(key, why) for key, why in entries.problems(leader).items() if key not in planned]


def _local(at: datetime, zone: str) -> str:
    """Return a time in the zone of its entry; empty if that is UTC."""
    return "" if zone == "UTC" else at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")


def _named(chosen: Sequence[str]) -> str:
    more = f" and {len(chosen) - 1} more" if len(chosen) > 1 else ""
    return f"periodic entry {chosen[0] if chosen else ''}{more}"
