"""The scheduler's plan: which entries exist, and which occurrences are due."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel

from nonet.base.errors import ConfigurationError
from nonet.config.entries import Entry, dropped, entries
from nonet.config.models import TaskConfig
from nonet.config.reading import parse_config
from nonet.config.wording import dotted
from nonet.tasks.schedules import CatchUp, CronSchedule, IntervalSeconds, Overlap, TaskScheduleBase
from nonet.tasks.schedules.description import describe
from nonet.tasks.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

HOURLY = IntervalSeconds(3600)


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
    return {
        entry.key: entry
        for entry in entries(parse_config(text, "c.yaml"), CLASSES, vos)
        if entry.enabled
    }


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


def test_an_entry_overrides_schedule_arguments_and_enabled_of_its_class() -> None:
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
    assert "files:Sleeping||default" not in planned("common: {periodic-tasks: {Sleeping: [{}]}}")
    assert {key: (entry.schedule, entry.args) for key, entry in plan.items()} == {
        "files:Sweep||a%7Cb": (HOURLY, {"depth": 2}),
        "files:Sweep||c": (IntervalSeconds(5), {}),
        "files:Sleeping||default": (HOURLY, {}),
        "files:Bare||default": (CronSchedule("@hourly", "Europe/Zurich"), {}),
    }


def test_the_entries_of_a_vo_replace_the_common_ones() -> None:
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


def test_problems_with_classes_are_reported_at_once_with_their_path() -> None:
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
        "c.yaml:4: common.periodic-tasks.Sweeep: unknown periodic task 'Sweeep'."
        " Did you mean files:Sweep?",
        "c.yaml:5: common.periodic-tasks.Sweep: refused by Sweep: too deep together",
        "c.yaml:6: common.periodic-tasks.files:Sweep: configures files:Sweep a second time",
        "c.yaml:7: common.periodic-tasks.Bare[0]: needs a schedule: Bare has no default",
        "c.yaml:8: common.periodic-tasks.SubmitPilots[0].args.vo: is set by the scheduler:"
        " remove it",
        "c.yaml:9: vo-overrides.a.periodic-tasks.Sleeping: files:Sleeping does not run per VO:"
        " write it under common",
        "c.yaml:9: vo-overrides.a.periodic-tasks.Nothing: unknown periodic task 'Nothing'."
        " Known are files:Bare, files:Sleeping, files:Sweep, wms:SubmitPilots: those of installed"
        " packages and of modules in NONET_TASKS or --tasks.",
    ]


@pytest.mark.parametrize(
    ("classes", "others", "reason"),
    [
        ({}, [], "unknown periodic task 'Sweep'. No task is registered: install a package with"),
        ({}, ["files:Audit"], "unknown periodic task 'Sweep'."),
        (CLASSES, ["files:Audit"], ""),
        ({}, ["files:Sweep"], "is a task that is not periodic: give it a schedule"),
    ],
)
def test_the_error_distinguishes_a_task_that_is_not_periodic_from_an_unknown_one(
    classes: dict[str, type[PeriodicBaseTask]], others: list[str], reason: str
) -> None:
    config = parse_config("common: {periodic-tasks: {Sweep: []}}", "c.yaml")
    if not reason:
        assert entries(config, classes, (), others)
        return
    with pytest.raises(ConfigurationError) as refused:
        entries(config, classes, (), others)
    assert str(refused.value).startswith(f"c.yaml:1: common.periodic-tasks.Sweep: {reason}")


def test_the_section_that_drops_a_class_is_known() -> None:
    """An empty list under common drops it for every VO that has none of its own."""
    config = parse_config(
        """
vos: [a, b]
common: {periodic-tasks: {SubmitPilots: [], Sweep: [], Sleeping: [{}]}}
vo-overrides:
  b: {periodic-tasks: {SubmitPilots: [{}]}}
  c: {periodic-tasks: {"wms:SubmitPilots": []}}
