"""Submit the periodic entries that are due; runs in the leader.

The last occurrence of each entry is read once for each plan. It stays known, because no other
scheduler may fire during this term, so an entry is checked only when it is due.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from nonet.base.errors import ServerUnreachableError
from nonet.client.client import Client
from nonet.config.entries import Entry, merged, overlap_of
from nonet.daemon.service import is_end
from nonet.rules.outcomes import ErrorSummary, summarize
from nonet.scheduler.periodic.asking import Asker
from nonet.scheduler.periodic.due import Due, Occurrence, count, due
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.planning import Planned, Planner, Situation
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.periodic import Periodic
from nonet.stores.queue.submissions import Submission
from nonet.tasks.schedules import MICROSECOND, Overlap, misfire_grace_of, takes_after
from nonet.tasks.task import Options
from nonet.telemetry.tracing import describe_sent, sending

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 1.0
_LONGEST_WAIT = timedelta(seconds=1)
# A broken entry is retried after this time. A plan with a broken entry is remade after this time,
# then after twice as long, and so on.
_BROKEN_WAIT = timedelta(seconds=10)
_LONGEST_BROKEN = timedelta(seconds=320)
# A waiting entry pauses for this many times as long as its schedule took to answer.
_SHARE = 20
_MOST_PROBLEMS = 20
# Entries that are fired before others are looked for: when thousands are due, further ones may
# become due meanwhile. A full batch is fired at the same time. Fewer entries are fired one after
# the other, so that none is fired after the signal to stop.
_BATCH = 100
# An entry that is less late than this has few occurrences to decide on.
_LITTLE_LATE = timedelta(minutes=1)

_ANY_LATENESS = timedelta(seconds=1e9)


class PeriodicLoop:
    """Fire periodic entries.

    Args:
        memory: the last occurrences, in case Redis has lost them.
        misfire_grace: how late an occurrence may fire as if in time, unless its entry says so or
            its interval is shorter.

    Attributes:
        fires_all: fire every missed occurrence, whatever its entry says.
        problems: entries that could not be fired at the last try, and why.
    """

    def __init__(
        self, client: Client, store: Periodic, memory: Memory, misfire_grace: timedelta
    ) -> None:
        self.problems: dict[str, str] = {}
        self.fires_all = False
        self.memory = memory
        self._client = client
        self._store = store
        self._misfire_grace = misfire_grace
        self._asker = Asker()
        self._planner = Planner(store, memory, self._asker)
        self._configured: Sequence[Entry] = ()
        self._stored: Sequence[Entry] | None = None
        self._entries: list[Entry] = []
        self._left_out: Mapping[str, str] = {}
        self._adopted = 0
        self._planned: Mapping[str, Planned] = {}
        self._planned_for: tuple[str, int, int] | None = None
        self._plan_again: datetime | None = None
        self._plan_wait = _BROKEN_WAIT
        self._term = ""
        self._began: datetime | None = None
        self._looked: datetime | None = None

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Plan these entries of classes and configuration from the next tick on."""
        self._configured = entries
        self._merge()

    def adopt_stored(self, entries: Sequence[Entry]) -> None:
        """Plan these entries of the database, too, from the next tick on."""
        if entries or self._stored != entries:
            self._stored = entries
            self._merge()

    def _merge(self) -> None:
        self._entries, problems = merged(self._configured, self._stored or ())
        for key in problems.keys() - self._left_out.keys():
            logger.warning("schedule not planned: %s", problems[key])
        self._left_out = dict(islice(problems.items(), _MOST_PROBLEMS))
        self._adopted += 1

    def nobody_led_until(self, instant: datetime) -> None:
        """Treat everything that was due by `instant` as late: no overlap policy skips it.

        This happens at the beginning of a term, and when a test has moved the clock.
        """
        self._began = instant

    @property
    def is_planned(self) -> bool:
        """Whether the entries adopted last are planned in the current term."""
        return self._adopted > 0 and self._planned_for == self._plan_for(self._term)

    @property
    def number(self) -> int:
        """Number of enabled entries."""
        return sum(entry.enabled for entry in self._entries)

    def overdue(self, now: datetime) -> Iterator[tuple[str, int]]:
        """Yield the class of each entry that is due, and how many of its occurrences are."""
        for planned in self._planned.values():
            entry = planned.entry
            if planned.look and planned.look <= now:
                known = takes_after(entry.schedule)
                yield entry.task_name, count(entry.schedule, planned.last, now) if known else 1

    async def tick(
        self, term: str, still_runs: Callable[[], bool] = lambda: True, *, may_fire: bool = True
    ) -> float:
        """Submit the due occurrences of some entries; a failing entry does not delay the others.

        Args:
            still_runs: called before each occurrence; returns False if a stop is requested or the
                lease may be over.
            may_fire: False: plan the entries, but submit nothing; occurrences due meanwhile are
                late.

        Returns:
            Seconds until something is due; 0 if more entries are due already.

        Raises:
            DeposedError: another scheduler leads.
            ServerUnreachableError: Redis does not answer.
        """
        await self._client.live_config.refresh()  # overrides of priority and size
        now, asked = await self._client.stores.broker.now(), time.monotonic()
        await self._plan(term, now)
        if not may_fire:
            return _LONGEST_PAUSE
        due = [item for item in self._planned.values() if item.look and item.look <= now]
        found = _batch(due)
        decisions = await asyncio.gather(
            *(self._decide(planned, now) for planned in found), return_exceptions=True
        )
        fires = [
            partial(self._look_at, term, planned, decision, _since(now, asked), still_runs)
            for planned, decision in zip(found, decisions, strict=True)
        ]
        if len(fires) == _BATCH:
            ends = await asyncio.gather(*(fire() for fire in fires), return_exceptions=True)
            if error := next((end for end in ends if isinstance(end, BaseException)), None):
                raise error
            if not all(ends):
                return 0.0
        else:
            for fire in fires:
                if not await fire():
                    return 0.0
        if len(found) == len(due):
            self._looked = now
        return self._pause(_since(now, asked))

    def _pause(self, now: datetime) -> float:
        looks = [planned.look for planned in self._planned.values() if planned.look]
        if not looks:
            return _LONGEST_PAUSE
        return max(0.0, min(_LONGEST_PAUSE, (min(looks) - now).total_seconds()))

    def _plan_for(self, term: str) -> tuple[str, int, int]:
        return term, self._client.stores.broker.epoch.since, self._adopted

    async def _plan(self, term: str, now: datetime) -> None:
        """Make a plan, unless there is one for this term, this epoch and these entries."""
        wanted = self._plan_for(term)
        is_due = self._plan_again is not None and now >= self._plan_again
        if self._planned_for == wanted and not is_due:
            return
        self._plan_wait = min(2 * self._plan_wait, _LONGEST_BROKEN) if is_due else _BROKEN_WAIT
        if term != self._term:
            self._term, self._began, self._looked = term, now, None
        keeps = self._planned_for is not None and self._planned_for[:2] == wanted[:2]
        self._planned_for = None  # if Redis fails meanwhile, all entries are planned again
        plan = await self._planner.plan(
            self._entries,
            Situation(term, now, self._looked, self._planned, keeps, self._stored is not None),
        )
        self._planned = plan.planned
        self._planned_for = wanted  # other entries may have been adopted meanwhile
        self._plan_again = now + self._plan_wait if plan.problems else None
        names = {entry.key for entry in self._entries if entry.enabled}
        kept = {key: text for key, text in self.problems.items() if key in names}
        self.problems = {**kept, **self._left_out}
        for key, why in plan.problems.items():
            self._note_problem(key, why)

    async def _look_at(
        self,
        term: str,
        planned: Planned,
        decision: tuple[Due, timedelta] | BaseException,
        now: datetime,
        still_runs: Callable[[], bool],
    ) -> bool:
        """Fire an entry; return False if it was left to the next tick."""
        if not still_runs() or self._planned_for != self._plan_for(term):
            return False
        try:
            if isinstance(decision, BaseException):
                raise decision
            await self._fire(term, planned, decision, now, still_runs)
            self.problems.pop(planned.entry.key, None)
        except (ServerUnreachableError, DeposedError):
            raise
        except BaseException as error:  # an author's schedule or constructor
            if is_end(error):
                raise
            self._note_problem(planned.entry.key, summarize(error))
            planned.look = now + _BROKEN_WAIT
        return True

    def _note_problem(self, key: str, why: ErrorSummary) -> None:
        text = why.brief
        if self.problems.get(key) != text:
            logger.error(
                "periodic entry failed: entry=%s error=%s\n%s", key, text, why.traceback.rstrip()
            )
            if key in self.problems or len(self.problems) < _MOST_PROBLEMS:
                self.problems[key] = text

    async def _fire(
        self,
        term: str,
        planned: Planned,
        decided: tuple[Due, timedelta],
        now: datetime,
        still_runs: Callable[[], bool],
    ) -> None:
        decision, took = decided
        for step, following in _with_following(decision):
            if not still_runs():
                return
            answer = await self._submit(term, planned.entry, step, following)
            if answer == "DEPOSED":
                raise DeposedError
            if answer == "WAITING":
                self._wait(planned, step, now, took)
                return
            planned.fired(step.instant, following)
            self.memory.note(planned.entry.key, planned.last)
        planned.next = planned.look = decision.next

    async def _decide(self, planned: Planned, now: datetime) -> tuple[Due, timedelta]:
        """Decide which occurrences of an entry are due, and measure how long its schedule took.

        If an occurrence waits, start from it, so that older ones are not computed again.
        """
        entry, asked = planned.entry, time.monotonic()
        question = partial(
            self._due_of, entry, planned.base or planned.last, now, planned=planned.next
        )
        is_brief = planned.next is not None and now - planned.next < _LITTLE_LATE
        decision = await self._asker.ask(entry.key, entry.schedule, question, is_brief=is_brief)
        if planned.missed and decision.steps:
            first, *others = decision.steps
            steps = [replace(first, missed=first.missed + planned.missed), *others]
            decision = replace(decision, steps=steps)
        return decision, timedelta(seconds=time.monotonic() - asked)

    def _due_of(
        self, entry: Entry, last: datetime | None, now: datetime, *, planned: datetime | None
    ) -> Due:
        grace = self._misfire_grace
        if self.fires_all:
            grace = _ANY_LATENESS
        elif entry.misfire_grace is not None:
            grace = timedelta(seconds=entry.misfire_grace)
        else:
            grace = misfire_grace_of(entry.schedule, now, grace)
        return due(
            entry.schedule,
            last,
            now,
            grace,
            catch_up=entry.catch_up,
            catch_up_limit=entry.catch_up_limit,
            planned=planned,
        )

    def _wait(self, planned: Planned, step: Occurrence, now: datetime, took: timedelta) -> None:
        """Retry soon, then less often: the previous occurrence has not begun, or not ended."""
        if planned.wait >= _LONGEST_WAIT and planned.base is None:
            logger.warning(
                "occurrence waits for the one before, see 'task-run schedules show': entry=%s",
                planned.entry.key,
            )
        if planned.wait >= _LONGEST_WAIT or planned.base is not None:
            planned.base, planned.missed = step.instant - MICROSECOND, step.missed
        planned.look = now + max(planned.wait, _SHARE * took)
        planned.wait = min(2 * planned.wait, _LONGEST_WAIT)

    async def _submit(
        self, term: str, entry: Entry, step: Occurrence, following: datetime | None
    ) -> str:
        if not step.fires:
            answer = await self._store.pass_over(
                term, entry.key, step.instant, step.missed, following
            )
        else:
            with sending() as trace:
                submission = self.prepare(entry, step.instant, trace)
                if trace:
                    describe_sent([submission])
                answer = await self._store.fire(
                    term,
                    entry.key,
                    step.instant,
                    submission,
                    overlap=self._overlap(entry, submission, step),
                    missed=step.missed,
                    following=following,
                )
        if answer == "WAITING":
            return answer
        if step.missed:
            logger.warning("missed occurrences: entry=%s number=%d", entry.key, step.missed)
        logger.info("occurrence %s: entry=%s at=%s", answer, entry.key, step.instant.isoformat())
        return answer

    def _overlap(self, entry: Entry, submission: Submission, step: Occurrence) -> str:
        """Return what the occurrence does while the previous one still runs.

        Several occurrences may be late because no scheduler led. They must not be skipped because
        the previous late one still runs.
        """
        overlap = entry.overlap or overlap_of(submission.locks)
        is_late = self._began is not None and step.instant <= self._began
        return "late" if overlap is Overlap.SKIP and is_late else overlap

    def prepare(self, entry: Entry, occurrence: datetime, trace: str = "") -> Submission:
        """Build the task of one occurrence."""
        task_class = self._client.registry.get(entry.task_name)
        late, args, labels = jitter(entry, occurrence), entry.args, dict[str, Any]()
        if entry.envelope:
            content = self._client.envelopes.read_again(entry.name, entry.envelope)
            args, labels = content.args, content.labels
        options = Options(
            id=occurrence_id(entry.key, occurrence),
            labels={**labels, "entry": entry.key, "occurrence": occurrence.isoformat()},
            # Clients use a clock that tests do not move.
            at_time=occurrence + late - self._client.stores.broker.moved if late else None,
        )
        task = task_class.arguments.build(args)
        return self._client.envelopes.prepare(task, options, trace=trace, schedule=entry.schedule)


