"""Models whose fields are read from the environment, from ``.env`` and from files of secrets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from msgspec import Struct, ValidationError, convert, structs

from nonet.base.errors import ConfigurationError, suggestion

_ENV_FILE = Path(".env")
_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)


class Secret:
    """A text that neither a log line nor an error shows.

    Attributes:
        file: the file that it was read from; empty: none.

    Example:
        >>> Secret("redis://:s3cret@db.example"), Secret("s3cret").get_secret_value()
        (Secret('***'), 's3cret')
    """

    __slots__ = ("_text", "file")

    def __init__(self, text: str, file: str = "") -> None:
        self._text = text
        self.file: str = file

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __str__(self) -> str:
        return "***" if self._text else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class EnvironmentModel(Struct, frozen=True, kw_only=True):
    """A model whose field ``x`` is read from the variable ``PREFIX_X`` unless it is given.

    It is not a pydantic model: each daemon and child process loads its settings, and most need
    pydantic for nothing else until a task comes.

    Attributes:
        PREFIX: of the variables of all fields.
        FROM_FILES: fields with secrets; ``PREFIX_X_FILE`` names a file that holds one.
        TEXTS: what fields with a pattern accept, for error messages.
        READERS: convert given values of fields whose type does not describe what they accept; they
            raise ValueError.
        UNSHOWN: fields that the text of the model leaves out.
    """

    PREFIX: ClassVar[str]
    FROM_FILES: ClassVar[tuple[str, ...]] = ()
    TEXTS: ClassVar[Mapping[str, str]] = {}
    READERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    UNSHOWN: ClassVar[Collection[str]] = ()

    def __repr__(self) -> str:
        shown = [name for name in self.__struct_fields__ if name not in self.UNSHOWN]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"

    @classmethod
    def variable(cls, field: str) -> str:
        """Return the name of the variable of a field."""
        return f"{cls.PREFIX}{field.upper()}"

    @classmethod
    def variables(cls) -> set[str]:
        """Return the names of all variables of this model."""
        fields = {cls.variable(name) for name in cls.__struct_fields__}
        return fields | {f"{cls.variable(name)}_FILE" for name in cls.FROM_FILES}

    @classmethod
    def given(cls, **options: Any) -> dict[str, Any]:
        """Return the unchecked value of each field that has one.

        An option that is not None goes before the variable of its field.

        Raises:
            ConfigurationError: a file that a variable names cannot be read.
        """
        try:
            variables = read_variables()
        except OSError as error:
            raise ConfigurationError(f"settings: {error}") from None
        found: dict[str, Any] = {
            name: text
            for name in cls.__struct_fields__
            if (text := variables.get(cls.variable(name)))
        }
        found |= {name: value for name, value in options.items() if value is not None}
        for name in cls.FROM_FILES:
            variable = f"{cls.variable(name)}_FILE"
            path = variables.get(variable)
            if path and name not in found:
                found[name] = Secret(_read_secret(variable, Path(path)), path)
        return found

    @classmethod
    def load(cls, **options: Any) -> Self:
        """Load the model. Options that are not None override the environment.

        Raises:
            ConfigurationError: values are invalid (all are listed), or an option is unknown.
        """
        cls._refuse_unknown(options)
        return cls._made(cls.given(**options))

    @classmethod
    def plain(cls, **options: Any) -> Self:
        """Build the model from options and defaults, ignoring the environment and ``.env``.

        Raises:
            ConfigurationError: like `load`.
        """
        cls._refuse_unknown(options)
        return cls._made({name: value for name, value in options.items() if value is not None})

    @classmethod
    def _refuse_unknown(cls, options: Collection[str]) -> None:
        for name in options:
            if name not in cls.__struct_fields__:
                raise ConfigurationError(
                    f"setting {name!r} is not known.{suggestion(name, cls.__struct_fields__)}"
                )

    @classmethod
    def _made(cls, given: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {}
        problems: list[str] = []
        for field in structs.fields(cls):
            name = field.name
            if name not in given:
                continue
            try:
                read = cls.READERS.get(name)
                values[name] = read(given[name]) if read else _read(field.type, given[name])
            except ValidationError:
                problems.append(f"{cls.variable(name)}: must be {cls._wanted(name, field.type)}")
            except ValueError as error:
                problems.append(f"{cls.variable(name)}: {error}")
        if not problems:
            try:
                return cls(**values)
            except ValueError as error:  # fields that contradict each other
                problems.append(str(error))
        raise ConfigurationError("settings: " + "; ".join(problems)) from None

    @classmethod
    def _wanted(cls, name: str, kind: Any) -> str:
        """Describe the values that a field accepts, e.g. ``a whole number from 0 to 65535``."""
        if name in cls.TEXTS:
            return cls.TEXTS[name]
        kind, bounds = bounded(kind)
        if get_origin(kind) is Literal:
            *others, last = get_args(kind)
            return f"{', '.join(others)} or {last}"
        if kind is str:
            return "a text that is not empty" if bounds else "a text"
        if kind not in (int, float):
            return "a path" if kind is Path else "names, separated by commas"
        number = "a number" if kind is float else "a whole number"
        if "ge" in bounds and "le" in bounds:
            return f"{number} from {bounds['ge']} to {bounds['le']:.0f}"
        least = f" of at least {bounds['ge']}" if "ge" in bounds else ""
        above = f" above {bounds['gt']}" if "gt" in bounds else ""
        most = f", at most {bounds['le']:.0f}" if "le" in bounds else ""
        return number + least + above + most


def bounded(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Return the plain type of a field, and the bounds of its values.

    >>> from msgspec import Meta
    >>> bounded(Annotated[int, Meta(ge=1, le=9)] | None)
    (<class 'int'>, {'ge': 1, 'le': 9})
    """
    if type(None) in get_args(kind):
        kind = get_args(kind)[0]
    if get_origin(kind) is not Annotated:
        return kind, {}
    kind, *metadata = get_args(kind)
    names = ("ge", "gt", "le", "min_length")
    found = {name: getattr(item, name) for item in metadata for name in names}
    return kind, {name: value for name, value in found.items() if value is not None}


