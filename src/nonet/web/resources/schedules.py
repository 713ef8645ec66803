"""Periodic entries: ``/api/v1/schedules``, their pages and calendar, and the actions on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field, Json

from nonet.operate import entry_state, schedules
from nonet.operate.leader import LeaderView, leader_in_words
from nonet.operate.schedules import Entries, EntryInFull, EntryQuery, Kind, PutView, Turned
from nonet.rules.permissions import Principal
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.tasks.submitting import Values
from nonet.web.routing import Body, ClassName, FormText, Id, Made, Reason, Text, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("schedules"), APIRouter(include_in_schema=False)

Entry = Annotated[
    str, Path(pattern=r"^[!-~]{1,1000}$", description="Its identity, as the list has it.")
]
Chosen = Annotated[list[str], Form(alias="entry", max_length=10_000)]
Pauser = Annotated[Principal, may(schedules.pause)]
Putter = Annotated[Principal, may(schedules.put)]
Remover = Annotated[Principal, may(schedules.remove)]
Runner = Annotated[Principal, may(schedules.run)]
Revealer = Annotated[Principal, may(schedules.reveal)]


class ToResume(Body):
    """Entries to resume."""

    entries: Annotated[list[ClassName], Field(min_length=1, max_length=1000)]


class ToPause(ToResume, Reason):
    """Entries to pause, and why."""


class NewSchedule(Body):
    """A schedule in the database."""

    id: Id = Field(description="Its name. Post it again to change it.")
    task: ClassName = Field(description="Task class: full name, or bare name if it is unique.")
    arguments: Values = Field(default={}, description="Arguments by name.")
    kind: Kind = Field(description="How to read `rule`.")
    rule: Annotated[Text, Field(min_length=1)] = Field(
        description="Five fields of cron or an @alias; a rule of RFC 5545; or an interval: `15m`."
    )
    timezone: Text = Field(default="", description="IANA name, for cron and rrule; empty: UTC.")
    tenant: Text = Field(default="", description="The tenant of its tasks.")


class ScheduleForm(NewSchedule, extra="ignore"):
    """The fields of a form, with the arguments as JSON."""

    arguments: Json[Values] = Field(default={})


class ToRemove(Body):
    """A schedule to remove from the database."""

    id: Id


class ToRun(Body):
    """An entry to run."""

    entry: ClassName


class Shown(EntryQuery):
    """What the page shows of the entries."""

    view: Literal["list", "calendar"] = "list"


@api.get("/schedules")
async def list_schedules(
    site: SiteOf, who: Viewer, query: Annotated[EntryQuery, Query()]
) -> Entries:
    """List the periodic entries, by class."""
    return await _find(site, who, query)


@api.get("/leader", responses={404: {"description": "No scheduler leads."}})
async def get_leader(site: SiteOf, who: Viewer) -> LeaderView:
    """Return the scheduler that leads, and when each of its loops last ran."""
    return await schedules.get_leader(site.stores)


@api.get("/schedules/{entry:path}")
async def get_schedule(entry: Entry, site: SiteOf, who: Viewer) -> EntryInFull:
    """Return one entry, why it does not run now, and its next occurrences."""
    return await _get(site, who, entry)


@api.post("/schedules")
async def put_schedule(body: NewSchedule, site: SiteOf, who: Putter) -> PutView:
    """Make a schedule in the database, or change it. The leader plans it within seconds."""
    return await _put(site, who, body)


@api.post("/schedules/remove", status_code=204)
async def remove_schedule(body: ToRemove, site: SiteOf, who: Remover) -> None:
    """Remove a schedule from the database. A running occurrence continues."""
    await site.perform(who, schedules.remove, site.client, body.id)


@api.post("/schedules/run", status_code=202)
async def run_schedule(body: ToRun, site: SiteOf, who: Runner) -> Made:
    """Submit the task of an entry now, in addition to its schedule."""
    return Made(id=str(await site.perform(who, schedules.run, site.client, body.entry)))


@api.post("/schedules/pause")
async def pause_schedules(body: ToPause, site: SiteOf, who: Pauser) -> Turned:
    """Stop entries from firing until they are resumed."""
    return await site.perform(who, schedules.pause, site.stores, body.entries, body.reason)


@api.post("/schedules/resume")
async def resume_schedules(body: ToResume, site: SiteOf, who: Pauser) -> Turned:
    """Let entries fire again, from their next occurrence on."""
    return await site.perform(who, schedules.resume, site.stores, body.entries)


@pages.get("/schedules", name="schedules")
async def show_schedules(
    request: Request, site: SiteOf, who: Viewer, query: Annotated[Shown, Query()]
) -> Response:
    """Show the periodic entries, or when they fire in the next 24 hours."""
    found = await _find(site, who, EntryQuery(**query.model_dump(exclude={"view"})))
    known = await site.read(site.stores.periodic.statuses)
    lines = []
    if query.view == "calendar":
        now = await site.nonet.broker.now()
        key = ("calendar", *(item.entry for item in found.items))
        lines = await site.shared.read(key, 5.0, lambda: schedules.calendar(found.items, now))
    return render(
        request,
        "schedules.html",
        found=found,
        query=query,
        lines=lines,
        vos=sorted({item.vo for item in known if item.vo}),
        states=entry_state.STATES,
        leader=leader_in_words(found.leader),
    )


@pages.get("/schedules/{entry:path}", name="schedule")
async def show_schedule(request: Request, site: SiteOf, who: Viewer, entry: str) -> Response:
    """Show one entry."""
    return render(request, "schedule.html", item=await _get(site, who, entry), args=None)


@pages.post("/schedules/put", name="schedule_put")
async def put(
    request: Request, site: SiteOf, who: Putter, body: Annotated[ScheduleForm, Form()]
) -> Response:
    """Make or change a schedule."""
    done = await _put(site, who, body)
    text = f"{done.id} {done.change}; the leader plans it within seconds"
    return back(request, path_of(request, "schedules"), text)


@pages.post("/schedules/remove", name="schedule_remove")
async def remove(
    request: Request, site: SiteOf, who: Remover, id: Annotated[str, Form(max_length=128)]
) -> Response:
    """Remove a schedule."""
    await site.perform(who, schedules.remove, site.client, id)
    return back(request, path_of(request, "schedules"), f"{id} removed")


@pages.post("/schedules/run", name="schedule_run")
async def run_now(
    request: Request, site: SiteOf, who: Runner, entry: Annotated[str, Form(max_length=2000)]
) -> Response:
    """Submit the task of an entry now."""
    id = await site.perform(who, schedules.run, site.client, entry)
    return back(request, path_of(request, "schedule", entry=entry), f"submitted task {id}")


@pages.post("/schedules/pause", name="schedule_pause")
async def pause(
    request: Request, site: SiteOf, who: Pauser, chosen: Chosen, reason: FormText = ""
) -> Response:
    """Pause entries."""
    done = await site.perform(who, schedules.pause, site.stores, chosen, reason)
    return _turned(request, chosen, done, "paused", "paused already")


@pages.post("/schedules/resume", name="schedule_resume")
async def resume(request: Request, site: SiteOf, who: Pauser, chosen: Chosen) -> Response:
    """Resume entries from their next occurrence on."""
    done = await site.perform(who, schedules.resume, site.stores, chosen)
    return _turned(request, chosen, done, "resumed", "not paused")


@pages.post("/schedules/{entry:path}", name="schedule_reveal")
async def reveal(request: Request, site: SiteOf, who: Revealer, entry: str) -> Response:
    """Show one entry with its arguments. It is the path of the entry, which the page reads anew."""
    item = await _get(site, who, entry)
    args = await site.perform(who, schedules.reveal, site.client, entry)
    return render(request, "schedule.html", item=item, args=args)


async def _find(site: Site, who: Principal, query: EntryQuery) -> Entries:
    is_viewer = not who.sees_texts
    return await site.read(schedules.find, site.stores, query, is_viewer=is_viewer)


async def _put(site: Site, who: Principal, new: NewSchedule) -> PutView:
    return await site.perform(
        who,
        schedules.put,
        site.client,
        new.id,
        new.task,
        ([], new.arguments),
        new.kind,
        new.rule,
        new.timezone,
        new.tenant,
    )


async def _get(site: Site, who: Principal, entry: str) -> EntryInFull:
    return await site.read(schedules.get, site.client, entry, is_viewer=not who.sees_texts)


def _turned(
    request: Request, chosen: Sequence[str], done: Turned, now: str, before: str
) -> Response:
    if len(chosen) == 1:
        path = path_of(request, "schedule", entry=chosen[0])
        return back(request, path, now if done.changed else f"it was {before}")
    gone, changed = len(done.gone), len(done.changed)
    left = len(chosen) - changed - gone
    text = f"{now} {changed} entries" + (f"; {left} were {before}" if left else "")
    text += f"; {gone} exist no more" if gone else ""
    return back(request, path_of(request, "schedules"), text)
