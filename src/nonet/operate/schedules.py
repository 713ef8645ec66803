"""Periodic entries: states, why one does not run, their leader; run, pause and resume them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import ConflictError, NotFoundError
from nonet.client.schedules import PutOptions
from nonet.client.submitting import bound
from nonet.operate.audited import audited
from nonet.operate.calendar import Cell, ClockChange, clock_change, day, following, only
from nonet.operate.entry_state import State, changed_where, held_back, state_of, why
from nonet.operate.leader import NO_LEADER, LeaderView, leader_view
from nonet.operate.lists import ListQuery, Page, Text, cut, view_of
from nonet.operate.schedule_views import EntryInFull, EntryView, Line, Preview, Rule
from nonet.rules.entry_names import DATABASE
from nonet.rules.periodic import EntryStatus, StoredSchedule
from nonet.rules.permissions import Action
from nonet.rules.viewing import for_viewer
from nonet.tasks.handles import Handle
from nonet.tasks.schedules import MICROSECOND, TaskScheduleBase, next_after
from nonet.tasks.schedules.description import describe, described
from nonet.tasks.secrecy import masked_arguments

if TYPE_CHECKING:
    from nonet.base.messages.message import Envelope
    from nonet.client.client import Client
    from nonet.stores.stores import Stores

# An entry that is due for longer is late: the leader fires it within a second.
_LATE_SECONDS = 30.0


class EntryQuery(ListQuery):
    """Which periodic entries are listed."""

    text: Text = Field(default="", description="Part of the class or the name.")
    task: Text = Field(default="", description="Only entries of this class; a bare name will do.")
    vo: Text = Field(default="", description="Only entries of this VO.")
    state: State | None = Field(default=None, description="Only entries in this state.")


@dataclass(frozen=True, slots=True)
class Entries(Page[EntryView]):
    """Periodic entries, by class.

    Attributes:
        leader: the scheduler that fires them; null: none leads.
        held_back: the pauses that keep tasks of these entries from starting.
        refused: why entries could not be planned, by entry.
    """

    leader: LeaderView | None = None
    held_back: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turned:
    """Which entries changed.

    Attributes:
        changed: the others were paused already, or not paused.
        gone: entries that exist no more.
    """

    changed: Sequence[str]
    gone: Sequence[str]


@dataclass(frozen=True, slots=True)
class PutView:
    """What a put has done.

    Attributes:
        change: ``created``, ``changed`` or ``unchanged``.
    """

    id: str
    change: str


async def find(stores: Stores, query: EntryQuery, *, is_viewer: bool = False) -> Entries:
    """Return the periodic entries, by class, disabled ones too.

    Args:
        is_viewer: leave out texts of errors, see `nonet.rules.viewing`.
    """
    leads, known = await _leader(stores, is_viewer), await stores.periodic.statuses()
    found = [
        item
        for item in known
        if query.text.lower() in f"{item.task} {item.name}".lower()
        and query.task in ("", item.task, item.task.rpartition(":")[2])
        and query.vo in ("", item.vo)
        and query.state in (None, state_of(item, leads))
    ]
    page, now = cut(found, query), await stores.broker.now()
    ends = await _ends(stores, page.items)
    planned = {item.entry for item in known}
    broken = leads.broken.items() if leads else ()
    return Entries(
        [view(item, leads, now, ends) for item in page.items],
        page.cursor,
        leads,
        sorted({held_back(item.held_back) for item in page.items if item.held_back}),
        {key: why for key, why in broken if key not in planned},
    )


async def get(client: Client, entry: str, *, is_viewer: bool = False) -> EntryInFull:
    """Return one entry, why it does not run now, and its next occurrences.

    Raises:
        NotFoundError: there is no such entry.
    """
    stores = client.stores
    (item,) = await _known(stores, [entry])
    leads, now, occurrence = await _leader(stores, is_viewer), await stores.broker.now(), ""
    if item.last_state and not is_viewer:
        with suppress(NotFoundError):  # it has just ended, and left no result
            occurrence = (await client.explain(item.last_id)).line
    found = view(item, leads, now, await _ends(stores, [item]), occurrence)
    upcoming, is_complete, change = await asyncio.to_thread(coming, found, now)
    more = {"upcoming": upcoming, "is_complete": is_complete, "clock_change": change}
    return view_of(EntryInFull, found, **more)


async def preview(stores: Stores, rule: Rule) -> Preview:
    """Return when a rule would fire, without saving it.

    Raises:
        InvalidArgumentsError: the rule or the time zone is wrong.
    """
    now, schedule = await stores.broker.now(), rule.made()

    def read() -> Preview:
        upcoming = list(following(schedule, now))
        return Preview(describe(schedule), upcoming, clock_change(schedule, now))

    return await asyncio.to_thread(read)


async def held_up(stores: Stores) -> str:
    """Return why no entry fires at all; empty if entries fire."""
    found = await _leader(stores)
    return found.held_up if found else NO_LEADER


async def get_leader(stores: Stores) -> LeaderView:
    """Return the scheduler that leads.

    Raises:
        NotFoundError: none leads.
    """
    found = await _leader(stores)
    if found is None:
        raise NotFoundError(NO_LEADER)
    return found


@audited(Action.SCHEDULE, "periodic entry {entry}: run now")
async def run(client: Client, entry: str) -> Handle[Any]:
    """Submit the task of a periodic entry now, in addition to its schedule.

    Raises:
        NotFoundError: there is no such entry.
        UnknownTaskError: its class is not registered here.
        InvalidArgumentsError: its class refuses the configured arguments.
    """
    stores = client.stores
    (item,) = await _known(stores, [entry])
    arguments, labels = await _arguments(client, item)
    task = client.registry.get(item.task).arguments.build(arguments)
    handle = await client.submit(task, labels={**labels, "entry": entry})
    await stores.events.log("schedule-run", who(), f"{entry}: {handle}")
    return handle


@audited(Action.PAUSE, "periodic entries {entries}: pause: {reason}")
async def pause(stores: Stores, entries: Sequence[str], reason: str = "") -> Turned:
    """Stop entries from firing until they are resumed.

    Raises:
        NotFoundError: none of them exists.
    """
    return await _turn(stores, entries, lambda found: stores.periodic.pause(found, who(), reason))


@audited(Action.PAUSE, "periodic entries {entries}: resume")
async def resume(stores: Stores, entries: Sequence[str]) -> Turned:
    """Let entries fire again, from their next occurrence on.

    Raises:
        NotFoundError: none of them exists.
    """
    return await _turn(stores, entries, lambda found: stores.periodic.resume(found, who()))


@audited(Action.REVEAL, "arguments of periodic entry {entry}")
async def reveal(client: Client, entry: str) -> Mapping[str, Any]:
    """Return the arguments of an entry, with secret ones masked.

    Raises:
        NotFoundError: there is no such entry.
        MalformedMessageError: they were changed, or this process lacks a key.
    """
    (item,) = await _known(client.stores, [entry])
    task_class = client.registry.find(item.task)
    arguments, _ = await _arguments(client, item)
    return masked_arguments(arguments, task_class.cls if task_class else None)


@audited(Action.SCHEDULE, "schedule {id}: {task}, {rule}")
async def put(
    client: Client,
    id: str,
    task: str,
    arguments: tuple[list[Any], Mapping[str, Any]],
    rule: Rule,
    **options: Unpack[PutOptions],
) -> PutView:
    """Make or change a schedule in the database, see `nonet.client.schedules.Schedules.put`.

    Args:
        arguments: by position, and by name.
    """
    made = bound(client.registry.get(task), *arguments)
    done = await client.schedules.put(id, made, rule.made(), **options)
    if done != "unchanged":
        await client.stores.events.log("schedule-put", who(), f"{id}: {done}")
    return PutView(id, done)


async def stored(client: Client, entry: str) -> tuple[StoredSchedule, Envelope]:
    """Return a schedule of the database, and its message.

    Raises:
        NotFoundError: there is no such entry.
        ConflictError: it is defined elsewhere; the message says where.
    """
    (item,) = await _known(client.stores, [entry])
    if item.origin != DATABASE:
        raise ConflictError(f"{entry} cannot be changed here: {changed_where(item)}")
    return await client.schedules.content(item.name)


@audited(Action.SCHEDULE, "schedule {id}: remove")
async def remove(client: Client, id: str) -> None:
    """Remove a schedule from the database.

    Raises:
        NotFoundError: there is none with this id.
    """
    if not await client.schedules.remove(id):
        raise NotFoundError(f"no schedule {id} in the database: see 'task-run schedules list'")
    await client.stores.events.log("schedule-remove", who(), id)


async def _arguments(
    client: Client, item: EntryStatus
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments of an entry, and the labels of its tasks."""
    if item.origin != DATABASE:
        return await client.stores.periodic.arguments(item.entry), {}
    _, content = await client.schedules.content(item.name)
    return content.args, content.labels


