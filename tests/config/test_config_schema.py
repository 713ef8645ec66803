"""The JSON Schema of the configuration: it accepts what the loader accepts, as far as it can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.config_documents import DOCUMENTS
from config.json_schema import Validator
from hypothesis import given

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config
from nonet.config.schema import json_schema

ROOT = Path(__file__).parents[2]
VALIDATOR = Validator(json_schema())


def as_editors_see(value: Any) -> Any:
    """Editors take every key of YAML for text."""
    if isinstance(value, dict):
        return {str(key): as_editors_see(item) for key, item in value.items()}
    return [as_editors_see(item) for item in value] if isinstance(value, list) else value


def refused_by_schema(text: str) -> list[str]:
    return VALIDATOR.problems(as_editors_see(yaml.safe_load(text)))


def test_the_shipped_example_is_valid() -> None:
    """config.example.yaml is what the schema describes."""
    assert refused_by_schema((ROOT / "config.example.yaml").read_text()) == []


ENTRY = "common: {periodic-tasks: {T: [{%s}]}}"
SCHEDULE = ENTRY % "schedule: {%s}"
TASK = "common: {tasks: {T: {%s}}}"
RETRY = TASK % "retry-policy: {%s}"
LIMIT = "common: {limits: {Job: {7: {%s}}}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", ": type"),
        ("vo: []", ".vo: not allowed"),
        ("vos: [a, a]", ".vos: uniqueItems"),
        ("vos: [1]", ".vos[0]: type"),
        ("vos: ['']", ".vos[0]: minLength"),
        ("ceilings: {namespace: 0}", ".ceilings.namespace: minimum"),
        ("ceilings: {namespace: '5'}", ".ceilings.namespace: type"),
        ("ceilings: {streams: {background: 5}}", ".ceilings.streams.background: enum"),
        ("ceilings: {streams: {'normal:small': 0}}", ".streams.normal:small: minimum"),
        ("ceilings: {tasks: {'': 5}}", ".ceilings.tasks.: minLength"),
        ("common: {ceilings: {}}", ".common.ceilings: not allowed"),
        ("limits: {}", ".limits: not allowed"),
        ("common: ", ".common: type"),
        ("vo-overrides: {lhcb: {task: {}}}", ".vo-overrides.lhcb.task: not allowed"),
        ("common: {periodic-tasks: {T: {}}}", ".common.periodic-tasks.T: type"),
        (ENTRY % "nome: x", "T[0].nome: not allowed"),
        (ENTRY % "name: ", "T[0].name: type"),
        (ENTRY % "enabled: 'true'", "T[0].enabled: type"),
        (ENTRY % "overlap: never", "T[0].overlap: enum"),
        (ENTRY % "catch-up: none", "T[0].catch-up: enum"),
        (ENTRY % "catch-up: all, catch-up-limit: 0", "T[0].catch-up-limit: minimum"),
        (ENTRY % "catch-up: one, catch-up-limit: 5", "T[0].catch-up: const"),
        (ENTRY % "catch-up-limit: 5", "T[0]: required"),
        (ENTRY % "jitter: -1", "T[0].jitter: minimum"),
        (ENTRY % "misfire-grace: -1", "T[0].misfire-grace: minimum"),
        (ENTRY % "schedule: ", "T[0].schedule: type"),
        (SCHEDULE % "class: CronSchedule", "schedule: required"),
        (SCHEDULE % "class: Cron, arg: '@daily'", "schedule.class: enum"),
        (SCHEDULE % "class: CronSchedule, arg: 5", "schedule.arg: type"),
        (SCHEDULE % "class: IntervalSeconds, arg: '5'", "schedule.arg: type"),
        (SCHEDULE % "class: IntervalSeconds, arg: 0.0009", "schedule.arg: minimum"),
        (SCHEDULE % "class: IntervalSeconds, arg: 31622401", "schedule.arg: maximum"),
        (SCHEDULE % "class: IntervalSeconds, arg: 5, timezone: CET", "timezone: const"),
        (TASK % "priority: high", ".common.tasks.T.priority: enum"),
        (TASK % "size: ", ".common.tasks.T.size: type"),
        (TASK % "retry_policy: {}", ".common.tasks.T.retry_policy: not allowed"),
        (TASK % "soft-timeout: 0", ".common.tasks.T.soft-timeout: exclusiveMinimum"),
        (TASK % "isolation: thread", ".common.tasks.T.isolation: enum"),
        (TASK % "memory-limit: 512M", ".common.tasks.T.memory-limit: pattern"),
        (TASK % "memory-limit: 1.5", ".common.tasks.T.memory-limit: type"),
        (TASK % "memory-limit: 1000", ".common.tasks.T.memory-limit: minimum"),
        (TASK % "cpu-limit: 0", ".common.tasks.T.cpu-limit: exclusiveMinimum"),
        ("common: {sizes: {tiny: {}}}", ".common.sizes.tiny: not allowed"),
        ("common: {sizes: {large: }}", ".common.sizes.large: type"),
        ("common: {sizes: {large: {priority: normal}}}", ".sizes.large.priority: not allowed"),
        ("common: {sizes: {small: {cpu-limit: 5}}}", ".sizes.small.cpu-limit: not allowed"),
        (TASK % "dlq-eligible: 1", ".common.tasks.T.dlq-eligible: type"),
        (RETRY % "args: {}", "retry-policy: required"),
        (
            RETRY % "class: NoRetry, args: {max_retries: 3}",
            "retry-policy.args.max_retries: not allowed",
        ),
        (
            RETRY % "class: ExponentialBackoff, args: {max_retrys: 3}",
            "retry-policy.args.max_retrys: not allowed",
        ),
        (
            RETRY % "class: ExponentialBackoff, args: {max_retries: -1}",
            "retry-policy.args.max_retries: minimum",
        ),
        (LIMIT % "ConcurrencyLimiter: {}", ".Job.7.ConcurrencyLimiter: required"),
        (LIMIT % "ConcurrencyLimiter: {limit: 0}", ".ConcurrencyLimiter.limit: minimum"),
        (LIMIT % "ConcurrencyLimiter: {limit: '5'}", ".ConcurrencyLimiter.limit: type"),
        (
            LIMIT % "ConcurrencyLimiter: {limit: 5, window_seconds: 60}",
            ".ConcurrencyLimiter.window_seconds: not allowed",
        ),
        (LIMIT % "RateLimiter: {limit: 5}", ".Job.7.RateLimiter: required"),
        (
            LIMIT % "RateLimiter: {limit: 5, window_seconds: 0}",
            ".RateLimiter.window_seconds: minimum",
        ),
        (LIMIT % "ConcurencyLimiter: {limit: 5}", ".ConcurencyLimiter.limit: not allowed"),
        (LIMIT % "Remove: {RateLimit: {limit: 5}}", ".Remove.RateLimit: not allowed"),
        (LIMIT % "'': {}", "Job.7.: minLength"),
        ("common: {limits: {Job: 5}}", ".common.limits.Job: type"),
        ("common: {limits: {Job: {'': {}}}}", ".common.limits.Job.: minLength"),
    ],
)
def test_a_mistake_is_seen_by_editor_and_loader(text: str, problem: str) -> None:
    """What the schema refuses, the loader refuses as well: an editor raises no false alarm."""
    assert any(found.endswith(problem) for found in refused_by_schema(text)), refused_by_schema(
        text
    )
    with pytest.raises(ConfigurationError):
        parse_config(text, "c.yaml")


@given(DOCUMENTS)
def test_what_the_loader_accepts_is_valid(document: dict[str, Any]) -> None:
    """Whatever sections, entries, overrides and limits: no false alarm."""
    try:
        parse_config(yaml.safe_dump(document, allow_unicode=True), "c.yaml")
    except ConfigurationError as error:
        assert "is written twice" in str(error)  # the keys 5 and '5'
        return
    assert VALIDATOR.problems(as_editors_see(document)) == []


@pytest.mark.parametrize("seconds", [0.001, 31_622_400])
def test_the_bounds_of_intervals_are_those_of_the_loader(seconds: float) -> None:
    """The least and the longest interval are valid for both."""
    text = SCHEDULE % f"class: IntervalSeconds, arg: {seconds}, timezone: UTC"
    assert refused_by_schema(text) == []
    parse_config(text, "c.yaml")


def test_every_key_is_explained_to_whoever_writes_it() -> None:
    """An editor shows a sentence for each key that the file may have."""
    schema = json_schema()
    models = [schema, *(found for found in schema["definitions"].values() if "properties" in found)]
    assert len(models) == 12
    for model in models:
        for key, found in model["properties"].items():
            assert found["description"].endswith("."), key


def test_the_schema_refers_only_to_itself() -> None:
    """No definition is missing and none is left over; it is the same each time."""
    text = str(json_schema())
    assert set(re.findall("#/definitions/([^']*)'", text)) == set(json_schema()["definitions"])
    assert str(json_schema()) == text
