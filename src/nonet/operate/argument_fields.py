"""The arguments of a task class as fields of a form: what each takes, what a user typed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from nonet.base.errors import InvalidArgumentsError
from nonet.base.messages.message import decode, encode
from nonet.base.plain import plain
from nonet.tasks.registry import TaskClass
from nonet.tasks.secrecy import secrets_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentField:
    """A field for one argument.

    Attributes:
        name: of the argument.
        type: what it takes, for people: ``integer or null``.
        is_text: a typed text is the value itself; otherwise it is JSON, or else a text.
        choices: what can be typed; empty: anything.
        default: what to type for its default; empty: it has none, or none that can be typed.
        is_required: whether it has no default.
        is_secret: whether its value is never shown.
    """

    name: str
    type: str
    is_text: bool
    choices: tuple[str, ...]
    default: str = ""
    is_required: bool
    is_secret: bool

    def shown(self, value: Any) -> str:
        """Return what to type for a value; empty if nothing is sure to mean the same."""
        text = plain(value)
        if not self.is_text:
            text = json.dumps(text, ensure_ascii=False)
        # Browsers and pages change control characters.
        return text if isinstance(text, str) and text.replace("\n", "").isprintable() else ""

    def typed(self, text: str) -> Any:
        """Return the value that a typed text means."""
        text = text.replace("\r\n", "\n")
        if self.is_text:
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


def fields_of(task_class: TaskClass) -> list[ArgumentField]:
    """Return the fields of a class, in the order of its arguments."""
    arguments = task_class.arguments
    schema, defaults = arguments.schema(), arguments.defaults
    secret = secrets_in(dict.fromkeys(arguments.names, ""), task_class.cls)
    found = []
    for name in arguments.names:
        shape = schema.get("properties", {}).get(name, {})
        options = _options(shape, schema.get("$defs", {}))
        kinds = [one for one in options if one.get("type") != "null"]
        choices = _choices(kinds[0]) if len(kinds) == 1 else ()
        field = ArgumentField(
            name=name,
            type=" or ".join(dict.fromkeys(map(_in_words, options))),
            is_text=all(one.get("type") == "string" for one in kinds),
            choices=choices,
            is_required=name in schema.get("required", arguments.names - defaults.keys()),
            is_secret=name in secret,
        )
        default = shape.get("default", defaults.get(name))
        if not field.is_secret and isinstance(default, _TYPED):
            field = replace(field, default=field.shown(default))
        found.append(field)
    return found


def typed(fields: Iterable[ArgumentField], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that were typed; an empty field is an empty text only if it must be."""
    found = {}
    for field in fields:
        text = texts.get(field.name, "")
        may_be_empty = (
            field.is_text and field.is_required and not (field.is_secret or field.choices)
        )
        if text or (may_be_empty and field.name in texts):
            found[field.name] = field.typed(text)
    return found


def shown(
    task_class: TaskClass, fields: Iterable[ArgumentField], stored: Mapping[str, Any]
) -> dict[str, str]:
    """Return what to type for stored arguments, without secrets and what cannot be typed."""
    secret = secrets_in(stored, task_class.cls)
    kept = [item for item in fields if item.name in stored and item.name not in secret]
    texts = {item.name: item.shown(stored[item.name]) for item in kept}
    again = typed(kept, texts)
    for name in problems_of(task_class, {**stored, **again}):
        again.pop(name, None)
    try:
        found = decode(encode(task_class.arguments.packed({**stored, **again})))
    except (InvalidArgumentsError, TypeError):  # its arguments are others by now
        return {}
    return {name: texts[name] for name in again if found.get(name) == stored[name]}


def problems_of(task_class: TaskClass, values: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with arguments, by name. The constructor may find more."""
    found: dict[str, str] = {}
    for item in task_class.arguments.problems(values):
        name, *inside = map(str, item["loc"] or ("",))
        found.setdefault(name, ": ".join([*filter(None, [".".join(inside)]), item["msg"]]))
    return found


_TYPED = (str, int, float, list, dict, Enum)


def _options(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas of which a value meets one, without references."""
    if "$ref" in shape:
        return _options(definitions[shape["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in shape:
        return [found for one in shape["anyOf"] for found in _options(one, definitions)]
    return [shape]


def _choices(shape: Mapping[str, Any]) -> tuple[str, ...]:
    values = [True, False] if shape.get("type") == "boolean" else shape.get("enum", ())
    return tuple(one if isinstance(one, str) else json.dumps(one) for one in values)


def _in_words(shape: Mapping[str, Any]) -> str:
    return str(shape.get("format") or shape.get("type") or "JSON")