async def _known(stores: Stores, wanted: Sequence[str]) -> list[EntryStatus]:
    """Return the wanted entries that exist. Some may have left since the caller read them.

    Raises:
        NotFoundError: none of them exists.
    """
    known = {item.entry: item for item in await stores.periodic.statuses()}
    found = [known[entry] for entry in wanted if entry in known]
    if not found:
        raise NotFoundError(
            f"no periodic entry {wanted[0]}: it may have left the configuration; 'task-run "
            "schedules list' shows all"
        )
    return found


async def _turn(
    stores: Stores, wanted: Sequence[str], turn: Callable[[list[str]], Awaitable[list[str]]]
) -> Turned:
    found = [item.entry for item in await _known(stores, wanted)]
    return Turned(await turn(found), sorted({*wanted}.difference(found)))


def view(
    item: EntryStatus,
    leader: LeaderView | None,
    now: datetime,
    ends: Mapping[str, str],
    occurrence: str = "",
) -> EntryView:
    """Return an entry as all faces show it.

    Args:
        ends: how tasks ended, by id.
        occurrence: the explanation of the last submitted task, if that has not ended.
    """
    is_held, late = item.paused or item.held_back or item.last_state, None
    if item.enabled and not is_held and item.next is not None:
        late = max(0.0, (now - item.next).total_seconds())
    ended = ends.get(item.last_id, "ended") if item.last_id else ""
    return view_of(
        EntryView,
        item,
        state=state_of(item, leader),
        why=why(item, leader, occurrence),
        late_seconds=late if late is not None and late >= _LATE_SECONDS else None,
        last_state=item.last_state or ended,
    )


