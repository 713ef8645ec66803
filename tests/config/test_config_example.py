"""config.example.yaml: the example of the decision record, and that it says what it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from example import EXAMPLE, example_tasks

from nonet.config.entries import Entry, entries
from nonet.config.models import Config
from nonet.config.reading import parse_config
from nonet.rules.limits import Limit, LimitAddress
from nonet.scheduler.configuration.limits import configured_limits
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import CronSchedule, RRuleSchedule


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
