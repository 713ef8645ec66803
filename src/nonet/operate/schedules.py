"""Periodic entries for operators: their states, why one does not run, and their leader."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nonet.operate.calendar import FULL, Cell, day, following, only
from nonet.rules.findings.remedies import of_pause
from nonet.rules.pauses import Pause, in_full
from nonet.tasks.schedules import MICROSECOND, TaskScheduleBase, next_after
from nonet.tasks.schedules.description import described

# Commands import this module, and redis is slower to import than `--help` may take.
if TYPE_CHECKING:
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus

NO_LEADER = "no scheduler leads, start a task-scheduler"
STATES = ("planned", "waiting", "running", "paused", "disabled", "finished", "broken")


@dataclass(frozen=True, slots=True)
class Line:
    """An entry in the calendar.

    Attributes:
        state: one of `STATES`.
        cells: the next hours.
        is_complete: False: only the next occurrence is known, because its schedule is of an
            author's own class.
    """

    item: EntryStatus
    state: str
    cells: Sequence[Cell]
    is_complete: bool = True

    @property
    def total(self) -> int:
        """How many occurrences there are, or a lower bound if `is_more`."""
        return sum(cell.count for cell in self.cells)

    @property
    def is_more(self) -> bool:
        """Whether some hour has more occurrences than were counted."""
        return any(cell.is_more for cell in self.cells)

    @property
    def is_band(self) -> bool:
        """Whether each hour is full: one band says more than 24 numbers."""
        return all(cell.level == FULL for cell in self.cells[1:])


def schedule_of(item: EntryStatus) -> TaskScheduleBase | None:
    """Return the schedule of an entry; None if it is of an author's own class.

    An author's class may have the name of one of ours. Then the leader's next occurrence differs.
    """
    schedule = described(item.schedule)
    if schedule is None or item.next is None:
        return schedule
    return schedule if next_after(schedule, item.next - MICROSECOND) == item.next else None


def calendar(items: Iterable[EntryStatus], leader: Leader | None, now: datetime) -> list[Line]:
    """Return when entries fire in the next 24 hours. It may take seconds: call it in a thread."""
    return [_line(item, state_of(item, leader), now) for item in items]


def coming(item: EntryStatus, now: datetime) -> tuple[list[datetime], bool]:
    """Return the next occurrences of an entry, and whether these are all of the next ten.

    It may take a while: call it in a thread.
    """
    if not item.enabled or item.next is None:
        return [], True
    schedule = schedule_of(item)
    if schedule is None:
        return [item.next], False
    return list(following(schedule, now)), True


def _line(item: EntryStatus, state: str, now: datetime) -> Line:
    if state in ("disabled", "finished"):
        return Line(item, state, only(None, now))
    schedule = schedule_of(item)
    if schedule is None:
        return Line(item, state, only(item.next, now), is_complete=False)
    begin = now.replace(minute=0, second=0, microsecond=0)
    return Line(item, state, [*day(schedule, now, 1), *_whole(item.schedule, begin)[1:]])


@lru_cache(maxsize=1000)
def _whole(text: str, begin: datetime) -> list[Cell]:
    """Return whole hours. They are the same for an hour, so pages that are open share them."""
    schedule = described(text)
    assert schedule is not None  # `_line` has asked
    return day(schedule, begin)


def why(item: EntryStatus, leader: Leader | None, occurrence: str) -> str:
    """Return one sentence: the first condition that keeps an entry from running now.

    Args:
        occurrence: the explanation of the last submitted task, if that has not ended.
    """
    match state_of(item, leader):
        case "disabled":
            by = "its class" if item.origin == "class" else item.origin
            return f"disabled by {by}"
        case "paused" if item.paused:
            command = f"task-run schedules resume {options(item)}"
            return f"paused since {item.paused}; resume with '{command}'"
        case "paused" if item.held_back:
            return _paused(item.held_back)
        case "broken":
            return f"cannot be fired: {problems(leader)[item.entry]}"
        case "waiting" | "running":
            return f"task {item.last_id}: {occurrence or item.last_state}"
        case "finished":
            return "its schedule has no more occurrences"
    if reason := held_up(leader):
        return f"nothing fires: {reason}"
    return f"fires at {item.next:%Y-%m-%d %H:%M:%SZ}"


def held_up(leader: Leader | None) -> str:
    """Explain why no entry fires at all; empty if entries fire."""
    if leader is None:
        return NO_LEADER
    published = told(leader)
    failure = published.get("loops", {}).get("periodic entries", {}).get("error", "")
    return str(published.get("waits_for") or failure)


def in_words(leader: Leader | None) -> str:
    """Describe the leading scheduler, and whether the loop that fires entries runs."""
    if leader is None:
        return f"nothing fires: {NO_LEADER}"
    published = told(leader)
    text = f"leader {published.get('name', leader.owner)}, term {leader.term}"
    if published.get("since"):
        text += f", since {published['since']}"
    pulse = published.get("loops", {}).get("periodic entries", {})
    if pulse.get("last"):
        ago = (datetime.now(UTC) - datetime.fromisoformat(pulse["last"])).total_seconds()
        text += f", last tick {max(0.0, ago):.1f} s ago"
    if reason := held_up(leader):
        text += f"; nothing fires yet: {reason}"
    return text


def options(item: EntryStatus) -> str:
    """Return the command-line options that select an entry."""
    vo = ["--vo", item.vo] if item.vo else []
    return shlex.join([item.task, *vo, "--name", item.name])


def held_back(found: Iterable[EntryStatus]) -> list[str]:
    """Return the pauses that keep tasks of entries from starting: who, when and why."""
    return sorted({_paused(item.held_back) for item in found if item.held_back})


def _paused(pause: Pause) -> str:
    return f"{in_full(pause)}; resume with '{of_pause(pause.what)}'"


def state_of(item: EntryStatus, leader: Leader | None) -> str:
    """Return one of `STATES`."""
    if not item.enabled:
        return "disabled"
    if item.paused:
        return "paused"
    if item.entry in problems(leader):
        return "broken"
    if item.held_back:
        return "paused"
    if item.last_state:
        return "running" if item.last_state in ("running", "dying") else "waiting"
    return "planned" if item.next else "finished"


def problems(leader: Leader | None) -> dict[str, str]:
    """Return why entries could not be fired at the last try, by entry."""
    broken: dict[str, str] = told(leader).get("broken", {})
    return broken


def told(leader: Leader | None) -> dict[str, Any]:
    """Return the status that the leader publishes."""
    published: dict[str, Any] = json.loads(leader.info) if leader and leader.info else {}
    return published
