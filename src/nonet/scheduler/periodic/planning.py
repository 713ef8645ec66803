"""Brings what Redis keeps of periodic entries in line with a plan, and says where each stands.

A plan is made in a new term, in a new epoch of Redis and when the configuration has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nonet.base.errors import ServerUnreachableError
from nonet.daemon.service import is_end
from nonet.rules.outcomes import ErrorSummary, summarize
from nonet.scheduler.periodic.asking import Asker
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.plan import Entry, describe
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.periodic import Change, Fired, Periodic
from nonet.tasks.schedules import MICROSECOND, next_after, takes_after

logger = logging.getLogger(__name__)

# An occurrence that waits for the one before it is tried again after so long, then twice as long …
FIRST_WAIT = timedelta(milliseconds=10)


@dataclass
class Planned:
    """An entry, and where it stands.

    Attributes:
        last: the occurrence fired or passed over last.
        look: when to look at it again; None: never, its schedule has no more.
        next: what a schedule answered that is asked only once.
        wait: the pause before the next try while it waits for the occurrence before.
        base, missed: while it waits: just before the occurrence that does, and how many older ones
            nothing makes good for, so that these are not counted again at each try.
    """

    entry: Entry
    last: datetime
    look: datetime | None
    next: datetime | None = None
    wait: timedelta = FIRST_WAIT
    base: datetime | None = None
    missed: int = 0

    def fired(self, instant: datetime, following: datetime | None) -> None:
        """Its occurrence of an instant was submitted, or passed over."""
        self.last, self.next = max(self.last, instant), following
        self.wait, self.base, self.missed = FIRST_WAIT, None, 0


@dataclass(frozen=True)
class Situation:
    """What a plan is made from, beside the entries.

    Attributes:
        term: of the leader.
        now: by the clock of the server.
        looked: until when the plan before this one has fired what was due; None: it was not ours.
        before: where the entries stood in that plan.
    """

    term: str
    now: datetime
    looked: datetime | None
    before: Mapping[str, Planned]


@dataclass(frozen=True)
class Plan:
    """Where the entries stand.

    Attributes:
        planned: by their identity.
        problems: entries that could not be planned, and why; the plan is to be made again.
    """

    planned: Mapping[str, Planned]
    problems: Mapping[str, ErrorSummary]


class Planner:
    """Makes plans.

    Args:
        memory: the last occurrences, for when Redis has lost them, or some of them.
        asker: asks the schedules.
    """

    def __init__(self, store: Periodic, memory: Memory, asker: Asker) -> None:
        self._store = store
        self._memory = memory
        self._asker = asker

    async def plan(self, entries: Sequence[Entry], situation: Situation) -> Plan:
        """Let Redis know these entries, and no others.

        Raises:
            DeposedError: somebody else leads.
            ServerUnreachableError: Redis does not answer.
        """
        fired = await self._store.fired()
        remembered = await self._memory.recall()
        found = await asyncio.gather(
            *(
                self._attempt(entry, fired.get(entry.key), remembered.get(entry.key), situation)
                for entry in entries
            )
        )
        changes = [item[0] for item in found if isinstance(item, tuple)]
        planned = {
            # Nothing is due of it before its next occurrence; who has none has no more.
            entry.key: Planned(entry, item[1], item[0].next, next=item[0].next)
            for entry, item in zip(entries, found, strict=True)
            if entry.enabled and isinstance(item, tuple)
        }
        known = await self._store.known() - {entry.key for entry in entries}
        gone = [Change("drop", key, key.partition("|")[0]) for key in sorted(known)]
        withdrawn = await self._store.plan(situation.term, [*changes, *gone])
        if withdrawn is None:
            raise DeposedError
        for change in changes:
            if change.entry in withdrawn and change.again and change.entry in planned:
                planned[change.entry].last = change.again
                planned[change.entry].look = situation.now
        self._remember(planned, {entry.key for entry in entries if entry.enabled}, remembered)
        problems = {
            entry.key: item
            for entry, item in zip(entries, found, strict=True)
            if isinstance(item, ErrorSummary)
        }
        return Plan(planned, problems)

    async def _attempt(
        self,
        entry: Entry,
        fired: Fired | None,
        remembered: datetime | None,
        situation: Situation,
    ) -> tuple[Change, datetime] | ErrorSummary:
        """What `_change` says, or what an author's schedule raised: it hurts no other entry."""
        try:
            return await self._change(entry, _later(fired, remembered), remembered, situation)
        except ServerUnreachableError:
            raise
        except BaseException as error:
            if is_end(error):
                raise
            return summarize(error)

    def _remember(
        self, planned: Mapping[str, Planned], enabled: set[str], remembered: Mapping[str, datetime]
    ) -> None:
        for key, item in planned.items():
            self._memory.note(key, item.last)
        for key in remembered.keys() - enabled:
            self._memory.forget(key)

    async def _change(
        self,
        entry: Entry,
        fired: Fired | None,
        remembered: datetime | None,
        situation: Situation,
    ) -> tuple[Change, datetime]:
        """What the plan script is to do to an entry, and from where its schedule goes on."""
        now, again = situation.now, None
        if not entry.enabled:
            return Change("off", entry.key, entry.task_name, shown=shown(entry)), now
        if fired is None:
            verb, last = "new", remembered or now
        elif fired.prints == entry.prints or not fired.prints:
            verb, last = "same", fired.last
        else:
            verb, last = "turn", self._turned(entry, fired, situation)
            again = await self._again(entry, fired)
        following = await self._next(entry, last, now, is_known=verb == "same")
        name, prints = entry.task_name, entry.prints
        return Change(verb, entry.key, name, last, again, prints, following, shown(entry)), last

    def _turned(self, entry: Entry, fired: Fired, situation: Situation) -> datetime:
        """From where a changed entry goes on.

        Another schedule holds from when we looked last, unless an occurrence of the old one had
        to wait then: what it would have fired before is nobody's loss.
        """
        before = situation.before.get(entry.key)
        has_waited = situation.looked and before and before.wait > FIRST_WAIT
        if entry.prints[0] == fired.prints[0] or has_waited:
            return fired.last
        return max(fired.last, situation.looked or situation.now)

    async def _again(self, entry: Entry, fired: Fired) -> datetime | None:
        """From where it goes on if its occurrence is withdrawn that is still on its schedule."""
        schedule, before = entry.schedule, fired.last - MICROSECOND
        if not takes_after(schedule) or not fired.id:
            return None
        found = await self._asker.ask(entry.key, schedule, lambda: next_after(schedule, before))
        return before if found == fired.last else None

    async def _next(
        self, entry: Entry, last: datetime, now: datetime, *, is_known: bool
    ) -> datetime | None:
        schedule = entry.schedule
        is_asked_once = not takes_after(schedule)
        stored = await self._store.next_of(entry.key) if is_asked_once and is_known else None
        after = now if is_asked_once else last
        return stored or await self._asker.ask(
            entry.key, schedule, lambda: next_after(schedule, after)
        )


def _later(fired: Fired | None, remembered: datetime | None) -> Fired | None:
    """What Redis says, unless it has older data than what is remembered."""
    if fired is None or remembered is None or remembered <= fired.last:
        return fired
    return replace(fired, last=remembered, id="")


def shown(entry: Entry) -> dict[str, object]:
    """What operators are told of an entry."""
    return {
        "task": entry.task_name,
        "vo": entry.vo or "",
        "name": entry.name,
        "schedule": describe(entry.schedule),
        "origin": entry.origin,
        "enabled": entry.enabled,
        "overlap": entry.overlap or "",
        "catch_up": entry.catch_up,
        "jitter": entry.jitter,
        "args": dict(entry.args),
    }