def _read(kind: Any, value: Any) -> Any:
    """Convert a value from a variable or a program to the type of a field."""
    plain, bounds = bounded(kind)
    if plain is Secret:
        return read_secret(value)
    if plain is bool:
        return read_flag(value)
    if plain is str and bounds.get("min_length") and value == "":
        raise ValueError("must not be empty")
    if isinstance(value, str):
        if plain in (int, float):
            value = _number(value)
        elif get_origin(plain) is tuple:
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        elif get_origin(plain) is Literal:
            value = value.lower()
    elif isinstance(value, Path) and plain is str:
        value = str(value)
    if plain in (int, float) and isinstance(value, float) and not math.isfinite(value):
        raise ValidationError
    return convert(value, kind, strict=False, dec_hook=_path)


def _number(text: str) -> int | float | str:
    """Read a number as Python writes it, such as 10_000; return another text as it is."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValidationError


def read_flag(value: Any) -> bool:
    """Return whether true or false is written.

    Raises:
        ValueError: neither is.

    >>> read_flag("yes"), read_flag(0)
    (True, False)
    """
    text = str(int(value)) if isinstance(value, bool | int) else str(value).strip().lower()
    if text not in _FLAGS:
        raise ValueError("must be true or false")
    return _FLAGS[text]


def read_secret(value: Any) -> Secret:
    """Return a text, or one of pydantic's secrets, as a `Secret`.

    Raises:
        ValueError: it is no text.
    """
    text = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    if not isinstance(text, str):
        raise ValueError("must be a text")
    return Secret(text, getattr(value, "file", ""))


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
