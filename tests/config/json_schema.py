"""A small JSON Schema validator, for what the schema of the configuration uses of draft 7.

An unknown keyword is an error: it would be ignored, and a test would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _TYPES["number"](value) and value == int(value),
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
}
_WORDS = {"description", "title", "examples", "default", "$schema", "definitions", "then", "else"}


class Validator:
    """Checks values against one schema, `definitions` included."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def problems(self, value: Any) -> list[str]:
        """The keywords that refuse `value`, each behind the path where it does."""
        return list(self._check(self._schema, value, ""))

    def _check(self, schema: Any, value: Any, at: str) -> Iterator[str]:
        if schema is False:
            yield f"{at}: not allowed"
        elif schema is not True:
            for keyword, said in schema.items():
                yield from self._keyword(keyword, said, value, at, schema)

    def _fits(self, schema: Any, value: Any) -> bool:
        return not list(self._check(schema, value, ""))

    def _keyword(self, keyword: str, said: Any, value: Any, at: str, schema: Any) -> Iterator[str]:
        is_object, fits = isinstance(value, dict), True
        match keyword:
            case "type":
                fits = any(_TYPES[one](value) for one in ([said] if type(said) is str else said))
            case "enum":
                fits = value in said
            case "const":
                fits = value == said
            case "anyOf":
                fits = any(self._fits(one, value) for one in said)
            case "allOf":
                for one in said:
                    yield from self._check(one, value, at)
            case "$ref":
                yield from self._check(self._definition(said), value, at)
            case "if":
                branch = "then" if self._fits(said, value) else "else"
                yield from self._check(schema.get(branch, True), value, at)
            case "minimum" | "maximum" | "exclusiveMinimum":
                fits = not _TYPES["number"](value) or _BOUNDS[keyword](value, said)
            case "pattern":
                fits = not isinstance(value, str) or re.search(said, value) is not None
            case "minLength":
                fits = not isinstance(value, str) or len(value) >= said
            case "maxProperties":
                fits = not is_object or len(value) <= said
            case "uniqueItems":
                fits = not isinstance(value, list) or len(set(value)) == len(value)
            case "required":
                fits = not is_object or all(name in value for name in said)
            case "propertyNames":
                for name in value if is_object else ():
                    yield from self._check(said, name, f"{at}.{name}")
            case "properties" | "additionalProperties":
                for name, item in value.items() if is_object else ():
                    others = keyword == "additionalProperties"
                    if (name in schema.get("properties", {})) != others:
                        yield from self._check(said if others else said[name], item, f"{at}.{name}")
            case "items":
                for index, item in enumerate(value if isinstance(value, list) else ()):
                    yield from self._check(said, item, f"{at}[{index}]")
            case _:
                assert keyword in _WORDS, f"unknown keyword {keyword}"
        if not fits:
            yield f"{at}: {keyword}"

    def _definition(self, reference: str) -> Any:
        found: Any = self._schema
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found
