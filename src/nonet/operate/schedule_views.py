"""Rules of schedules as users give them; entries, previews and calendars as they see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field

from nonet.base.durations import duration
from nonet.base.errors import ConfigurationError, InvalidArgumentsError
from nonet.operate.calendar import FULL, Cell, ClockChange
from nonet.operate.entry_state import State
from nonet.operate.lists import Text
from nonet.rules.periodic import EntryStatus
from nonet.tasks.schedules import (
    CronSchedule,
    IntervalSecondsSchedule,
    RRuleSchedule,
    TaskScheduleBase,
    build_schedule,
)
from nonet.tasks.schedules.description import described, in_words, zone_of

Kind = Literal["cron", "rrule", "every"]
_CLASSES: Mapping[Kind, str] = {
    "cron": "CronSchedule",
    "rrule": "RRuleSchedule",
    "every": "IntervalSecondsSchedule",
}


class Rule(BaseModel):
    """When a schedule fires."""

    kind: Kind = Field(description="How to read `rule`.")
    rule: Annotated[Text, Field(min_length=1)] = Field(
        description="Five fields of cron or an @alias; a rule of RFC 5545; or an interval: `15m`."
    )
    timezone: Text = Field(default="", description="IANA name, for cron and rrule; empty: UTC.")

    def __str__(self) -> str:
        return f"{self.kind} {self.rule}"

    def made(self) -> TaskScheduleBase:
        """Return the schedule.

        Raises:
            InvalidArgumentsError: the rule or the time zone is wrong.
        """
        try:
            is_interval = self.kind == "every"
            arg = duration(self.rule, "s").total_seconds() if is_interval else self.rule
            return build_schedule(_CLASSES[self.kind], arg, self.timezone or None)
        except (ConfigurationError, ValueError) as error:
            raise InvalidArgumentsError("the schedule", [f"{self.kind}: {error}"]) from None

    @classmethod
    def of(cls, schedule: str) -> Rule:
        """Return the rule of a stored schedule, as `describe` wrote it."""
        made = described(schedule)
        if isinstance(made, IntervalSecondsSchedule):
            return cls(kind="every", rule=f"{made.seconds:.15g}s")
        if isinstance(made, CronSchedule):
            return cls(kind="cron", rule=made.expression, timezone=made.timezone)
        assert isinstance(made, RRuleSchedule)  # no others are stored
        return cls(kind="rrule", rule=" ".join(made.rule.split()), timezone=made.timezone)


class Described:
    """The schedule of a view, for people."""

    __slots__ = ()
    schedule: str

    @property
    def rule(self) -> str:
        """Its schedule, for people."""
        return in_words(self.schedule)

    @property
    def zone(self) -> str:
        """The time zone of its schedule."""
        return zone_of(self.schedule)

    def local(self, at: datetime | None) -> str:
        """Return a time in its zone, with the offset; empty if that is UTC."""
        if at is None or self.zone == "UTC":
            return ""
        here = at.astimezone(ZoneInfo(self.zone))
        return f"{here:%Y-%m-%d %H:%M:%S %Z} ({here.isoformat()[-6:]})"


@dataclass(frozen=True, slots=True)
class Preview(Described):
    """When a rule fires.

    Attributes:
        schedule: as the configuration describes it.
        upcoming: the next ten occurrences.
        clock_change: when the clocks of its zone change next; null: not within a year.
    """

    schedule: str
    upcoming: Sequence[datetime]
    clock_change: ClockChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView(EntryStatus, Described):
    """A periodic entry, and why it does not run.

    Attributes:
        state: ``planned``, ``waiting``, ``running``, ``paused``, ``disabled``, ``finished`` or
            ``broken``.
        why: the first thing that keeps it from running now, or when it fires.
        late_seconds: for how long it is overdue; null: it is not.
    """

    state: State
    why: str
    late_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryInFull(EntryView):
    """A periodic entry with its next occurrences.

    Attributes:
        upcoming: the next ten.
        is_complete: false: only one is known, because its schedule is of an author's own class.
        clock_change: when the clocks of its zone change next; null: not within a year.
    """

    upcoming: Sequence[datetime]
    is_complete: bool
    clock_change: ClockChange | None


@dataclass(frozen=True, slots=True)
class Line:
    """An entry in the calendar.

    Attributes:
        cells: the next hours.
        is_complete: False: only the next occurrence is known, because its schedule is of an
            author's own class.
    """

    item: EntryView
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
