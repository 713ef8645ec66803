"""The JSON Schema of the configuration, for completion and checks in editors.

It checks less than the loader: no task classes, schedule expressions or merged files. The loader
rejects everything that the schema rejects.
"""

from __future__ import annotations

import re
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


def json_schema() -> Schema:
    """Return the JSON Schema (draft 7) of the configuration."""
    schema = Config.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    del definitions["LimitRule"]  # the internal form of limits, not the form in the file
    for definition in (schema, *definitions.values()):
        del definition["title"]
        _describe(definition)
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


def _describe(definition: Schema) -> None:
    """Describe the properties of a model as its docstring does, and allow no null."""
    _, _, attributes = definition.pop("description", "").partition("Attributes:\n")
    texts = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", attributes.partition("\n\n")[0], re.M)
    for name, text in texts if "properties" in definition else ():
        key = name.rstrip("_").replace("_", "-")
        found = _without_null(definition["properties"][key])
        definition["properties"][key] = {"description": " ".join(text.split()), **found}


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
    keys_of: dict[str, Schema] = {
        ConcurrencyLimiter.__name__: {
            "limit": limit | {"description": "At most this many tasks at a time."}
        },
        RateLimiter.__name__: {
            "limit": limit | {"description": "At most this many starts in any window."},
            "window_seconds": window,
        },
    }
    limiters = {name: _mapping(keys, required=list(keys)) for name, keys in keys_of.items()}
    node = _mapping(limiters, others=_mapping(limiters))
    named: Schema = {"type": "object", "propertyNames": {"minLength": 1}}
    keys = named | {"additionalProperties": named | node}
    return {"description": description} | named | {"additionalProperties": keys}


def _mapping(
    properties: Schema, *, required: list[str] | None = None, others: Any = False
) -> Schema:
    made = {"type": "object", "properties": properties, "additionalProperties": others}
    return made | ({"required": required} if required else {})
