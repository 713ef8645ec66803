"""config.example.yaml: the example of the decision record, and that it says what it should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from example import EXAMPLE, example_tasks

from nonet.base.streams import Priority, Size
from nonet.config.models import Config
from nonet.config.overrides import Overrides, override_problems
from nonet.config.reading import parse_config
from nonet.rules.limits import Limit, LimitAddress
from nonet.scheduler.configuration.limits import configured_ceilings, configured_limits
from nonet.scheduler.periodic.plan import Entry, entries
from nonet.tasks.registry import Registry
from nonet.tasks.retry import ExponentialBackoff
from nonet.tasks.schedules import CronSchedule, RRuleSchedule
from nonet.tasks.task import Isolation


@pytest.fixture
def registry() -> Iterator[Registry]:
    """The tasks that the example names, and the object type that they lock."""
    with example_tasks() as module:
        made = Registry()
        made.add_module(module)
        yield made


@pytest.fixture
def config() -> Config:
    """The example."""
    return parse_config(EXAMPLE.read_text(), "config.example.yaml")


@pytest.fixture
def plan(config: Config, registry: Registry) -> dict[tuple[str | None, str], Entry]:
    """Its entries by VO and name."""
    classes: dict[str, Any] = {"example_tasks:SubmitPilots": registry.get("SubmitPilots").cls}
    return {(entry.vo, entry.name): entry for entry in entries(config, classes)}


def test_lhcb_has_entries_of_its_own_and_gridpp_the_common_one(
    plan: dict[tuple[str | None, str], Entry],
) -> None:
    """Two are named, with RRULE and cron, and one is for the other elements."""
    assert {at: entry.schedule for at, entry in plan.items()} == {
        ("lhcb", "SubmitPilotsCERN"): RRuleSchedule("FREQ=HOURLY;INTERVAL=2"),
        ("lhcb", "SubmitPilotsRAL"): CronSchedule("0 */6 * * *"),
        ("lhcb", "SubmitPilotsOthers"): CronSchedule("@daily"),
        ("gridpp", "default"): CronSchedule("@daily"),
    }
    assert all(entry.task_name == "example_tasks:SubmitPilots" for entry in plan.values())


def test_each_computing_element_belongs_to_one_entry(
    plan: dict[tuple[str | None, str], Entry], registry: Registry
) -> None:
    """No element is left out or served twice."""
    patterns: dict[str, re.Pattern[str]] = {}
    for (vo, name), entry in plan.items():
        task: Any = registry.get(entry.task_name).arguments.build(entry.args)
        assert task.vo == vo
        patterns[name] = task.ce_regex
    for element, wanted in [
        ("ce1.cern.ch", "SubmitPilotsCERN"),
        ("ce.gridpp.ral.ac.uk", "SubmitPilotsRAL"),
        ("ce.nikhef.nl", "SubmitPilotsOthers"),
        ("cern.ch.example.org", "SubmitPilotsOthers"),
        ("ce.cernXch", "SubmitPilotsOthers"),
    ]:
        found = [name for name, pattern in patterns.items() if pattern.fullmatch(element)]
        assert sorted(found) == sorted([wanted, "default"])


def test_its_limits_are_those_of_the_decision_record(config: Config, registry: Registry) -> None:
    """They are per class, storage element and action, transformation, and VO."""
    classes = {item.name.rpartition(":")[2] for item in registry}
    assert configured_limits(config, classes) == {
        LimitAddress("task", "SubmitPilots"): Limit(2),
        LimitAddress("task", "SubmitPilots", limiter="rate"): Limit(10, 3600),
        LimitAddress("storage_element", "default", "CreateFile"): Limit(5),
        LimitAddress("storage_element", "default", "RemoveFile"): Limit(5),
        LimitAddress("storage_element", "CERN-DST", "RemoveFile"): Limit(8),
        LimitAddress("storage_element", "CERN-MC_DST", "RemoveFile"): Limit(5),
        LimitAddress("transformation", "default"): Limit(10),
        LimitAddress("transformation", "12345"): Limit(5),
        LimitAddress("task", "CheckPilotStatus", limiter="rate", vo="lhcb"): Limit(10_000, 3600),
    }


def test_its_overrides_hold_for_every_vo(config: Config, registry: Registry) -> None:
    """RemoveFile has the values of `tasks`, and all others of its class."""
    assert override_problems(config, registry) == []
    for vo in ("", "lhcb", "gridpp"):
        found = Overrides.of(config).effective(registry.get("RemoveFile"), vo)
        assert (found.priority, found.size) == (Priority.BACKGROUND, Size.SMALL)
        assert found.retry_policy == ExponentialBackoff(max_retries=3)
        assert (found.soft_timeout, found.hard_timeout, found.dlq_eligible) == (60, 90, True)
        assert found.origins["priority"] == "common.tasks.RemoveFile.priority"
        assert found.origins["size"] == "class"


def test_its_sizes_and_ceilings_are_applied(config: Config, registry: Registry) -> None:
    """Medium tasks have a memory limit, and a class has a ceiling."""
    overrides, pilots = Overrides.of(config), registry.get("SubmitPilots")
    found = overrides.effective(pilots, "lhcb", Size.MEDIUM)
    assert (found.isolation, found.memory_limit) == (Isolation.CHILD, 512 * 2**20)
    assert found.origins["memory_limit"] == "common.sizes.medium.memory-limit"
    assert overrides.effective(pilots, "lhcb").memory_limit is None
    ceilings = configured_ceilings(config, registry)
    assert (ceilings.namespace, ceilings.streams) == (500_000, {"background:small": 200_000})
    assert ceilings.tasks == {"example_tasks:RemoveFile": 100_000}