async def _leader(stores: Stores, is_viewer: bool = False) -> LeaderView | None:
    found = await stores.leader()
    if found is None:
        return None
    leads = leader_view(found)
    return for_viewer(leads) if is_viewer else leads


async def _ends(stores: Stores, items: Iterable[EntryStatus]) -> Mapping[str, str]:
    """Return how the last task of each entry ended, unless it is live."""
    ids = sorted({item.last_id for item in items if item.last_id and not item.last_state})
    return await stores.results.ends(ids) if ids else {}


def schedule_of(item: EntryView) -> TaskScheduleBase | None:
    """Return the schedule of an entry; None if it is of an author's own class.

    An author's class may have the name of one of ours. Then the leader's next occurrence differs.
    """
    schedule = described(item.schedule)
    if schedule is None or item.next is None:
        return schedule
    return schedule if next_after(schedule, item.next - MICROSECOND) == item.next else None


async def calendar(items: Sequence[EntryView], now: datetime) -> list[Line]:
    """Return when entries fire in the next 24 hours. It may take seconds, so a thread does it."""
    return await asyncio.to_thread(lambda: [_line(item, now) for item in items])


def coming(item: EntryView, now: datetime) -> tuple[list[datetime], bool, ClockChange | None]:
    """Return the next occurrences of an entry, whether these are all of the next ten, and more.

    The last is the next change of the clocks in its zone.
    """
    if not item.enabled or item.next is None:
        return [], True, None
    schedule = schedule_of(item)
    if schedule is None:
        return [item.next], False, None
    return list(following(schedule, now)), True, clock_change(schedule, now)


def _line(item: EntryView, now: datetime) -> Line:
    if item.state in ("disabled", "finished"):
        return Line(item, only(None, now))
    schedule = schedule_of(item)
    if schedule is None:
        return Line(item, only(item.next, now), is_complete=False)
    begin = now.replace(minute=0, second=0, microsecond=0)
    return Line(item, [*day(schedule, now, 1), *_whole(item.schedule, begin)[1:]])


@lru_cache(maxsize=1000)
def _whole(text: str, begin: datetime) -> list[Cell]:
    """Return whole hours. They are the same for an hour, so pages that are open share them."""
    schedule = described(text)
    assert schedule is not None  # `_line` has asked
    return day(schedule, begin)
