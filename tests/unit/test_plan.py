"""The scheduler's plan: which entries exist, and which occurrences are due."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from nonet.config import TaskConfig, load_config, parse_config
from nonet.errors import ConfigurationError
from nonet.scheduler.plan import BATCH, Due, Entry, due, entries
from nonet.schedules import CronSchedule, IntervalSeconds, RRuleSchedule, TaskScheduleBase
from nonet.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

ROOT = Path(__file__).parents[2]
HOURLY = IntervalSeconds(3600)
GRACE = timedelta(seconds=60)


@dataclass
class Sweep(PeriodicBaseTask):
    depth: int = 1
    _schedule = HOURLY

    async def execute(self) -> None: ...

    @staticmethod
    def validate_config(config: list[Any]) -> None:
        assert all(isinstance(entry, TaskConfig) for entry in config)
        if sum(entry.args.get("depth", 1) for entry in config) > 10:
            raise ValueError("too deep together")


@dataclass
class SubmitPilots(PeriodicVoAwareBaseTask):
    vo: str
    ce_regex: str = ".*"
    default_schedule = CronSchedule("@daily")

    async def execute(self) -> None: ...


@dataclass
class Sleeping(PeriodicBaseTask):
    _schedule = HOURLY
    _enabled = False

    async def execute(self) -> None: ...


@dataclass
class Bare(PeriodicBaseTask):
    async def execute(self) -> None: ...


CLASSES: dict[str, type[PeriodicBaseTask]] = {
    "files:Sweep": Sweep,
    "wms:SubmitPilots": SubmitPilots,
    "files:Sleeping": Sleeping,
    "files:Bare": Bare,
}


def planned(text: str, *vos: str) -> dict[str, Entry]:
    return {entry.key: entry for entry in entries(parse_config(text, "c.yaml"), CLASSES, vos)}


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        planned(text)
    return str(refused.value).splitlines()


def test_without_configuration_the_defaults_of_the_classes_are_planned() -> None:
    """A class with a schedule has one entry, per VO if VO-aware; a disabled or bare one none."""
    plan = planned("vos: [a]\nvo-overrides: {b: {}}", "c", "a")
    assert set(plan) == {"files:Sweep||default"} | {
        f"wms:SubmitPilots|{vo}|default" for vo in "abc"
    }
    entry = plan["wms:SubmitPilots|b|default"]
    assert (entry.schedule, entry.args) == (CronSchedule("@daily"), {"vo": "b"})
    assert SubmitPilots(**entry.args).vo == "b"


def test_configuration_overrides_what_the_class_says() -> None:
    """Schedule, arguments, names and enabled come from the entries when they say so."""
    plan = planned(
        """
common:
  periodic-tasks:
    files:Sweep:
      - {name: "a|b", args: {depth: 2}}
      - {name: none, enabled: false}
      - {name: c, schedule: {class: IntervalSeconds, arg: 5}}
    Sleeping: [{enabled: true}]
    Bare: [{schedule: {class: CronSchedule, arg: "@hourly", timezone: Europe/Zurich}}]
"""
    )
    assert {key: (entry.schedule, entry.args) for key, entry in plan.items()} == {
        "files:Sweep||a%7Cb": (HOURLY, {"depth": 2}),
        "files:Sweep||c": (IntervalSeconds(5), {}),
        "files:Sleeping||default": (HOURLY, {}),
        "files:Bare||default": (CronSchedule("@hourly", "Europe/Zurich"), {}),
    }


def test_an_entry_that_does_not_say_leaves_enabled_to_the_class() -> None:
    """`_enabled = False` holds until an entry says `enabled: true`."""
    assert "files:Sleeping||default" not in planned("common: {periodic-tasks: {Sleeping: [{}]}}")


def test_a_class_named_for_a_vo_replaces_its_common_entries_there() -> None:
    """The VO's list replaces the common one, an empty list by nothing; other VOs keep it."""
    plan = planned(
        """
vos: [a, b, c]
common: {periodic-tasks: {SubmitPilots: [{args: {ce_regex: common}}]}}
vo-overrides:
  a: {periodic-tasks: {"wms:SubmitPilots": [{name: x}, {name: y}]}}
  c: {periodic-tasks: {SubmitPilots: []}}
"""
    )
    assert {(e.vo, e.name, e.args.get("ce_regex"), e.origin) for e in plan.values() if e.vo} == {
        ("a", "x", None, "vo-overrides.a.periodic-tasks.wms:SubmitPilots"),
        ("a", "y", None, "vo-overrides.a.periodic-tasks.wms:SubmitPilots"),
        ("b", "default", "common", "common.periodic-tasks.SubmitPilots"),
    }


def test_the_identity_of_an_entry_survives_reordering() -> None:
    """The same entries in another order are the same entries."""
    one = planned("common: {periodic-tasks: {Sweep: [{name: a}, {name: b, args: {depth: 2}}]}}")
    two = planned("common: {periodic-tasks: {Sweep: [{name: b, args: {depth: 2}}, {name: a}]}}")
    assert one == two


