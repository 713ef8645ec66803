"""The loop that submits what is due of the periodic entries, while this process leads.

An entry is looked at when it is due, not before: what fired last is read once for each plan and
known from then on, because nobody else may fire in our term. A new plan is made in a new term, in a
new epoch of Redis and when the configuration has changed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from nonet.client import Client
from nonet.errors import ServerUnreachableError
from nonet.outcomes import summarize
from nonet.scheduler.due import Due, Step, due
from nonet.scheduler.memory import Memory
from nonet.scheduler.plan import Entry, describe
from nonet.schedules import MICROSECOND, Overlap, next_after, takes_after
from nonet.service import is_end
from nonet.stores.broker import Submission
from nonet.stores.leadership import DeposedError
from nonet.stores.periodic import Change, Fired, Periodic

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 1.0
# An occurrence that waits for the one before it is tried again after so long, then twice as long …
_FIRST_WAIT = timedelta(milliseconds=10)
_LONGEST_WAIT = timedelta(seconds=1)
_BROKEN_WAIT = timedelta(seconds=10)
_MOST_PROBLEMS = 20

EXCLUSIVE = ("M|", "W|")  # what the lines of locks begin with that a task takes for itself


@dataclass
class _Planned:
    """An entry, and where it stands.

    Attributes:
        last: the occurrence fired or passed over last.
        look: when to look at it again; None: never, its schedule has no more.
        next: what a schedule answered that is asked only once.
        wait: the pause before the next try while it waits for the occurrence before.
    """

    entry: Entry
    last: datetime
    look: datetime | None
    next: datetime | None = None
    wait: timedelta = _FIRST_WAIT


@dataclass
class PeriodicLoop:
    """Fires periodic entries.

    Args:
        memory: the last occurrences, for when Redis has lost them.
        misfire_grace: how late an occurrence may be and still be fired for itself.

    Attributes:
        problems: entries that could not be fired at the last try, and why.
    """

    client: Client
    store: Periodic
    memory: Memory
    misfire_grace: timedelta
    problems: dict[str, str] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _planned: dict[str, _Planned] = field(default_factory=dict)
    _plans: int = 0
    _planned_for: tuple[str, int, int] | None = None
    _looked: tuple[str, datetime] | None = None

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Plan these from the next tick on."""
        self._entries = list(entries)
        self._plans += 1

    @property
    def number(self) -> int:
        """How many entries are enabled."""
        return sum(entry.enabled for entry in self._entries)

    async def tick(self, term: str, goes_on: Callable[[], bool] = lambda: True) -> float:
        """Submit what is due of every entry; one that fails does not hold up the others.

        Args:
            goes_on: asked before each occurrence: False if a stop is requested or the lease may
                be over.

        Returns:
            Seconds until something is due.

        Raises:
            DeposedError: somebody else leads.
            ServerUnreachableError: Redis does not answer.
        """
        await self.client.live_config.refresh()  # priority and size of what is submitted
        now = await self.client.broker.now()
        plan = term, self.client.broker.epoch.since, self._plans
        if self._planned_for != plan:
            await self._plan(term, now, self._entries)
            self._planned_for = plan  # unless another one was adopted meanwhile
        for planned in list(self._planned.values()):
            if not goes_on():
                return 0.0
            if planned.look is not None and planned.look <= now:
                await self._look_at(term, planned, now, goes_on)
        self._looked = (term, now)
        looks = [planned.look for planned in self._planned.values() if planned.look]
        pause = (min(looks) - now).total_seconds() if looks else _LONGEST_PAUSE
        return max(0.0, min(_LONGEST_PAUSE, pause))

    async def _look_at(
        self, term: str, planned: _Planned, now: datetime, goes_on: Callable[[], bool]
    ) -> None:
        entry = planned.entry
        try:
            await self._fire(term, planned, now, goes_on)
            self.problems.pop(entry.key, None)
        except (ServerUnreachableError, DeposedError):
            raise
        except BaseException as error:  # an author's schedule or constructor
            if is_end(error):
                raise
            why = summarize(error)
            text = f"{why.type}: {why.text}"
            if self.problems.get(entry.key) != text and len(self.problems) < _MOST_PROBLEMS:
                self.problems[entry.key] = text
            logger.error("periodic entry %s: %s", entry.key, text)
            planned.look = now + _BROKEN_WAIT

    async def _fire(
        self, term: str, planned: _Planned, now: datetime, goes_on: Callable[[], bool]
    ) -> None:
        entry = planned.entry
        decision = due(
            entry.schedule,
            planned.last,
            now,
            self.misfire_grace,
            catch_up=entry.catch_up,
            catch_up_limit=entry.catch_up_limit,
            planned=planned.next,
        )
        for step, following in _with_following(decision):
            if not goes_on():
                return
            answer = await self._submit(term, entry, step, following)
            if answer == "DEPOSED":
                raise DeposedError
            if answer == "WAITING":
                planned.look = now + planned.wait
                planned.wait = min(2 * planned.wait, _LONGEST_WAIT)
                return
            planned.last, planned.next = step.instant, following
            planned.wait = _FIRST_WAIT
            self.memory.note(entry.key, step.instant)
        planned.next = planned.look = decision.next

    async def _submit(self, term: str, entry: Entry, step: Step, following: datetime | None) -> str:
        if step.missed:
            logger.warning("%s: %d occurrences not made up for", entry.key, step.missed)
        if not step.fires:
            return await self.store.pass_over(term, entry.key, step.instant, step.missed, following)
        submission = self.prepare(entry, step.instant)
        answer = await self.store.fire(
            term,
            entry.key,
            step.instant,
            submission,
            overlap=entry.overlap or _overlap_of(submission),
            missed=step.missed,
            following=following,
        )
        if answer != "WAITING":
            logger.info("%s: occurrence %s %s", entry.key, step.instant.isoformat(), answer)
        return answer

    def prepare(self, entry: Entry, occurrence: datetime) -> Submission:
        """The task of one occurrence."""
        task_class = self.client.registry.get(entry.task_name)
        late = jitter(entry, occurrence)
        return self.client.prepare(
            task_class.arguments.build(entry.args),
            id=occurrence_id(entry.key, occurrence),
            labels={"entry": entry.key, "occurrence": occurrence.isoformat()},
            at_time=occurrence + late if late else None,
        )

    async def _plan(self, term: str, now: datetime, entries: Sequence[Entry]) -> None:
        """Bring what Redis keeps in line with the entries."""
        fired = await self.store.fired()
        enabled = {entry.key: entry for entry in entries if entry.enabled}
        lost = enabled.keys() - fired.keys()
        remembered = await self.memory.recall() if lost else {}
        changes: list[Change] = []
        planned: dict[str, _Planned] = {}
        for entry in entries:
            try:
                change, base = await self._change(
                    entry, fired.get(entry.key), remembered, term, now
                )
            except ServerUnreachableError:
                raise
            except BaseException as error:  # an author's schedule
                if is_end(error):
                    raise
                why = summarize(error)
                self.problems[entry.key] = f"{why.type}: {why.text}"
                logger.error("periodic entry %s: %s: %s", entry.key, why.type, why.text)
                continue
            changes.append(change)
            if entry.enabled:
                planned[entry.key] = _Planned(entry, base, now, next=change.next)
        known = {entry.key for entry in self._entries}
        gone = [
            Change("drop", key, key.partition("|")[0])
            for key in sorted(await self.store.known() - known)
        ]
        withdrawn = await self.store.plan(term, [*changes, *gone])
        if withdrawn is None:
            raise DeposedError
        for change in changes:
            if change.entry in withdrawn and change.again and change.entry in planned:
                planned[change.entry].last = change.again
            if change.entry in planned:
                self.memory.note(change.entry, planned[change.entry].last)
        for key in [*fired.keys() - enabled.keys(), *(change.entry for change in gone)]:
            self.memory.forget(key)
        self.problems = {key: text for key, text in self.problems.items() if key in enabled}
        self._planned = planned

    async def _change(
        self,
        entry: Entry,
        fired: Fired | None,
        remembered: Mapping[str, datetime],
        term: str,
        now: datetime,
    ) -> tuple[Change, datetime]:
        """What the plan script is to do to an entry, and from where its schedule goes on."""
        shown = _shown(entry)
        if not entry.enabled:
            return Change("off", entry.key, entry.task_name, shown=shown), now
        if fired is None:
            last = remembered.get(entry.key, now)
            verb, again = "new", None
        elif fired.prints == entry.prints or not fired.prints:
            verb, last, again = "same", fired.last, None
        else:
            verb, last, again = "turn", *self._turned(entry, fired, term, now)
        next_one = await self._next(entry, last, now, is_known=verb == "same")
        change = Change(
            verb, entry.key, entry.task_name, last, again, entry.prints, next_one, shown
        )
        return change, last

    def _turned(
        self, entry: Entry, fired: Fired, term: str, now: datetime
    ) -> tuple[datetime, datetime | None]:
        """From where a changed entry goes on, and from where if its occurrence is withdrawn.

        Another schedule holds from when we looked last, unless an occurrence of the old one had
        to wait then: what it would have fired before is nobody's loss. An occurrence that is
        withdrawn is submitted again if it is still on it.
        """
        last, before = fired.last, self._planned.get(entry.key)
        if entry.prints[0] != fired.prints[0] and not (before and before.wait > _FIRST_WAIT):
            looked = self._looked[1] if self._looked and self._looked[0] == term else now
            last = max(last, looked)
        if not takes_after(entry.schedule) or not fired.id:
            return last, None
        just_before = fired.last - MICROSECOND
        is_on_it = next_after(entry.schedule, just_before) == fired.last
        return last, just_before if is_on_it else None

    async def _next(
        self, entry: Entry, last: datetime, now: datetime, *, is_known: bool
    ) -> datetime | None:
        if takes_after(entry.schedule):
            return next_after(entry.schedule, last)
        stored = await self.store.next_of(entry.key) if is_known else None
        return stored or next_after(entry.schedule, now)


def _with_following(decision: Due) -> list[tuple[Step, datetime | None]]:
    """Each step with the occurrence after it."""
    instants = [step.instant for step in decision.steps]
    return list(zip(decision.steps, [*instants[1:], decision.next], strict=False))


def _overlap_of(submission: Submission) -> Overlap:
    lines = submission.locks.splitlines()
    return Overlap.SKIP if any(line.startswith(EXCLUSIVE) for line in lines) else Overlap.ALLOW


def _shown(entry: Entry) -> dict[str, object]:
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


def occurrence_id(entry: str, occurrence: datetime) -> str:
    """The task id of one firing: the same whoever fires it, whenever."""
    return "p-" + _digest(entry, occurrence).hex()[:32]


def jitter(entry: Entry, occurrence: datetime) -> timedelta:
    """By how much an occurrence is late on purpose: by chance, and the same for everybody."""
    share = int.from_bytes(_digest(entry.key, occurrence)[-4:]) / 2**32
    return timedelta(seconds=entry.jitter) * share


def _digest(entry: str, occurrence: datetime) -> bytes:
    return hashlib.sha256(f"{entry}@{occurrence.astimezone(UTC).isoformat()}".encode()).digest()
