"""Models whose fields are read from the environment, from ``.env`` and from files of secrets."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from nonet.base.errors import ConfigurationError, suggestion

_ENV_FILE = Path(".env")


class EnvironmentModel(BaseModel):
    """A model whose field ``x`` is read from the variable ``PREFIX_X`` unless it is given.

    Attributes:
        PREFIX: of the variables of all fields.
        FROM_FILES: fields with secrets; ``PREFIX_X_FILE`` names a file that holds one.
        TEXTS: what fields accept whose pattern is not fit for an error message.
    """

    PREFIX: ClassVar[str]
    FROM_FILES: ClassVar[tuple[str, ...]] = ()
    TEXTS: ClassVar[Mapping[str, str]] = {}

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, values: Any) -> Any:
        """Read missing values from variables, and secrets from the files that variables name."""
        if not isinstance(values, Mapping):  # a model already
            return values
        variables = read_variables()
        found = {name: variables.get(cls.variable(name)) for name in cls.model_fields}
        found = {name: value for name, value in found.items() if value} | dict(values)
        for name in cls.FROM_FILES:
            variable = f"{cls.variable(name)}_FILE"
            path = variables.get(variable)
            if path and name not in found:
                found[name] = _read_secret(variable, Path(path))
        return found

    @classmethod
    def variable(cls, field: str) -> str:
        """Return the name of the variable of a field."""
        return f"{cls.PREFIX}{field.upper()}"

    @classmethod
    def variables(cls) -> set[str]:
        """Return the names of all variables of this model."""
        fields = {cls.variable(name) for name in cls.model_fields}
        return fields | {f"{cls.variable(name)}_FILE" for name in cls.FROM_FILES}

    @classmethod
    def load(cls, **options: Any) -> Self:
        """Load the model. Options that are not None override the environment.

        Raises:
            ConfigurationError: values are invalid (all are listed), or an option is unknown.
        """
        for name in options:
            if name not in cls.model_fields:
                raise ConfigurationError(
                    f"setting {name!r} is not known.{suggestion(name, cls.model_fields)}"
                )
        try:
            return cls(**{name: value for name, value in options.items() if value is not None})
        except OSError as error:
            raise ConfigurationError(f"settings: {error}") from None
        except ValidationError as error:
            problems = [
                "".join(f"{cls.variable(str(name))}: " for name in item["loc"][:1])
                + cls._wanted(item)
                for item in error.errors(include_url=False, include_input=False)
            ]
            raise ConfigurationError("settings: " + "; ".join(problems)) from None

    @classmethod
    def plain(cls, **options: Any) -> Self:
        """Build the model from options and defaults, ignoring the environment and ``.env``.

        Raises:
            ConfigurationError: like `load`.
        """
        defaults = {
            name: field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if name not in options  # without a home directory, state_dir has no default
        }
        return cls.load(**{**defaults, **options})

    @classmethod
    def _wanted(cls, details: ErrorDetails) -> str:
        """Describe the values that a field accepts."""
        name, kind = str(details["loc"][0]) if details["loc"] else "", details["type"]
        if kind == "string_pattern_mismatch" and name in cls.TEXTS:
            return f"must be {cls.TEXTS[name]}"
        if kind == "string_too_short":
            return "must not be empty"
        if kind.startswith("bool_"):
            return "must be true or false"
        if kind.startswith(("int_", "float_", "finite_", "greater_", "less_")):
            return f"must be {cls._numbers(name)}"
        return details["msg"].removeprefix("Value error, ")

    @classmethod
    def _numbers(cls, name: str) -> str:
        """Describe the numbers that a field accepts, e.g. ``a whole number from 0 to 65535``."""
        field = cls.model_fields[name]
        said = {
            bound: getattr(item, bound)
            for item in field.metadata
            for bound in ("ge", "gt", "le")
            if getattr(item, bound, None) is not None
        }
        kind = "a number" if field.annotation is float else "a whole number"
        if "ge" in said and "le" in said:
            return f"{kind} from {said['ge']} to {said['le']:.0f}"
        least = f" of at least {said['ge']}" if "ge" in said else ""
        above = f" above {said['gt']}" if "gt" in said else ""
        most = f", at most {said['le']:.0f}" if "le" in said else ""
        return kind + least + above + most


def read_variables() -> dict[str, str | None]:
    """Return ``.env`` overridden by the environment, with names in upper case."""
    from_file: Mapping[str, str | None] = {}
    if _ENV_FILE.is_file() or _ENV_FILE.is_fifo():
        from dotenv import dotenv_values  # imported here because few processes have the file

        from_file = dotenv_values(_ENV_FILE, encoding="utf-8")
    return {name.upper(): value for name, value in (*from_file.items(), *os.environ.items())}


def refuse_unknown_variables(prefix: str, known: Collection[str]) -> None:
    """Raise `ConfigurationError` if a variable with this prefix is not in `known`."""
    for name in read_variables():
        if name.startswith(prefix) and name not in known:
            raise ConfigurationError(f"setting {name} is not known.{suggestion(name, known)}")


def _read_secret(variable: str, path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"settings: {variable}: {path} cannot be read: {reason}") from None
    if not text:
        raise ConfigurationError(f"settings: {variable}: {path} is empty")
    return text