def test_the_shipped_example_plans_what_it_says() -> None:
    """lhcb has its three entries, gridpp the common one."""
    plan = entries(load_config(ROOT / "config.example.yaml"), {"wms:SubmitPilots": SubmitPilots})
    assert [(e.vo, e.name, e.schedule) for e in plan] == [
        ("lhcb", "SubmitPilotsCERN", RRuleSchedule("FREQ=HOURLY;INTERVAL=2")),
        ("lhcb", "SubmitPilotsRAL", CronSchedule("0 */6 * * *")),
        ("lhcb", "SubmitPilotsOthers", CronSchedule("@daily")),
        ("gridpp", "default", CronSchedule("@daily")),
    ]


def test_problems_with_classes_are_reported_at_once_with_their_path() -> None:
    """Unknown, misplaced, doubly named and refused classes give one line each."""
    lines = refusal(
        """
common:
  periodic-tasks:
    Sweeep: []
    Sweep: [{name: a, args: {depth: 6}}, {name: b, args: {depth: 5}}]
    files:Sweep: []
    Bare: [{}]
    SubmitPilots: [{args: {vo: x}}]
vo-overrides: {a: {periodic-tasks: {Sleeping: [], Nothing: []}}}
"""
    )
    assert lines == [
        "c.yaml: common.periodic-tasks.Sweeep: unknown periodic task 'Sweeep'."
        " Did you mean files:Sweep?",
        "c.yaml: common.periodic-tasks.Sweep: refused by Sweep: too deep together",
        "c.yaml: common.periodic-tasks.files:Sweep: configures files:Sweep a second time",
        "c.yaml: common.periodic-tasks.Bare[0]: needs a schedule: Bare has no default",
        "c.yaml: common.periodic-tasks.SubmitPilots[0].args.vo: is set by the scheduler: remove it",
        "c.yaml: vo-overrides.a.periodic-tasks.Sleeping: files:Sleeping does not run per VO:"
        " write it under common",
        "c.yaml: vo-overrides.a.periodic-tasks.Nothing: unknown periodic task 'Nothing'.",
    ]


def test_an_ambiguous_class_name_must_be_written_in_full() -> None:
    """Two categories with one class name: the bare name is refused, naming both."""
    with pytest.raises(ConfigurationError, match="ambiguous: write a:Sweep or b:Sweep"):
        entries(
            parse_config("common: {periodic-tasks: {Sweep: []}}", "c.yaml"),
            {"a:Sweep": Sweep, "b:Sweep": Sweep},
        )


def test_the_nearest_declaration_of_a_schedule_wins() -> None:
    """A subclass's `default_schedule` beats its parent's `_schedule`, and the other way round."""

    class Daily(Sweep):
        default_schedule = CronSchedule("@daily")

    class Again(Daily):
        _schedule = HOURLY

    plan = entries(parse_config("{}", "c"), {"x:Daily": Daily, "x:Again": Again})
    assert [entry.schedule for entry in plan] == [CronSchedule("@daily"), HOURLY]


def test_a_pydantic_model_declares_its_schedule_too() -> None:
    """pydantic hides `_schedule` and `_enabled` of its models; they are found all the same."""

    class Model(PeriodicVoAwareBaseTask, BaseModel):
        vo: str
        _schedule: TaskScheduleBase = HOURLY

    class Off(Model):
        _enabled: bool = False

    (entry,) = entries(parse_config("vos: [a]", "c"), {"x:Model": Model, "x:Off": Off})
    assert (entry.task_name, entry.schedule) == ("x:Model", HOURLY)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2025-06-01T{text}").replace(tzinfo=UTC)


TENS = IntervalSeconds(10)
DUE = [
    # schedule, last, now, fire, next, collapsed
    (HOURLY, None, "10:00:05", [], "11:00", 0),
    (HOURLY, "10:00", "10:59:59", [], "11:00", 0),
    (HOURLY, "10:00", "11:00", ["11:00"], "12:00", 0),
    (HOURLY, "10:00", "11:00:59", ["11:00"], "12:00", 0),
    (HOURLY, "10:00", "11:01", ["11:00"], "12:00", 0),  # old now, but the latest
    (HOURLY, "10:00", "15:30", ["15:00"], "16:00", 4),
    (HOURLY, "10:00", "15:00:30", ["14:00", "15:00"], "16:00", 3),
    (HOURLY, "12:00", "10:00", [], "13:00", 0),  # the clock went back: nothing is repeated
    (HOURLY, "10:17", "11:00", ["11:00"], "12:00", 0),  # `last` off the grid: first seen then
    (TENS, "10:00", "10:00:30", ["10:00:10", "10:00:20", "10:00:30"], "10:00:40", 0),
    (
        TENS,
        "10:00",
        "10:01:25",
        ["10:00:20", *(f"10:00:{s}" for s in (30, 40, 50)), "10:01:00", "10:01:10", "10:01:20"],
        "10:01:30",
        1,
    ),
    (CronSchedule("0 * * * *"), "10:00", "15:00:30", ["14:00", "15:00"], "16:00", 3),
    (RRuleSchedule("FREQ=HOURLY"), "10:00", "15:30", ["15:00"], "16:00", 4),
    (
        RRuleSchedule("DTSTART:20250601T110000 RRULE:FREQ=HOURLY;COUNT=2"),
        "10:00",
        "15:00",
        ["12:00"],
        None,
        1,
    ),
    (
        RRuleSchedule("DTSTART:20250601T110000 RRULE:FREQ=HOURLY;COUNT=2"),
        "12:00",
        "15:00",
        [],
        None,
        0,
    ),
]


