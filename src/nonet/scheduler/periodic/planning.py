"""Update the periodic entries in Redis to a plan, and determine where each entry continues.

A plan is made in a new term, in a new epoch of Redis, and when the configuration has changed. In
the last case, entries that have not changed are not planned again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial

from nonet.base.errors import ServerUnreachableError
from nonet.config.entries import Entry
from nonet.daemon.service import is_end
from nonet.rules.entry_names import DATABASE
from nonet.rules.outcomes import ErrorSummary, summarize
from nonet.scheduler.periodic.asking import Asker
from nonet.scheduler.periodic.memory import Memory
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.periodic import Change, Fired, Periodic
from nonet.tasks.schedules import (
    MICROSECOND,
    CronSchedule,
    TaskScheduleBase,
    next_after,
    takes_after,
)

logger = logging.getLogger(__name__)

# An occurrence that waits for the previous one is retried after this time, which doubles each time.
FIRST_WAIT = timedelta(milliseconds=10)


@dataclass
class Planned:
    """An entry and its progress.

    Attributes:
        last: the last occurrence that fired or was skipped.
        look: when to check it again; None: its schedule is exhausted.
        next: the stored answer of a schedule that is asked only once.
        wait: the pause before the next try while an occurrence waits for the previous one.
        base, missed: the instant just before the waiting occurrence, and the number of older ones
            that never fire. Retries use them instead of counting again.
    """

    entry: Entry
    last: datetime
    look: datetime | None
    next: datetime | None = None
    wait: timedelta = FIRST_WAIT
    base: datetime | None = None
    missed: int = 0

    def fired(self, instant: datetime, following: datetime | None) -> None:
        """Record that the occurrence at an instant was submitted or skipped."""
        self.last, self.next = max(self.last, instant), following
        self.wait, self.base, self.missed = FIRST_WAIT, None, 0


@dataclass(frozen=True)
class Situation:
    """The inputs of a plan besides the entries.

    Attributes:
        term: term of the leader.
        now: current time, by the clock of the server.
        looked: when the previous plan last fired due entries; None: another leader made it.
        before: the progress of the entries in the previous plan.
        keeps: the previous plan was made in this term and epoch, so it holds for unchanged entries.
        is_whole: all entries are known. False: SQL has not answered yet, so entries of the database
            may be missing: they are not deleted.
    """

    term: str
    now: datetime
    looked: datetime | None
    before: Mapping[str, Planned]
    keeps: bool = False
    is_whole: bool = True

    def kept(self, entry: Entry) -> Planned | None:
        """Return the progress of an entry that need not be planned again."""
        before = self.before.get(entry.key) if self.keeps else None
        # The fingerprints tell 1 from True.
        is_same = before and before.entry == entry and before.entry.prints == entry.prints
        return before if is_same else None


@dataclass(frozen=True)
class Plan:
    """The progress of all entries.

    Attributes:
        planned: by the key of the entry.
        problems: entries that could not be planned, and why; such a plan is made again.
    """

    planned: Mapping[str, Planned]
    problems: Mapping[str, ErrorSummary]


class Planner:
    """Make plans.

    Args:
        memory: the last occurrences, in case Redis has lost some or all of them.
        asker: asks the schedules.
    """

    def __init__(self, store: Periodic, memory: Memory, asker: Asker) -> None:
        self._store = store
        self._memory = memory
        self._asker = asker

    async def plan(self, entries: Sequence[Entry], situation: Situation) -> Plan:
        """Store these entries in Redis, and delete all others.

        Raises:
            DeposedError: another scheduler leads.
            ServerUnreachableError: Redis does not answer.
        """
        kept = {entry.key: last for entry in entries if (last := situation.kept(entry))}
        todo = [entry for entry in entries if entry.key not in kept]
        fired = await self._store.fired()
        remembered = await self._memory.recall()
        found = await asyncio.gather(
            *(
                self._attempt(entry, fired.get(entry.key), remembered.get(entry.key), situation)
                for entry in todo
            )
        )
        changes = [item[0] for item in found if isinstance(item, tuple)]
        planned = kept | {
            # The entry need not be checked before its next occurrence. Without a next occurrence,
            # its schedule is exhausted.
            entry.key: Planned(entry, item[1], item[0].next, next=item[0].next)
            for entry, item in zip(todo, found, strict=True)
            if entry.enabled and isinstance(item, tuple)
        }
        keys = {entry.key for entry in entries}
        known = await self._store.known() - keys
        if not situation.is_whole:
            known -= await self._store.of_origin(DATABASE)
        gone = [Change("drop", key, key.partition("|")[0]) for key in sorted(known)]
        withdrawn = await self._store.plan(situation.term, [*changes, *gone])
        if withdrawn is None:
            raise DeposedError
        for change in changes:
            if change.entry in withdrawn and change.again and change.entry in planned:
                planned[change.entry].last = change.again
                planned[change.entry].look, planned[change.entry].next = situation.now, None
        for key, item in planned.items():
            self._memory.note(key, item.last)
        enabled = {entry.key for entry in entries if entry.enabled}
        for key in remembered.keys() - enabled:
            if situation.is_whole or key in keys:
                self._memory.forget(key)
        problems = {
            entry.key: item
            for entry, item in zip(todo, found, strict=True)
            if isinstance(item, ErrorSummary)
        }
        return Plan(planned, problems)

    async def _attempt(
        self, entry: Entry, fired: Fired | None, remembered: datetime | None, situation: Situation
    ) -> tuple[Change, datetime] | ErrorSummary:
        """Plan one entry; an error of its schedule affects no other entry."""
        try:
            return await self._change(entry, _later(fired, remembered), remembered, situation)
        except ServerUnreachableError:
            raise
        except BaseException as error:
            if is_end(error):
                raise
            return summarize(error)

    async def _change(
        self, entry: Entry, fired: Fired | None, remembered: datetime | None, situation: Situation
    ) -> tuple[Change, datetime]:
        """Return the change for the plan script to make, and from when the schedule continues."""
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
        """Return the instant from which a changed entry continues.

        A new schedule applies from the last check, or from the last fired occurrence if an
        occurrence of the old schedule was waiting at that check.
        """
        before = situation.before.get(entry.key)
        has_waited = situation.looked and before and before.wait > FIRST_WAIT
        if entry.prints[0] == fired.prints[0] or has_waited:
            return fired.last
        return max(fired.last, situation.looked or situation.now)

    async def _again(self, entry: Entry, fired: Fired) -> datetime | None:
        """Return from when an entry continues if its withdrawn occurrence is still scheduled."""
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
        question = _next_of_cron if type(schedule) is CronSchedule else next_after
        return stored or await self._asker.ask(
            entry.key, schedule, partial(question, schedule, after), is_brief=True
        )


# Thousands of entries of programs may share an expression, which takes 0.1 ms to evaluate.
_next_of_cron: Callable[[TaskScheduleBase, datetime], datetime | None]
_next_of_cron = lru_cache(maxsize=4096)(next_after)


def _later(fired: Fired | None, remembered: datetime | None) -> Fired | None:
    """Return the state in Redis, unless the memory is newer."""
    if fired is None or remembered is None or remembered <= fired.last:
        return fired
    return replace(fired, last=remembered, id="")


def shown(entry: Entry) -> dict[str, object]:
    """Return the description of an entry for operators."""
    return {
        "task": entry.task_name,
        "vo": entry.vo or "",
        "name": entry.name,
        "schedule": entry.description,
        "origin": entry.origin,
        "enabled": entry.enabled,
        "overlap": entry.overlap or "",
        "catch_up": entry.catch_up,
        "jitter": entry.jitter,
        "args": dict(entry.args),
    }
