"""Merge and validate YAML files into a `Config`, and report all problems with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from nonet.base.errors import ConfigurationError, suggestion
from nonet.config.document import Document
from nonet.config.models import WRITTEN, Config, Section, SectionConfig, SizeConfig, SmallConfig
from nonet.config.wording import SHARED, dotted, value_reason
from nonet.rules.limits import Location

Problem = tuple[str, Location, str]

_ON_TOP = {field.alias or name for name, field in Config.model_fields.items()}
_IN_SECTIONS = {field.alias or name for name, field in SectionConfig.model_fields.items()}
_DURATIONS = (
    *("soft-timeout", "hard-timeout", "cpu-limit"),
    *("jitter", "misfire-grace", "interval"),
)


def parse_config(text: str, source: str) -> Config:
    """Read the configuration from text; `source` names it in messages.

    Raises:
        ConfigurationError: lists all problems.

    Example:
        >>> parse_config("vos: [lhcb]", "inline").vos
        ['lhcb']
    """
    return parse_files([(source, text)], source=source)


def parse_files(texts: Iterable[tuple[str, str]], source: str) -> Config:
    """Read the configuration from the names and texts of its files.

    Files are merged in order. A key may be in two files only if it is a mapping in both.

    Args:
        source: name of all files together, for messages.

    Raises:
        ConfigurationError: lists all problems.
    """
    merged = _Merger(source)
    for name, text in texts:
        merged.add(name, text)
    problems = merged.problems
    try:
        config = Config.model_validate(merged.document, context=WRITTEN)
        if not problems:
            return config.read_from(source, merged.where)
    except ValidationError as error:
        for details in error.errors():
            location = tuple(part for part in details["loc"] if part != "[key]")
            problems.append((merged.where(location), location, _reason(details)))
    raise problems_error(problems)


def problems_error(problems: Iterable[Problem]) -> ConfigurationError:
    """Return one error for many problems, one line each: file and line, path, reason."""
    lines = [
        f"{where}: {dotted(location)}: {reason}" if location else f"{where}: {reason}"
        for where, location, reason in problems
    ]
    return ConfigurationError("\n".join(" ".join(line.split()) for line in lines))


_NO_MAPPING = "must be a mapping with vos, common or vo-overrides"
_KEY = re.compile(r"[A-Za-z][\w-]{0,63}")


class _Merger:
    """Merges documents and records the file and line of each path."""

    def __init__(self, source: str) -> None:
        self.document: dict[Any, Any] = {}
        self.problems: list[Problem] = []
        self._source = source
        self._documents: dict[str, Document] = {}
        self._files: dict[tuple[Any, ...], str] = {}

    def add(self, file: str, text: str) -> None:
        document = self._documents[file] = Document(text)
        if _is_foreign(document.value):
            self.problems.append((file, (), _NO_MAPPING))
            return
        for line, reason in document.problems:
            self.problems.append((_place(file, line), (), reason))
        if document.value is None and not document.problems:
            # The file is probably truncated or still being written.
            reason = "is empty: write {} if nothing is to be configured"
            self.problems.append((file, (), reason))
        elif isinstance(document.value, dict):
            self._merge(file, self.document, document.value, ())

    def where(self, location: Location) -> str:
        """Return file and line of the longest known prefix of `location`."""
        parts = range(len(location), 0, -1)
        known = (self._files[location[:n]] for n in parts if location[:n] in self._files)
        file = next(known, None)
        if file is None:
            return self._source
        return _place(file, self._documents[file].line_of(location))

    def _merge(
        self, file: str, into: dict[Any, Any], new: dict[Any, Any], at: tuple[Any, ...]
    ) -> None:
        for key, value in new.items():
            here = (*at, key)
            if key not in into:
                into[key] = {} if isinstance(value, dict) else value
                self._files[here] = file
            elif not (isinstance(value, dict) and isinstance(into[key], dict)):
                reason = f"is also defined in {self.where(here)}"
                line = self._documents[file].line_of(here)
                self.problems.append((_place(file, line), here, reason))
                continue
            if isinstance(value, dict):
                self._merge(file, into[key], value, here)


def _is_foreign(value: Any) -> bool:
    """Return whether a document is something else, such as a file of passwords.

    YAML reads each of its lines ``name:hash:::`` as a key, which no error may quote.
    """
    if isinstance(value, dict):
        return not all(isinstance(key, str) and _KEY.fullmatch(key) for key in value)
    return value is not None


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def _reason(details: Any) -> str:
    """Describe a problem, in our words if pydantic's do not help an operator."""
    kind = details["type"]
    if details["loc"][-1:] == ("[key]",):
        return f"as a key: {value_reason(details)}"
    if kind == "enum":
        known = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        written = details["input"]
        reason = f"is {written!r:.40}, but must be {', '.join(known[:-1])} or {known[-1]}."
        return (reason + suggestion(str(written), known)).removesuffix(".")
    if kind == "extra_forbidden":
        return _unknown_key(details["loc"], details["input"])
    *above, key = details["loc"]
    is_duration = key in _DURATIONS and "args" not in above
    return value_reason(details, " of seconds, such as 60" if is_duration else "")


_OF_DIRACX = {"rate_limit", "rate_window_seconds", "concurrency_limit", "periodic"}


def _unknown_key(location: Location, value: Any) -> str:
    key, model = str(location[-1]), _model_at(location[:-1])
    if model is SmallConfig and key in _keys(SizeConfig):
        return f"cannot hold for small tasks, {SHARED}: write it for the class under tasks"
    known = _keys(model)
    reason = f"unknown key {key!r}, known are {', '.join(known)}."
    if isinstance(value, dict) and model is SectionConfig and _OF_DIRACX & value.keys():
        return (
            f"unknown key {key!r}, a class as in DiracX. Write periodic under periodic-tasks, and "
            "rate_limit and concurrency_limit under limits: Task, each with the name of the class"
        )
    if len(location) == 1 and isinstance(value, dict) and "common" in value:
        return f"{reason} Move its keys to the top level"
    if len(location) == 1 and key in _IN_SECTIONS:
        return f"{reason} Write it under common, or under a VO of vo-overrides"
    if key in _ON_TOP and model is SectionConfig:
        return f"{reason} Write it at the top, beside common"
    return reason + suggestion(key, known)


def _keys(model: type[Section]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(location: Location) -> type[Section]:
    """Return the model of the mapping at `location`."""
    model: type[Section] = Config
    parts = iter(location)
    for part in parts:
        annotations = {field.alias: field.annotation for field in model.model_fields.values()}
        if (annotation := annotations.get(str(part))) is not None:
            model = _section_in(annotation) or model
            if get_origin(annotation) is dict:
                next(parts, None)  # the name of a VO or a class
    return model


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the model of the values of a field, of its items or of its entries."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
