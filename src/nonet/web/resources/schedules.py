"""Periodic entries: ``/api/v1/schedules``, their pages and calendar, and the actions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args
from zoneinfo import available_timezones

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError

from nonet.base.errors import InvalidArgumentsError, NonetError, NotFoundError
from nonet.operate import entry_state, schedules
from nonet.operate.argument_fields import Draft
from nonet.operate.leader import LeaderView, leader_in_words
from nonet.operate.schedule_views import EntryInFull, Kind, Preview, Rule
from nonet.operate.schedules import Entries, EntryQuery, PutView, Turned
from nonet.rules.periodic import StoredSchedule
from nonet.rules.permissions import Principal
from nonet.tasks.periodic_policies import CatchUp
from nonet.web.error_responses import status_of
from nonet.web.rendering import back, path_of, render
from nonet.web.resources.tasks.form import fields_in
from nonet.web.resources.tasks.submitting import Values
from nonet.web.routing import Body, ClassName, FormText, Id, Made, Reason, Seconds, Text, resource
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


class NewSchedule(Rule, Body):
    """A schedule in the database."""

    id: Id = Field(description="Its name. Post it again to change it.")
    task: ClassName = Field(description="Task class: full name, or bare name if it is unique.")
    arguments: Values = Field(default={}, description="Arguments by name.")
    tenant: Text = Field(default="", description="The tenant of its tasks.")
    catch_up: CatchUp | None = Field(
        default=None,
        description="What to submit of occurrences missed for longer than the misfire grace; "
        "null: as the class says.",
    )
    misfire_grace: Seconds | None = Field(
        default=None,
        description="Seconds by which an occurrence may be late and still count as in time; "
        "null: as the class says.",
    )
    must_be_new: bool = Field(default=False, description="Refuse to change a schedule.")


class ToRemove(Body):
    """A schedule to remove from the database."""

    id: Id


class ToRun(Body):
    """An entry to run."""

    entry: ClassName


class Edited(BaseModel):
    """What the form shows: a new schedule of a class, or an entry of the database."""

    task: Text = ""
    entry: Text = ""


@cache
def _zones() -> list[str]:
    return sorted(available_timezones())


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


@api.get("/schedules/preview")
async def preview_schedule(site: SiteOf, who: Viewer, rule: Annotated[Rule, Query()]) -> Preview:
    """Return when a rule would fire: the next ten times, and the next change of the clocks."""
    return await schedules.preview(site.stores, rule)


@api.get("/schedules/{entry:path}")
async def get_schedule(entry: Entry, site: SiteOf, who: Viewer) -> EntryInFull:
    """Return one entry, why it does not run now, and its next occurrences."""
    return await _get(site, who, entry)


@api.post("/schedules")
async def put_schedule(body: NewSchedule, site: SiteOf, who: Putter) -> PutView:
    """Make a schedule in the database, or change it. The leader plans it within seconds."""
    return await _put(site, who, body, body.arguments, must_be_new=body.must_be_new)


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


@pages.get("/schedules/edit", name="schedule_edit")
async def edit(
    request: Request, site: SiteOf, who: Putter, asked: Annotated[Edited, Query()]
) -> Response:
    """Show the form of a new schedule, or of one of the database."""
    draft, item = await _draft(site, asked)
    return _form(request, asked, draft, item, texts=_texts(item))


@pages.post("/schedules/edit")
async def put(
    request: Request, site: SiteOf, who: Putter, asked: Annotated[Edited, Query()]
) -> Response:
    """Save a schedule; or only show when it would fire."""
    draft, item = await _draft(site, asked)
    if draft is None:
        raise NotFoundError("a schedule of which class?")
    sent, texts = await fields_in(request)
    values = draft.typed(texts)
    new, wrong = _read(sent, draft, item)
    problems, preview, problem, status = draft.problems(values), None, "", 200
    try:
        preview = await schedules.preview(site.stores, new) if new else None
    except InvalidArgumentsError as error:
        wrong["rule"] = "; ".join(error.problems)
    if wrong or problems:
        status = 422
    elif new and "preview" not in sent:
        try:
            arguments = {**(draft.stored or {}), **values}
            done = await _put(site, who, new, arguments, must_be_new=item is None)
            text = f"{done.id} {done.change}; the leader plans it within seconds"
            return back(request, path_of(request, "schedules"), text)
        except NonetError as error:
            problem, status = str(error), status_of(error)
    found: dict[str, Any] = {"wrong": wrong, "problems": problems, "problem": problem}
    found |= {"texts": sent, "argument_texts": texts, "preview": preview}
    return _form(request, asked, draft, item, status, **found)


@pages.get("/schedules/{entry:path}", name="schedule")
async def show_schedule(request: Request, site: SiteOf, who: Viewer, entry: str) -> Response:
    """Show one entry."""
    return _show(request, await _get(site, who, entry))


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
    return _show(request, item, await site.perform(who, schedules.reveal, site.client, entry))


def _show(request: Request, item: EntryInFull, args: Mapping[str, Any] | None = None) -> Response:
    where = entry_state.changed_where(item)
    return render(request, "schedule.html", item=item, args=args, where=where)


async def _draft(site: Site, asked: Edited) -> tuple[Draft | None, StoredSchedule | None]:
    if asked.entry:
        item, content = await schedules.stored(site.client, asked.entry)
        return Draft(site.registry.get(item.task), content.args), item
    return Draft(site.registry.get(asked.task)) if asked.task else None, None


def _texts(item: StoredSchedule | None) -> dict[str, str]:
    """Return what the form of a schedule begins with."""
    if item is None:
        return {}
    grace = "" if item.misfire_grace is None else f"{item.misfire_grace:g}"
    more = {"tenant": item.tenant, "catch_up": item.catch_up, "misfire_grace": grace}
    return {**Rule.of(item.schedule).model_dump(), **more}


def _read(
    sent: Mapping[str, str], draft: Draft, item: StoredSchedule | None
) -> tuple[NewSchedule | None, dict[str, str]]:
    """Return the schedule in a form without its arguments, or what is wrong, by field."""
    values = {name: sent[name] for name in NewSchedule.model_fields if sent.get(name)}
    own = {"task": draft.task_class.name, "id": item.id if item else values.get("id", "")}
    try:
        return NewSchedule.model_validate(values | own), {}
    except ValidationError as error:
        return None, {str(problem["loc"][0]): problem["msg"] for problem in error.errors()}


def _form(
    request: Request,
    asked: Edited,
    draft: Draft | None,
    item: StoredSchedule | None,
    status: int = 200,
    **values: Any,
) -> Response:
    blank: dict[str, Any] = {"wrong": {}, "problems": {}, "problem": "", "argument_texts": {}}
    return render(
        request,
        "schedule_edit.html",
        status,
        draft=draft,
        item=item,
        asked=asked.model_dump(exclude_defaults=True),
        kinds=get_args(Kind),
        policies=list(CatchUp),
        zones=_zones(),
        **{**blank, "preview": None, **values},
    )


async def _find(site: Site, who: Principal, query: EntryQuery) -> Entries:
    is_viewer = not who.sees_texts
    return await site.read(schedules.find, site.stores, query, is_viewer=is_viewer)


async def _put(
    site: Site,
    who: Principal,
    new: NewSchedule,
    arguments: Mapping[str, Any],
    *,
    must_be_new: bool = False,
) -> PutView:
    return await site.perform(
        who,
        schedules.put,
        site.client,
        new.id,
        new.task,
        ([], arguments),
        new,
        tenant=new.tenant or None,
        catch_up=new.catch_up,
        misfire_grace=new.misfire_grace,
        must_be_new=must_be_new,
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
