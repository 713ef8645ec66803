"""The JSON Schema of the configuration, for completion and checks in editors.

It checks less than the loader: no task classes, schedule expressions or merged files. The loader
rejects everything that the schema rejects.
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
from nonet.tasks.retry import BUILT_IN_POLICIES
from nonet.tasks.schedules import SCHEDULES, IntervalSecondsSchedule

Schema = dict[str, Any]

_DRAFT = "http://json-schema.org/draft-07/schema#"  # the draft that editors understand

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
        "vos": "Virtual organisations, in addition to those under vo-overrides.",
        "common": "Values for the installation and for every VO.",
        "vo-overrides": "Per VO; the entries of a class replace its common entries for this VO.",
        "ceilings": "The most tasks at a time; further submissions are rejected.",
        "fairness": "How tenants share the slots of a priority. Default: tasks run in order.",
        "pipelines": "Per pipeline: values that override its attributes.",
        "namespaces": "Per tenant, see fairness.by (default: vo): the namespace that has its tasks;"
        " '*' for all others. Default: that to which a task is submitted.",
    },
    "PipelineConfig": {
        "workers": "How many rows one process processes at once.",
        "interval": "Seconds until a processed row is due again.",
        "queue": "How many rows one process leases in advance at most.",
        "pause": "true: no row is fetched.",
    },
    "FairnessConfig": {
        "by": "What tells tenants apart: vo, class or label:NAME.",
        "weights": "Shares of tenants, relative to each other; 'default' for all others, else 1.",
        "streams": "The streams that are shared, such as normal:small. Default: all.",
    },
    "CeilingsConfig": {
        "namespace": "For all tasks together.",
        "streams": "Per stream, such as background:small.",
        "tenants": "Per tenant, see fairness.by (default: vo); 'default' for all others.",
        "tenant-bytes": "Per tenant: most bytes of the messages of its tasks, such as 512MiB.",
        "tenant-rates": "Per tenant: most new tasks a second.",
        "tasks": "Per class (Class, or category:Class).",
    },
    "SectionConfig": {
        "periodic-tasks": "Per class (Class, or category:Class): a list of entries.",
        "limits": "Object type, then key or 'default', then limiters, or actions with limiters.",
        "tasks": "Per class (Class, or category:Class): values that override its attributes.",
        "sizes": "Per size: limits for classes that have none of their own.",
    },
    "TaskConfig": {
        "name": "Distinguishes the entries of one class. Optional if there is only one.",
        "schedule": "When it fires. Default: the schedule of the class.",
        "args": "Arguments of the class. The VO is added by the scheduler.",
        "enabled": "false: the entry does not fire. Default: the attribute of the class.",
        "overlap": "What to do with an occurrence while the previous one still runs: skip, queue"
        " (wait for it) or allow.",
        "catch-up": "What to submit of occurrences missed for longer than misfire-grace: the latest"
        " (one), none (skip) or all.",
        "catch-up-limit": "With 'catch-up: all', the most occurrences to submit.",
        "jitter": "Seconds: delays each occurrence by a random time of at most this.",
        "misfire-grace": "Seconds: occurrences missed for less are submitted one by one. Default:"
        " NONET_MISFIRE_GRACE, or the interval if that is shorter.",
    },
    "ScheduleConfig": {
        "class": "IntervalSecondsSchedule, CronSchedule or RRuleSchedule.",
        "timezone": "IANA name, such as Europe/Zurich. Default: UTC.",
        "arg": "Seconds of an interval, five fields of cron or an @alias, or an RRULE.",
    },
    "TaskOverride": {
        "priority": "The priority of its stream.",
        "size": "Which pool of workers runs it.",
        "retry-policy": "What happens after a failed attempt.",
        "soft-timeout": "Seconds after which an attempt is cancelled.",
        "hard-timeout": "Seconds after which an attempt is given up; not below soft-timeout.",
        "dlq-eligible": "true: keep a task in SQL when it has failed for good.",
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
        "class": "A built-in policy, or one that a package of tasks defines.",
        "args": "Its arguments.",
    },
}


def json_schema() -> Schema:
    """Return the JSON Schema (draft 7) of the configuration."""
    schema = Config.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    del definitions["LimitRule"]  # the internal form of limits, not the form in the file
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
    """Return the schema of an optional field without null: a key in the file needs a value."""
    (kind,) = [one for one in found.get("anyOf", [found]) if one.get("type") != "null"]
    kept = {key: value for key, value in kind.items() if key not in ("title", "default")}
    if "$ref" in kept:  # draft 7 ignores all keys beside it
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
        policy.__name__: _untitled(policy.model_json_schema()) for policy in BUILT_IN_POLICIES
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
    """Return the schema of limits: object type → key → limiters, or actions → limiters."""
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}
    window = {
        "type": "number",
        "minimum": LEAST_WINDOW_SECONDS,
        "maximum": MOST_WINDOW_SECONDS,
        "description": "Length of the window, in seconds.",
    }
    said: dict[str, Schema] = {
        ConcurrencyLimiter.__name__: {
            "limit": limit | {"description": "At most this many tasks at a time."}
        },
        RateLimiter.__name__: {
            "limit": limit | {"description": "At most this many starts in any window."},
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
