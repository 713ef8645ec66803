"""The arguments of a task class as fields of a form: what each takes, what a user typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from nonet.base.errors import InvalidArgumentsError
from nonet.base.messages.message import decode, encode
from nonet.base.plain import plain
from nonet.client.envelopes import NO_SECRET_IS_KEPT
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

    @property
    def may_be_empty(self) -> bool:
        """Whether an empty field stands for an empty text."""
        return self.is_text and self.is_required and not (self.is_secret or self.choices)

    def shown(self, value: Any) -> str:
        """Return what to type for a value; empty if nothing is sure to mean the same."""
        text = plain(value)
        if not self.is_text:
            text = json.dumps(text, ensure_ascii=False)
        # Browsers and pages change control characters.
        return text if isinstance(text, str) and text.replace("\n", "").isprintable() else ""

    def typed(self, text: str) -> Any:
        """Return the value that a typed text means."""
        if self.is_text:
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


@dataclass(frozen=True)
class Draft:
    """The arguments of a task before it is submitted.

    Attributes:
        task_class: its class.
        stored: the arguments that a change begins with; None: it is no change.
        is_revealed: whether they are shown.
    """

    task_class: TaskClass
    stored: Mapping[str, Any] | None = None
    is_revealed: bool = False

    @cached_property
    def fields(self) -> list[ArgumentField]:
        """The fields of the arguments, in their order."""
        arguments = self.task_class.arguments
        schema, defaults = arguments.schema(), arguments.defaults
        required = schema.get("required", arguments.names - defaults.keys())
        secret = secrets_in({**dict.fromkeys(arguments.names, ""), **(self.stored or {})}, self.cls)
        found = []
        for name in arguments.names:
            shape = schema.get("properties", {}).get(name, {})
            options = _options(shape, schema.get("$defs", {}))
            kinds = [one for one in options if one.get("type") != "null"]
            field = ArgumentField(
                name=name,
                type=" or ".join(dict.fromkeys(map(_in_words, options))),
                is_text=all(one.get("type") == "string" for one in kinds),
                choices=_choices(kinds[0]) if len(kinds) == 1 else (),
                is_required=name in required,
                is_secret=name in secret,
            )
            default = shape.get("default", defaults.get(name))
            is_shown = isinstance(default, _TYPED) and name not in secret
            found.append(replace(field, default=field.shown(default)) if is_shown else field)
        return found

    @property
    def cls(self) -> type:
        """The class itself."""
        return self.task_class.cls

    @cached_property
    def texts(self) -> dict[str, str]:
        """What its form begins with: stored arguments, but secrets and what cannot be typed."""
        stored = self.stored if self.stored and self.is_revealed else {}
        kept = [item for item in self.fields if item.name in stored and not item.is_secret]
        texts = {item.name: item.shown(stored[item.name]) for item in kept}
        again = {item.name: item.typed(texts[item.name]) for item in kept if texts[item.name]}
        for name in problems_of(self.task_class, {**stored, **again}):
            again.pop(name, None)
        try:
            found = decode(encode(self.task_class.arguments.packed({**stored, **again})))
        except (InvalidArgumentsError, TypeError):  # the class takes others by now
            return {}
        return {name: texts[name] for name in again if found.get(name) == stored[name]}

    def typed(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments that were typed; of a change, those that are others."""
        given = [item for item in self.fields if item.name in texts]
        if self.stored is None:
            # An empty field stands for an empty text only if there is no default.
            return {
                item.name: item.typed(texts[item.name])
                for item in given
                if texts[item.name] or item.may_be_empty
            }
        old = self.texts
        return {
            item.name: item.typed(texts[item.name])
            for item in given
            if texts[item.name] not in ("", old.get(item.name))
        }

    def problems(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return what is wrong with typed arguments, by name. The constructor may find more."""
        stored = self.stored or {}
        kept = secrets_in(stored, self.cls) - values.keys() if values else ()
        found = problems_of(self.task_class, {**stored, **values})
        return found | dict.fromkeys(kept, NO_SECRET_IS_KEPT)


def problems_of(task_class: TaskClass, values: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with arguments, by name."""
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
