"""Arguments of periodic entries: each one that does not fit is reported with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from config.mistakes import mistakes, reports
from pydantic import BaseModel, field_validator

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config, problems_error
from nonet.scheduler.configuration.configuration_loop import Checked, check
from nonet.scheduler.periodic.entry_arguments import argument_problems
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import IntervalSeconds
from nonet.tasks.task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask

HOURLY = IntervalSeconds(3600)


class Spec(BaseModel):
    depth: int


class Other(BaseModel):
    level: int


@dataclass
class Clean(PeriodicBaseTask):
    path: str
    spec: Spec | None = None
    sizes: list[int | bool] | None = None
    either: Spec | Other | None = None
    _schedule = HOURLY
    _enabled = False

    async def execute(self) -> None: ...


@dataclass
class Pilots(PeriodicVoAwareBaseTask):
    vo: str
    ce_regex: re.Pattern[str] = re.compile(".*")
    _schedule = HOURLY

    def __post_init__(self) -> None:
        if self.vo == "closed" or "cern" in self.ce_regex.pattern:
            raise ValueError(f"{self.vo} has no such element")

    async def execute(self) -> None: ...


@dataclass
class Picky(PeriodicVoAwareBaseTask):
    vo: Literal["lhcb"]

    async def execute(self) -> None: ...


@dataclass
class Plain(PeriodicBaseTask):
    async def execute(self) -> None: ...


class Model(PeriodicBaseTask, BaseModel):
    depth: int = 1

    @field_validator("depth")
    @classmethod
    def _checked(cls, value: int) -> int:
        if value > 8:
            raise SystemExit("no such depth")
        if value > 4:
            raise ValueError("too deep")
        return value

    async def execute(self) -> None: ...


@dataclass
class Locked(PeriodicBaseTask):
    of: str

    @property
    def execution_locks(self) -> Any:
        return [self.of]

    async def execute(self) -> None: ...


@dataclass
class Needy(PeriodicBaseTask):
    path: str
    _schedule = HOURLY

    async def execute(self) -> None: ...


@dataclass
class NeedyPilots(PeriodicVoAwareBaseTask):
    vo: str
    path: str
    _schedule = HOURLY

    async def execute(self) -> None: ...


def registry(*classes: type[BaseTask]) -> Registry:
    made = Registry()
    for cls in classes or (Clean, Pilots, Picky, Plain, Model, Locked):
        made.add(cls, "x")
    return made


def problems_of(text: str, *vos: str) -> list[str]:
    found = argument_problems(parse_config(text, "c.yaml"), registry(), vos)
    return str(problems_error(found)).splitlines()


MISTAKES = """
Clean: [{args: {pth: /a}}]                     => [0].args: path: is missing
Clean: [{args: {path: /a, pth: /a}}]           => [0].args.pth: unknown … either. Did you mean path?
Clean: [{}]                                    => [0].args: path: is missing
Clean: [{args: {path: 5}}]                     => [0].args.path: must be text, not a number: write
Clean: [{args: {path: no}}]                    => [0].args.path: must be text: YAML reads yes, no,
x:Clean: [{name: a, args: {path: x}}, {name: b, args: {path: x, spec: {}}}] => [1].args.spec: depth:
Clean: [{args: {path: x, spec: {depth: x}}}]   => [0].args.spec.depth: must be a whole number
Clean: [{args: {path: x, sizes: [1, x]}}]      => [0].args.sizes[1]: must be … ; must be true or
Clean: [{args: {path: x, either: y}}]          => [0].args.either: must be a mapping, lines of
Plain: [{args: {x: 1}}]                        => [0].args.x: unknown argument 'x', Plain has none
Model: [{args: {depth: 5}}]                    => [0].args.depth: too deep
Model: [{args: {depth: 9}}]                    => [0].args: refused by Model: no such depth
Locked: [{args: {of: x}}]                      => [0].args: refused by Locked: execution_locks must
Pilots: [{args: {ce_regex: '('}}]              => [0].args.ce_regex: must be a valid regular expr
Pilots: [{args: {x: 1}}]                       => [0].args.x: unknown argument 'x', known are ce_reg
"""


@pytest.mark.parametrize(("entries", "problem"), mistakes("%s", "", MISTAKES))
def test_each_wrong_argument_is_reported_with_its_place(entries: str, problem: str) -> None:
    line, *others = problems_of(f"common: {{periodic-tasks: {{{entries}}}}}")
    name = entries.partition(": ")[0]
    assert reports(line, f"c.yaml:1: common.periodic-tasks.{name}{problem}"), line
    assert len(others) == entries.count("{pth")
    assert "; must be a mapping" not in line


@pytest.mark.parametrize(
    "entries",
    [
        "Clean: [{args: {path: a, spec: {depth: 1}, sizes: [1]}}]",
        "Picky: [{args: {}}]",  # it may fit the VOs that come
        "Pilots: [{args: {ce_regex: cern}}]",  # no VO is configured, and it may fit one
        "Nothing: [{args: {x: 1}}]",  # a problem of its own, as is this:
        "Pilots: [{args: {vo: 5}}]",
    ],
)
def test_an_argument_that_may_fit_is_no_problem(entries: str) -> None:
    assert problems_of(f"common: {{periodic-tasks: {{{entries}}}}}") == []


def test_an_entry_is_tried_with_every_vo_that_runs_it() -> None:
    text = """
vos: [a, closed]
common: {periodic-tasks: {Pilots: [{args: {ce_regex: %s}}]}}
vo-overrides:
  %s: {periodic-tasks: {Pilots: [{args: {ce_regex: z}}]}}
"""
    at = "common.periodic-tasks.Pilots[0].args"
    reason = "refused by Pilots: {} has no such element"
    assert problems_of(text % ("x", "b")) == [f"c.yaml:3: {at}: {reason.format('closed')}"]
    assert problems_of(text % ("x", "closed")) == [
        f"c.yaml:5: vo-overrides.closed.periodic-tasks.Pilots[0].args: {reason.format('closed')}"
    ]
    assert len(problems_of(text % ("'('", "b"), "c", "d")) == 1


def checked(text: str, *classes: type[BaseTask], vos: tuple[str, ...] = ()) -> Checked:
    return check(parse_config(text, "c.yaml"), registry(*classes), vos)


def test_the_value_of_an_argument_is_not_in_the_error() -> None:
    """An argument may be secret, and this text goes into logs and health."""
    with pytest.raises(ConfigurationError) as refused:
        checked("common: {periodic-tasks: {Model: [{args: {depth: s3cret}}]}}", Model)
    assert "s3cret" not in str(refused.value)


def test_enabled_classes_that_cannot_run_are_warnings() -> None:
    assert checked("{}", Clean, Pilots, Needy, NeedyPilots).warnings == (
        "x:Needy: not planned until it is configured: path: is missing",
        "x:NeedyPilots, x:Pilots: nothing is planned, because no VO is configured: list them"
        " under vos",
    )
    found = checked("vos: [a, b]", Clean, Pilots, Needy, NeedyPilots)
    assert [text.partition(":Needy")[2] for text in found.warnings] == [
        ": not planned until it is configured: path: is missing",
        "Pilots: not planned until it is configured: path: is missing",
    ]
    assert {entry.task_name for entry in found.entries} == {"x:Pilots"}
