"""``/api/v1/schedules``: periodic entries; run one now, pause and resume them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from nonet.base.actor import who as actor
from nonet.base.errors import NotFoundError
from nonet.operate.schedules import coming, state_of, why
from nonet.rules.permissions import Action
from nonet.stores.namespace.leadership import Leader
from nonet.stores.namespace.periodic import EntryStatus
from nonet.web import shown
from nonet.web.api.routing import (
    Body,
    ClassName,
    Cursor,
    Limit,
    Made,
    OfClass,
    Page,
    Reason,
    resource,
    slice_of,
)
from nonet.web.site import Pauser, Scheduler, Site, SiteOf, Viewer

router = resource("schedules")


class Entry(BaseModel):
    """A periodic entry."""

    entry: str = Field(description="Its identity, for the other calls.")
    task: str = Field(description="Full name of its class.")
    vo: str
    name: str
    schedule: str
    state: str = Field(
        description="`planned`, `waiting`, `running`, `paused`, `disabled`, `finished`, `broken`."
    )
    next: datetime | None = Field(description="When it fires next.")
    last: datetime | None = Field(description="The occurrence that was submitted last.")
    last_id: str = Field(description="The task that was submitted last.")
    fired: int
    skipped: int = Field(description="Occurrences that were due while the last one ran.")
    missed: int = Field(description="Occurrences that were too old, after an outage.")
    suppressed: int = Field(description="Occurrences that were due while it was paused.")
    paused: str = Field(description="Who paused it, when and why; empty: it is not paused.")


class EntryInFull(Entry):
    """A periodic entry, why it does not run now, and when it fires next."""

    why: str = Field(description="The first thing that keeps it from running now.")
    upcoming: Sequence[datetime] = Field(
        description="The next ten occurrences; only one if its schedule is an own class."
    )


class Chosen(Body):
    """Entries to pause or to resume."""

    entries: Annotated[list[ClassName], Field(min_length=1, max_length=1000)]


class ChosenToPause(Chosen, Reason):
    """Entries to pause, and why."""


class OneEntry(Body):
    """An entry to run."""

    entry: ClassName


class Turned(BaseModel):
    """Which entries changed."""

    changed: list[str]


@router.get("/schedules")
async def list_schedules(
    site: SiteOf, who: Viewer, task: OfClass = None, limit: Limit = 100, cursor: Cursor = ""
) -> Page[Entry]:
    """List the periodic entries, by class."""
    known = await site.shared.read(("schedules",), 5.0, site.nonet.stores.periodic.statuses)
    leader = await shown.leader(site, who)
    found = [item for item in known if task in (None, item.task, item.task.rpartition(":")[2])]
    rows = slice_of(found, limit, cursor)
    return Page(items=[_shown(item, leader) for item in rows.items], cursor=rows.cursor)


@router.get("/schedules/{entry:path}")
async def get_schedule(
    entry: Annotated[
        str, Path(pattern=r"^[!-~]{1,1000}$", description="Its identity, as the list has it.")
    ],
    site: SiteOf,
    who: Viewer,
) -> EntryInFull:
    """Return one entry, why it does not run now, and its next occurrences."""
    (item,) = await _entries(site, [entry])
    leader, now = await shown.leader(site, who), await site.nonet.broker.now()
    upcoming, _ = await asyncio.to_thread(coming, item, now)
    known = _shown(item, leader).model_dump()
    return EntryInFull(why=why(item, leader, ""), upcoming=upcoming, **known)


@router.post("/schedules/run", status_code=202)
async def run_schedule(body: OneEntry, site: SiteOf, who: Scheduler) -> Made:
    """Submit the task of an entry now, in addition to its schedule."""
    (item,) = await _entries(site, [body.entry])
    async with site.changing(who, Action.SCHEDULE, f"periodic entry {body.entry}: run now"):
        return Made(id=str(await site.nonet.run_entry(item)))


@router.post("/schedules/pause")
async def pause_schedules(body: ChosenToPause, site: SiteOf, who: Pauser) -> Turned:
    """Stop entries from firing until they are resumed."""
    await _entries(site, body.entries)
    what = f"periodic entries {', '.join(body.entries)}: pause: {body.reason}"
    async with site.changing(who, Action.PAUSE, what):
        done = await site.nonet.stores.periodic.pause(body.entries, actor(), body.reason)
    return Turned(changed=done)


@router.post("/schedules/resume")
async def resume_schedules(body: Chosen, site: SiteOf, who: Pauser) -> Turned:
    """Let entries fire again, from their next occurrence on."""
    await _entries(site, body.entries)
    what = f"periodic entries {', '.join(body.entries)}: resume"
    async with site.changing(who, Action.PAUSE, what):
        done = await site.nonet.stores.periodic.resume(body.entries, actor())
    return Turned(changed=done)


async def _entries(site: Site, wanted: Sequence[str]) -> list[EntryStatus]:
    known = {item.entry: item for item in await site.nonet.stores.periodic.statuses()}
    unknown = [key for key in wanted if key not in known]
    if unknown:
        raise NotFoundError(f"no periodic entry {unknown[0]}: GET /api/v1/schedules lists them")
    return [known[key] for key in wanted]


def _shown(item: EntryStatus, leader: Leader | None) -> Entry:
    names = set(Entry.model_fields) - {"state"}
    return Entry(state=state_of(item, leader), **{name: getattr(item, name) for name in names})