""",
        "c.yaml",
    )

    def who(name: str) -> list[tuple[str | None, str]]:
        return [(vo, dotted(at)) for vo, at in dropped(config, name, CLASSES[name])]

    assert who("wms:SubmitPilots") == [
        ("a", "common.periodic-tasks.SubmitPilots"),
        ("c", "vo-overrides.c.periodic-tasks.wms:SubmitPilots"),
    ]
    assert who("files:Sweep") == [(None, "common.periodic-tasks.Sweep")]
    assert who("files:Sleeping") == []
    assert who("files:Bare") == []


def test_an_ambiguous_class_name_must_be_written_in_full() -> None:
    config = parse_config("common: {periodic-tasks: {Sweep: []}}", "c.yaml")
    with pytest.raises(ConfigurationError, match="ambiguous: write a:Sweep or b:Sweep"):
        entries(config, {"a:Sweep": Sweep, "b:Sweep": Sweep})


def test_the_nearest_declaration_of_a_schedule_wins() -> None:
    class Daily(Sweep):
        default_schedule = CronSchedule("@daily")

    class Again(Daily):
        _schedule = HOURLY

    plan = entries(parse_config("{}", "c"), {"x:Daily": Daily, "x:Again": Again})
    assert [entry.schedule for entry in plan] == [CronSchedule("@daily"), HOURLY]


def test_a_pydantic_model_may_declare_its_schedule() -> None:
    class Model(PeriodicVoAwareBaseTask, BaseModel):
        vo: str
        _schedule: TaskScheduleBase = HOURLY

    class Off(Model):
        _enabled: bool = False

    entry, off = entries(parse_config("vos: [a]", "c"), {"x:Model": Model, "x:Off": Off})
    assert (entry.task_name, entry.schedule) == ("x:Model", HOURLY)
    assert (entry.enabled, off.enabled) == (True, False)


def test_overlap_catch_up_and_jitter_of_a_class_may_be_configured() -> None:
    class Lenient(Sweep):
        _overlap = Overlap.QUEUE
        _catch_up = CatchUp.ALL
        _catch_up_limit = 7
        _jitter = 30
        _misfire_grace = 7.5

    text = (
        "common: {periodic-tasks: {Lenient: [{name: a}, "
        "{name: b, overlap: allow, jitter: 5.0, misfire-grace: 0}]}}"
    )
    one, two = entries(parse_config(text, "c"), {"x:Lenient": Lenient})
    assert (one.overlap, one.catch_up, one.catch_up_limit, one.jitter) == ("queue", "all", 7, 30)
    assert (two.overlap, two.catch_up, two.jitter) == ("allow", "all", 5.0)
    assert (one.misfire_grace, two.misfire_grace) == (7.5, 0)


def test_fingerprints_depend_on_schedule_and_arguments_only() -> None:
    class Odd(TaskScheduleBase):
        def next_occurrence(self, after: Any = None) -> None:
            return None

    @dataclass
    class Days(Odd):
        days: set[str]

    sets = [describe(Days({"mo", "tu", "we"})), describe(Days({"we", "tu", "mo"}))]
    assert sets == ["Days({'mo', 'tu', 'we'})"] * 2
    one = Entry("k", "x:T", None, "n", Odd(), {"b": {2}, "a": 1}, overlap=Overlap.SKIP)
    two = Entry("k", "x:T", None, "n", Odd(), {"a": 1, "b": {2}}, origin="common")
    assert one.prints == two.prints
    mixed = [{1: 2, "1": {"b": 1, None: [2, "x"]}}, {"1": {None: [2, "x"], "b": 1}, 1: 2}]
    assert replace(one, args={"m": mixed[0]}).prints == replace(one, args={"m": mixed[1]}).prints
    assert replace(one, args={"a": 2}).prints[0] == one.prints[0]
    assert replace(one, args={"a": 2}).prints[1] != one.prints[1]
    assert replace(one, schedule=HOURLY).prints != one.prints
