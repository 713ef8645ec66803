"""Check values against the schema of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft7Validator, ValidationError


class Validator:
    """Checks values against one schema, `definitions` included."""

    def __init__(self, schema: dict[str, Any]) -> None:
        Draft7Validator.check_schema(schema)
        self._validator = Draft7Validator(schema)

    def problems(self, value: Any) -> list[str]:
        """The keywords that refuse `value`, each behind the path where it does."""
        return [line for error in self._validator.iter_errors(value) for line in _lines(error)]


def _lines(error: ValidationError) -> Iterator[str]:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    at = "".join(steps)
    if error.validator == "additionalProperties":
        for name in error.instance.keys() - error.schema.get("properties", {}).keys():
            yield f"{at}.{name}: not allowed"
    elif "propertyNames" in error.absolute_schema_path:
        yield f"{at}.{error.instance}: {error.validator}"
    else:
        yield f"{at}: {error.validator}"
