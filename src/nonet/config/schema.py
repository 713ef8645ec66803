"""The JSON Schema of the file, by which editors complete and check while one writes.

It knows less than the loader: no classes, no expressions of schedules, no files that are merged.
What it refuses, the loader refuses.
"""

from __future__ import annotations

from typing import Any

from nonet.config.models import Config
from nonet.tasks.locks import (
    LEAST_WINDOW_SECONDS,
    MOST_ITEMS,
    MOST_WINDOW_SECONDS,
    ConcurrencyLimiter,
    RateLimiter,
)
from nonet.tasks.retry import ExponentialBackoff, NoRetry
from nonet.tasks.schedules import SCHEDULES, IntervalSecondsSchedule

Schema = dict[str, Any]

_DRAFT = "http://json-schema.org/draft-07/schema#"  # what editors understand

_MEMORY_LIMIT = (
    "Memory that the process of an attempt may have: bytes, or with a unit, such as 512MiB."
)
_CPU_LIMIT = "Seconds of CPU time that an attempt may use."
_TIMES = {
    "soft-timeout": "Seconds after which an attempt is cancelled.",
    "hard-timeout": "Seconds after which an attempt is given up; not below soft-timeout.",
}

_DESCRIPTIONS: dict[str, dict[str, str]] = {
    "Config": {
        "vos": "Virtual organisations, besides those named under vo-overrides.",
        "common": "What holds for the installation and for every VO.",
        "vo-overrides": "Per VO; a class named there replaces its common entry for this VO.",
        "ceilings": "How many tasks there may be before a submission is refused.",
    },
    "CeilingsConfig": {
        "namespace": "All tasks together.",
        "streams": "Per stream, such as background:small: its tasks.",
        "tasks": "Per class (Class, or category:Class): its tasks.",
    },
    "SectionConfig": {
        "periodic-tasks": "Per class (Class, or category:Class): a list of entries.",
        "limits": "Object type, then key or 'default', then limiters, or actions with limiters.",
        "tasks": "Per class (Class, or category:Class): what holds instead of its attributes.",
        "sizes": "Per size: limits of the classes that have none of their own.",
    },
    "TaskConfig": {
        "name": "Tells the entries of one class apart. May be missing when there is one.",
        "schedule": "When it fires. Default: the schedule of the class.",
        "args": "Arguments of the class. The VO is added by the scheduler.",
        "enabled": "false: it does not fire. Default: what the class says.",
        "overlap": "What an occurrence does while the one before is still running: skip, queue"
        " (wait for it) or allow.",
        "catch-up": "Of occurrences missed for long submit the latest (one), none (skip) or all.",
        "catch-up-limit": "With 'catch-up: all', how many at most.",
        "jitter": "Seconds: each occurrence is late by up to so much, by chance.",
        "misfire-grace": "Seconds: occurrences missed for less are submitted one by one. Default:"
        " NONET_MISFIRE_GRACE, or the interval if that is shorter.",
    },
    "ScheduleConfig": {
        "class": "IntervalSecondsSchedule, CronSchedule or RRuleSchedule.",
        "timezone": "IANA name, such as Europe/Zurich. Default: UTC.",
        "arg": "Seconds of an interval, five fields of cron or an @alias, or an RRULE.",
    },
    "TaskOverride": {
        "priority": "Which stream it is submitted to.",
        "size": "Which pool of workers runs it.",
        "retry-policy": "What happens after a failed attempt.",
        "soft-timeout": "Seconds after which an attempt is cancelled.",
        "hard-timeout": "Seconds after which an attempt is given up; not below soft-timeout.",
        "dlq-eligible": "true: kept in SQL when it has failed for good.",
        "isolation": "Where an attempt runs: loop (in the worker's process), child (in a child"
        " process, which runs others after it) or fresh (in one of its own).",
        "memory-limit": _MEMORY_LIMIT,
        "cpu-limit": _CPU_LIMIT,
    },
    "SizesConfig": {
        "small": "Limits of small classes. Of time only: they share a process.",
        "medium": "Limits of medium classes.",
        "large": "Limits of large classes.",
    },
    "SmallConfig": _TIMES,
    "SizeConfig": {
        **_TIMES,
        "memory-limit": _MEMORY_LIMIT,
        "cpu-limit": _CPU_LIMIT,
    },
    "RetryPolicyConfig": {
        "class": "NoRetry, ExponentialBackoff, or a policy that a package of tasks defines.",
        "args": "Its arguments.",
    },
}