@pytest.mark.parametrize(("schedule", "last", "now", "fire", "following", "collapsed"), DUE)
def test_what_is_due(
    schedule: TaskScheduleBase,
    last: str | None,
    now: str,
    fire: list[str],
    following: str | None,
    collapsed: int,
) -> None:
    """All young occurrences fire, one makes good for all older ones, an unseen entry waits."""
    assert due(schedule, last and at(last), at(now), GRACE) == Due(
        [at(text) for text in fire], at(following) if following else None, collapsed
    )


@given(
    st.sampled_from([TENS, CronSchedule("*/7 * * * *"), RRuleSchedule("FREQ=MINUTELY;INTERVAL=9")]),
    st.lists(st.integers(1, 4000), min_size=1, max_size=20),
)
def test_every_occurrence_is_fired_once_or_collapsed(
    schedule: TaskScheduleBase, steps: list[int]
) -> None:
    """Whenever the scheduler looks, each occurrence is fired exactly once or counted."""
    start = last = now = at("00:00:01")
    fired: list[datetime] = []
    collapsed = 0
    for step in steps:
        now += timedelta(seconds=step)
        decision = due(schedule, last, now, GRACE)
        fired += decision.fire
        collapsed += decision.collapsed
        last = fired[-1] if fired else last
        assert decision.next is not None and decision.next > now
    expected = []
    moment = schedule.next_occurrence(start)
    while moment is not None and moment <= now:
        expected.append(moment)
        moment = schedule.next_occurrence(moment)
    assert fired == sorted(set(fired)) and set(fired) <= set(expected)
    assert len(fired) + collapsed == len(expected)
    assert fired[-1:] == expected[-1:]


@pytest.mark.parametrize(
    ("schedule", "collapsed"),
    [
        (IntervalSeconds(0.001), 31_535_999_999),
        (CronSchedule("* * * * *", "Europe/Zurich"), 1001),
        (RRuleSchedule("FREQ=SECONDLY;INTERVAL=2"), 1001),
    ],
)
def test_a_year_of_missed_occurrences_is_decided_at_once(
    schedule: TaskScheduleBase, collapsed: int
) -> None:
    """Millions of missed occurrences are not walked one by one, and the latest is still found."""
    now = at("00:00")
    started = time.perf_counter()
    decision = due(schedule, now - timedelta(days=365), now, timedelta())
    assert time.perf_counter() - started < 5
    assert (decision.fire, decision.collapsed) == ([now], collapsed)


def test_more_than_a_batch_is_fired_in_several_calls() -> None:
    """A call fires at most a batch; `next` is then the first left over, and nothing is lost."""
    schedule = IntervalSeconds(0.01)
    last, now = at("10:00"), at("10:00:25")
    fired: list[datetime] = []
    for size in (BATCH, BATCH, 500):
        decision = due(schedule, last, now, GRACE)
        assert len(decision.fire) == size and decision.collapsed == 0
        fired += decision.fire
        last = fired[-1]
        assert decision.next == last + timedelta(milliseconds=10)
    assert len(set(fired)) == 2500


class FromNow(TaskScheduleBase):
    """An author's schedule that is told no time: its answers are those of its clock."""

    def __init__(self, *answers: datetime | None) -> None:
        self.answers = list(answers)

    def next_occurrence(self) -> datetime | None:  # type: ignore[override]  # that is the point
        return self.answers.pop(0)


def test_an_authors_schedule_is_asked_once_per_firing() -> None:
    """Its answer is kept as `planned`, fired when it has come, and only then it is asked again."""
    schedule = FromNow(at("10:00"), at("11:00"), None)
    first = due(schedule, None, at("09:00"), GRACE)
    assert first == Due([], at("10:00"))
    assert due(schedule, None, at("09:30"), GRACE, planned=first.next) == first
    second = due(schedule, None, at("10:00:05"), GRACE, planned=first.next)
    assert second == Due([at("10:00")], at("11:00"))
    assert due(schedule, at("10:00"), at("12:00"), GRACE, planned=second.next) == Due(
        [at("11:00")], None
    )
