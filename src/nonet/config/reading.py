"""Merge and validate YAML files into a `Config`, and report all problems with file and line."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from nonet.base.errors import ConfigurationError, suggestion
from nonet.config.document import Document
from nonet.config.models import (
    RENAMED,
    SHARED,
    WRITTEN,
    CeilingsConfig,
    Config,
    FairnessConfig,
    PipelineConfig,
    RetryPolicyConfig,
    ScheduleConfig,
    Section,
    SectionConfig,
    SizeConfig,
    SizesConfig,
    SmallConfig,
    TaskConfig,
    TaskOverride,
    Unplaced,
    dotted,
)
from nonet.config.wording import place_reason, value_reason
from nonet.rules.limits import Location

Problem = tuple[str, Location, str]

_ON_TOP = {field.alias or name for name, field in Config.model_fields.items()}
_IN_SECTIONS = {field.alias or name for name, field in SectionConfig.model_fields.items()}


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
    config, problems = parse_sound(texts, source)
    if problems:
        raise problems_error(problems)
    return config


def parse_sound(texts: Iterable[tuple[str, str]], source: str) -> tuple[Config, list[Problem]]:
    """Like `parse_files`, but return the valid parts of the configuration with all problems.

    The caller can check the valid parts against the task classes and report those problems, too.
    """
    merged = _Merger(source)
    for name, text in texts:
        merged.add(name, text)
    arguments: tuple[tuple[Location, Mapping[str, Any]], ...] = ()
    try:
        config = Config.model_validate(merged.document, context=WRITTEN)
    except ValidationError as error:
        wrong = error.errors()
        for details in wrong:
            location = _location(details)
            merged.problems.append((merged.where(location), location, _reason(details)))
        places = [_location(details) for details in wrong]
        config = _sound(merged.document, places)
        arguments = tuple(_lost_arguments(merged.document, places))
    unplaced = Unplaced(arguments, tuple(_empty_limits(merged.document)))
    read = config.read_from(source, merged.where, unplaced, tuple(merged.warnings))
    return read, merged.problems


def _location(details: Any) -> Location:
    return tuple(part for part in details["loc"] if part != "[key]")


def _sound(document: dict[Any, Any], wrong: Iterable[Location]) -> Config:
    """Return the configuration without the parts that contain a problem."""
    kept = copy.deepcopy(document)
    for location in wrong:
        _remove(kept, location[: _whole(location)])
    try:
        return Config.model_validate(kept, context=WRITTEN)
    except ValidationError:
        return Config()


def _whole(location: Location) -> int:
    """Return the length of the path to the smallest part that can be dropped on its own."""
    if location[:1] == ("ceilings",):
        return 3
    if location[:1] == ("pipelines",):
        return 2
    section = {"common": 1, "vo-overrides": 2}.get(str(location[0]), 0) if location else 0
    if not section or len(location) <= section:
        return section or 1
    # A class with its overrides or all its entries; a size or an object with its limits.
    parts = {"tasks": 2, "periodic-tasks": 2, "sizes": 2, "limits": 3}
    return section + parts.get(str(location[section]), 1)


def _remove(node: Any, path: Location) -> None:
    """Remove the value at `path`, or at its longest prefix that exists."""
    for index, part in enumerate(path):
        inner = node.get(part)
        if index == len(path) - 1 or not isinstance(inner, dict) or path[index + 1] not in inner:
            node.pop(part, None)
            return
        node = inner


def _lost_arguments(
    document: Mapping[Any, Any], wrong: Collection[Location]
) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """Yield the valid arguments of the classes that `_sound` dropped because of other errors."""
    lost = dict.fromkeys(place[: _whole(place)] for place in wrong if "periodic-tasks" in place)
    for at in lost:
        entries = _value_at(document, at)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            here = (*at, index, "args")
            args = entry.get("args") if isinstance(entry, dict) else None
            if isinstance(args, dict) and not any(place[: len(here)] == here for place in wrong):
                yield here, args


def _empty_limits(document: Mapping[Any, Any]) -> Iterator[Location]:
    vos = _value_at(document, ("vo-overrides",))
    of_vos = [("vo-overrides", vo) for vo in vos] if isinstance(vos, dict) else []
    for at in [("common",), *of_vos]:
        here = (*at, "limits")
        section = _value_at(document, here)
        for name, keys in section.items() if isinstance(section, dict) else ():
            if keys == {}:
                yield (*here, name)
            elif isinstance(keys, dict):
                yield from ((*here, name, key) for key, item in keys.items() if item == {})


def _value_at(node: Any, path: Location) -> Any:
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def problems_error(problems: Iterable[Problem]) -> ConfigurationError:
    """Return one error for many problems, one line each: file and line, path, reason."""
    lines = [
        f"{where}: {dotted(location)}: {reason}" if location else f"{where}: {reason}"
        for where, location, reason in problems
    ]
    return ConfigurationError("\n".join(" ".join(line.split()) for line in lines))


class _Merger:
    """Merges documents and records the file and line of each path."""

    def __init__(self, source: str) -> None:
        self.document: dict[Any, Any] = {}
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._source = source
        self._documents: dict[str, Document] = {}
        self._files: dict[tuple[Any, ...], str] = {}

    def add(self, file: str, text: str) -> None:
        document = self._documents[file] = Document(text)
        for old, new in RENAMED.items():
            if (line := document.rename(old, new)) is not None:
                self.warnings.append(f"{_place(file, line)}: {old} is called {new} now: rename it")
        for line, reason in document.problems:
            self.problems.append((_place(file, line), (), reason))
        if document.value is None and not document.problems:
            # The file is probably truncated or still being written.
            reason = "is empty: write {} if nothing is to be configured"
            self.problems.append((file, (), reason))
        elif isinstance(document.value, dict):
            self._merge(file, self.document, document.value, ())
        elif document.value is not None:
            reason = "must be a mapping with vos, common or vo-overrides"
            self.problems.append((file, (), reason))

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
        return _unknown_key(details["loc"])
    return place_reason(_location(details), details)


def _unknown_key(location: Location) -> str:
    key, model = str(location[-1]), _model_at(location[:-1])
    if model is SmallConfig and key in _keys(SizeConfig):
        return f"cannot hold for small tasks, {SHARED}: write it for the class under tasks"
    known = _keys(model)
    reason = f"unknown key {key!r}, known are {', '.join(known)}."
    if len(location) == 1 and key in _IN_SECTIONS:
        return f"{reason} Write it under common, or under a VO of vo-overrides"
    if key in _ON_TOP and model is SectionConfig:
        return f"{reason} Write it at the top, beside common"
    return reason + suggestion(key, known)


def _keys(model: type[Section]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(location: Location) -> type[Section]:
    match location:
        case ():
            return Config
        case ("ceilings", *_):
            return CeilingsConfig
        case ("fairness", *_):
            return FairnessConfig
        case ("pipelines", *_):
            return PipelineConfig
        case ("common", *inside) | ("vo-overrides", _, *inside):
            pass
    match inside:
        case []:
            return SectionConfig
        case ["periodic-tasks", _, _]:
            return TaskConfig
        case ["tasks", _]:
            return TaskOverride
        case ["tasks", _, "retry-policy"]:
            return RetryPolicyConfig
        case ["sizes"]:
            return SizesConfig
        case ["sizes", "small"]:
            return SmallConfig
        case ["sizes", _]:
            return SizeConfig
        case _:
            return ScheduleConfig