def json_schema() -> Schema:
    """The JSON Schema (draft 7) of the configuration; the same for the same version of Nonet."""
    schema = Config.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    del definitions["LimitRule"]  # how it is kept, not how it is written
    for name, definition in {"Config": schema, **definitions}.items():
        if name in _DESCRIPTIONS:
            definition["properties"] = _described(name, definition["properties"])
        for key in ("title", "description"):
            definition.pop(key, None)
    limits = definitions["SectionConfig"]["properties"]["limits"]
    definitions["SectionConfig"]["properties"]["limits"] = _limits(limits["description"])
    definitions["TaskConfig"] |= _catch_up()
    definitions["ScheduleConfig"] |= _schedule(definitions["ScheduleConfig"]["properties"])
    definitions["RetryPolicyConfig"] |= _retry_policy(definitions["RetryPolicyConfig"])
    schema["properties"]["vos"]["uniqueItems"] = True
    return {
        "$schema": _DRAFT,
        "title": "Central configuration of Nonet",
        **schema,
        "definitions": definitions,
    }


def _described(model: str, properties: Schema) -> Schema:
    return {
        key: {"description": _DESCRIPTIONS[model][key], **_without_null(found)}
        for key, found in properties.items()
    }


def _without_null(found: Schema) -> Schema:
    """A field that may be missing; a key that is written has a value."""
    (kind,) = [one for one in found.get("anyOf", [found]) if one.get("type") != "null"]
    kept = {key: value for key, value in kind.items() if key not in ("title", "default")}
    if "$ref" in kept:  # beside one, draft 7 reads nothing else
        return {"allOf": [kept]}
    return kept


def _catch_up() -> Schema:
    is_all = {"properties": {"catch-up": {"const": "all"}}, "required": ["catch-up"]}
    return {"if": {"required": ["catch-up-limit"]}, "then": is_all}


def _schedule(properties: Schema) -> Schema:
    intervals = [name for name, cls in SCHEDULES.items() if cls is IntervalSecondsSchedule]
    seconds = {"type": "number", "minimum": 0.001, "maximum": 366 * 86_400}
    return {
        "properties": {
            "class": properties["class"] | {"enum": list(SCHEDULES)},
            "timezone": properties["timezone"],
            "arg": {
                "description": properties["arg"]["description"],
                "type": ["string", "number"],
                "examples": ["0 */6 * * *", "@daily", "FREQ=HOURLY;INTERVAL=2", 3600],
            },
        },
        "if": {"properties": {"class": {"enum": intervals}}},
        "then": {"properties": {"arg": seconds, "timezone": {"const": "UTC"}}},
        "else": {"properties": {"arg": {"type": "string"}}},
    }


def _retry_policy(definition: Schema) -> Schema:
    built_in = {
        NoRetry.__name__: {"maxProperties": 0},
        ExponentialBackoff.__name__: _untitled(ExponentialBackoff.model_json_schema()),
    }
    names = {"description": definition["properties"]["class"]["description"], "type": "string"}
    return {
        "properties": {
            "class": names | {"anyOf": [{"enum": list(built_in)}, {}]},
            "args": definition["properties"]["args"],
        },
        "allOf": [
            {
                "if": {"properties": {"class": {"const": name}}},
                "then": {"properties": {"args": args}},
            }
            for name, args in built_in.items()
        ],
    }


def _untitled(schema: Schema) -> Schema:
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return {
        key: {name: _untitled(item) for name, item in value.items()}
        if key == "properties"
        else value
        for key, value in kept.items()
    }


def _limits(description: str) -> Schema:
    """A tree: object type → key → limiters, and actions → limiters."""
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}
    window = {
        "type": "number",
        "minimum": LEAST_WINDOW_SECONDS,
        "maximum": MOST_WINDOW_SECONDS,
        "description": "Length of the window, in seconds.",
    }
    said: dict[str, Schema] = {
        ConcurrencyLimiter.__name__: {
            "limit": limit | {"description": "At most so many at a time."}
        },
        RateLimiter.__name__: {
            "limit": limit | {"description": "At most so many in any window."},
            "window_seconds": window,
        },
    }
    limiters = {name: _mapping(keys, required=list(keys)) for name, keys in said.items()}
    node = _mapping(limiters, others=_mapping(limiters))
    named: Schema = {"type": "object", "propertyNames": {"minLength": 1}}
    keys = named | {"additionalProperties": named | node}
    return {"description": description} | named | {"additionalProperties": keys}


def _mapping(
    properties: Schema, *, required: list[str] | None = None, others: Any = False
) -> Schema:
    made = {"type": "object", "properties": properties, "additionalProperties": others}
    return made | ({"required": required} if required else {})