def _batch(due: list[Planned]) -> list[Planned]:
    """Return the due entries to fire next, the longest waiting first.

    Half of a full batch are the entries that fired last: a delay hurts a secondly entry more than a
    daily one.
    """
    due = sorted(due, key=lambda item: item.look or item.last)
    if len(due) <= _BATCH:
        return due
    half = _BATCH // 2
    return [*due[:half], *heapq.nlargest(half, due[half:], key=lambda item: item.last)]


def _since(now: datetime, asked: float) -> datetime:
    """Return the current time, from the time that the server reported at `asked` (monotonic)."""
    return now + timedelta(seconds=time.monotonic() - asked)


def _with_following(decision: Due) -> list[tuple[Occurrence, datetime | None]]:
    """Pair each step with the occurrence after it."""
    instants = [step.instant for step in decision.steps]
    return list(zip(decision.steps, [*instants[1:], decision.next], strict=False))


def occurrence_id(entry: str, occurrence: datetime) -> str:
    """Return the task id of an occurrence: the same in every scheduler, at any time."""
    return "p-" + _digest(entry, occurrence).hex()[:32]


def jitter(entry: Entry, occurrence: datetime) -> timedelta:
    """Return the jitter of an occurrence: random, but the same in every scheduler."""
    share = int.from_bytes(_digest(entry.key, occurrence)[-4:]) / 2**32
    return timedelta(seconds=entry.jitter) * share


def _digest(entry: str, occurrence: datetime) -> bytes:
    return hashlib.sha256(f"{entry}@{occurrence.astimezone(UTC).isoformat()}".encode()).digest()
