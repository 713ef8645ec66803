"""The JSON Schema of the configuration: it accepts what the loader accepts, as far as it can."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from config.config_documents import DOCUMENTS
from config.json_schema import Validator
from config.mistakes import mistakes, refusal
from example import EXAMPLE
from hypothesis import given, settings

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config
from nonet.config.schema import json_schema

VALIDATOR = Validator(json_schema())


def as_editors_see(value: Any) -> Any:
    """Editors take every key of YAML for text."""
    if isinstance(value, dict):
        return {str(key): as_editors_see(item) for key, item in value.items()}
    return [as_editors_see(item) for item in value] if isinstance(value, list) else value


def refused_by_schema(text: str) -> list[str]:
    return VALIDATOR.problems(as_editors_see(yaml.safe_load(text)))


def test_the_shipped_example_is_valid() -> None:
    """The schema accepts config.example.yaml."""
    assert refused_by_schema(EXAMPLE.read_text()) == []


DOCUMENT_MISTAKES = """
[]                => : type
vo: []            => .vo: not allowed
vos: [a, a]       => .vos: uniqueItems
vos: ['']         => .vos[0]: minLength
ceilings: {streams: {background: 5}}     => .ceilings.streams.background: enum
ceilings: {streams: {'normal:small': 0}} => .streams.normal:small: minimum
limits: {}                  => .limits: not allowed
common: {ceilings: {}}      => .common.ceilings: not allowed
common: {periodic-tasks: {T: {}}} => .common.periodic-tasks.T: type
common: {sizes: {small: {cpu-limit: 5}}}     => .sizes.small.cpu-limit: not allowed
common: {limits: {Job: {'': {}}}} => .common.limits.Job.: minLength
"""
ENTRY_MISTAKES = """
nome: x           => nome: not allowed
overlap: never    => overlap: enum
catch-up: all, catch-up-limit: 0  => catch-up-limit: minimum
catch-up: one, catch-up-limit: 5  => catch-up: const
schedule: {class: CronSchedule}                    => schedule: required
schedule: {class: Cron, arg: '@daily'}             => schedule.class: enum
schedule: {class: IntervalSeconds, arg: '5'}       => schedule.arg: type
schedule: {class: IntervalSeconds, arg: 0.0009}    => schedule.arg: minimum
schedule: {class: IntervalSeconds, arg: 5, timezone: CET} => schedule.timezone: const
"""
TASK_MISTAKES = """
priority: high      => priority: enum
retry_policy: {}    => retry_policy: not allowed
memory-limit: 512M  => memory-limit: pattern
memory-limit: 1000  => memory-limit: minimum
cpu-limit: 0        => cpu-limit: exclusiveMinimum
retry-policy: {args: {}} => retry-policy: required
retry-policy: {class: NoRetry, args: {max_retries: 3}} => retry-policy.args.max_retries: not allowed
"""
BACKOFF_MISTAKES = """
max_retrys: 3       => max_retrys: not allowed
"""
LIMIT_MISTAKES = """
ConcurrencyLimiter: {}            => ConcurrencyLimiter: required
ConcurrencyLimiter: {limit: 5, window_seconds: 60} => ConcurrencyLimiter.window_seconds: not allowed
RateLimiter: {limit: 5, window_seconds: 0} => RateLimiter.window_seconds: minimum
Remove: {RateLimit: {limit: 5}}   => Remove.RateLimit: not allowed
"""
ENTRY = "common: {periodic-tasks: {T: [{%s}]}}"
TASK = "common: {tasks: {T: {%s}}}"
BACKOFF = TASK % "retry-policy: {class: ExponentialBackoff, args: {%s}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *mistakes("%s", "", DOCUMENT_MISTAKES),
        *mistakes(ENTRY, "T[0].", ENTRY_MISTAKES),
        (ENTRY % "catch-up-limit: 5", "T[0]: required"),
        *mistakes(TASK, ".common.tasks.T.", TASK_MISTAKES),
        *mistakes(BACKOFF, "retry-policy.args.", BACKOFF_MISTAKES),
        *mistakes("common: {limits: {Job: {7: {%s}}}}", ".Job.7.", LIMIT_MISTAKES),
    ],
)
def test_a_mistake_is_refused_by_editor_and_loader(text: str, problem: str) -> None:
    """An editor raises no false alarm."""
    found = refused_by_schema(text)
    assert any(line.endswith(problem) for line in found), found
    assert refusal(text)


@settings(max_examples=30)
@given(DOCUMENTS)
def test_what_the_loader_accepts_is_valid(document: dict[str, Any]) -> None:
    """This holds for sections, entries, overrides and limits."""
    try:
        parse_config(yaml.safe_dump(document, allow_unicode=True), "c.yaml")
    except ConfigurationError as error:
        assert "is written twice" in str(error)  # the keys 5 and '5'
        return
    assert VALIDATOR.problems(as_editors_see(document)) == []


@pytest.mark.parametrize("seconds", [0.001, 31_622_400])
def test_the_bounds_of_intervals_are_those_of_the_loader(seconds: float) -> None:
    """The shortest and the longest interval are valid for both."""
    text = ENTRY % f"schedule: {{class: IntervalSeconds, arg: {seconds}, timezone: UTC}}"
    assert refused_by_schema(text) == []
    parse_config(text, "c.yaml")


def test_every_key_is_explained() -> None:
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
