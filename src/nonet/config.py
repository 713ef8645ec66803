"""The central configuration: what the YAML file may say, and how its mistakes are reported.

Process settings (URLs, durations) are in `nonet.settings`; this is what administrators of an
installation edit, in the form of the decision record. It is read as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from nonet.errors import ConfigurationError, suggestion
from nonet.limits import LimitRule, read_limits
from nonet.schedules import TaskScheduleBase, build_schedule, schedule_class, zone

Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
Location: TypeAlias = tuple[str | int, ...]

LATER_SECTIONS = frozenset({"tasks", "admission"})


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64")


class ScheduleConfig(_Section):
    """``schedule: {class: CronSchedule, arg: "0 */6 * * *", timezone: Europe/Zurich}``."""

    # The order matters: `arg` is checked with the two others.
    class_: StrictStr = Field(alias="class")
    timezone: StrictStr | None = None
    arg: str | int | float

    @field_validator("class_")
    @classmethod
    def _known_class(cls, value: str) -> str:
        _as_value_error(lambda: schedule_class(value))
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        if value is not None:
            _as_value_error(lambda: zone(value))
        return value

    @field_validator("arg", mode="plain")  # the schedule classes check its type
    @classmethod
    def _fits_class(cls, value: str | int | float, info: ValidationInfo) -> str | int | float:
        if "class_" in info.data and "timezone" in info.data:
            _as_value_error(
                lambda: build_schedule(info.data["class_"], value, info.data["timezone"])
            )
        return value

    def build(self) -> TaskScheduleBase:
        """The schedule described here."""
        return build_schedule(self.class_, self.arg, self.timezone)


class TaskConfig(_Section):
    """One entry of a periodic class; `PeriodicBaseTask.validate_config` gets a list of these.

    Attributes:
        name: tells entries of one class apart; may be missing when there is one.
        schedule: None for the default of the class.
        args: keyword arguments of the constructor.
        enabled: None for the default of the class.
    """

    name: Name | None = None
    schedule: ScheduleConfig | None = None
    args: dict[StrictStr, Any] = Field(default_factory=dict)
    enabled: StrictBool | None = None


def _distinct_names(entries: list[TaskConfig]) -> list[TaskConfig]:
    names = [entry.name for entry in entries]
    if len(entries) > 1 and None in names:
        raise ValueError(f"entry {names.index(None)} needs a name, because there are several")
    if twice := _twice(names):
        raise ValueError(f"several entries have the same name: {twice}")
    return entries


def _limit_rules(section: object) -> tuple[LimitRule, ...]:
    rules, problems = read_limits(section)
    if problems:
        raise ValidationError.from_exception_data(
            "limits",
            [
                InitErrorDetails(
                    type=PydanticCustomError("limits", "{reason}", {"reason": reason}),
                    loc=place,
                    input=None,
                )
                for place, reason in problems
            ],
        )
    return tuple(rules)


class SectionConfig(_Section):
    """What ``common`` and each VO under ``vo-overrides`` may contain.

    Attributes:
        limits: one rule for each limiter that is written there.
    """

    periodic_tasks: dict[
        StrictStr, Annotated[list[TaskConfig], AfterValidator(_distinct_names)]
    ] = Field(default_factory=dict, alias="periodic-tasks")
    limits: Annotated[tuple[LimitRule, ...], BeforeValidator(_limit_rules)] = ()


_IN_SECTIONS = {field.alias or name for name, field in SectionConfig.model_fields.items()}


class Config(_Section):
    """The whole document.

    Attributes:
        vos: virtual organisations, besides those named under `vo_overrides`.
        common: what holds for the installation and for every VO.
        vo_overrides: per VO; a class named there replaces its common entries for this VO.
    """

    vos: list[Name] = Field(default_factory=list)
    common: SectionConfig = SectionConfig()
    vo_overrides: dict[Name, SectionConfig] = Field(default_factory=dict, alias="vo-overrides")
    _source: str = PrivateAttr("configuration")

    @field_validator("vos")
    @classmethod
    def _distinct_vos(cls, value: list[str]) -> list[str]:
        if twice := _twice(value):
            raise ValueError(f"listed twice: {twice}")
        return value

    @property
    def source(self) -> str:
        """The file or directory this came from, for messages."""
        return self._source

    def fingerprint(self) -> str:
        """A hash of the meaning: comments and the order of keys do not change it."""
        document = self.model_dump(mode="json", by_alias=True)
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def load_config(path: Path) -> Config:
    """Read the configuration from a file, or from the ``*.yaml`` and ``*.yml`` of a directory.

    The files of a directory are merged in the order of their names; a key that two of them
    define is refused, unless it is a mapping in both.

    Raises:
        ConfigurationError: all problems at once, each with file, path and reason.

    Example:
        config = load_config(Path("config.example.yaml"))
    """
    files = _files(path)
    documents = [(str(file), _read(file)) for file in files]
    return _build(documents, source=str(path))


def parse_config(text: str, source: str) -> Config:
    """Read the configuration from text; `source` names it in messages.

    Raises:
        ConfigurationError: all problems at once.

    Example:
        >>> parse_config("vos: [lhcb]", "inline").vos
        ['lhcb']
    """
    return _build([(source, text)], source=source)


def problems_error(problems: Iterable[tuple[str, Location, str]]) -> ConfigurationError:
    """One error for many problems, each a file, a path in it and a reason."""
    lines = [
        f"{source}: {_dotted(location)}: {reason}" if location else f"{source}: {reason}"
        for source, location, reason in problems
    ]
    return ConfigurationError("\n".join(lines))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Kubernetes mounts keep their versions in hidden entries of the same directory.
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in (".yaml", ".yml") and not file.name.startswith(".")
    )
    if not files:
        raise ConfigurationError(f"{path}: the directory has no *.yaml or *.yml file")
    return files


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not UTF-8: {error.reason}") from None


def _build(texts: list[tuple[str, str]], source: str) -> Config:
    merged = _Merger()
    for name, text in texts:
        merged.add(name, _parse(name, text, merged.problems))
    try:
        config = Config.model_validate(merged.document)
    except ValidationError as error:
        for details in error.errors():
            location = tuple(part for part in details["loc"] if part != "[key]")
            reason = _reason(details["type"], details["msg"], details["loc"])
            merged.problems.append((merged.file_of(location) or source, location, reason))
    if merged.problems:
        raise problems_error(merged.problems)
    config._source = source
    return config


def _parse(source: str, text: str, problems: list[tuple[str, Location, str]]) -> dict[Any, Any]:
    try:
        loader = _Loader(text)
        document = loader.get_single_data()
        json.dumps(document, default=str, skipkeys=True)  # finds a document that contains itself
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problems.append((source, (), f"{line}{error.problem or error.context}"))
        return {}
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        problems.append((source, (), f"is no usable YAML: {error}"))
        return {}
    problems += [(source, (), reason) for reason in loader.problems]
    if document is None:
        # A file that was cut off or is being written, far more likely than no wish at all.
        problems.append((source, (), "is empty: write {} if nothing is to be configured"))
        return {}
    if not isinstance(document, dict):
        problems.append((source, (), "must be a mapping with vos, common or vo-overrides"))
        return {}
    return document


_INTEGER = "tag:yaml.org,2002:int"
_PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]*")


class _Loader(yaml.SafeLoader):
    """The safe loader, which also notices keys that it would silently take for others."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Composed nodes still are what was written; `<<` is resolved later. (The type stubs are
        # wrong about `anchor`, which is a name or None.)
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            identity = (key.tag, str(key.value))
            if identity in seen:
                self._problem(key, "is written twice")
            if key.tag == _INTEGER and not _PLAIN_INTEGER.fullmatch(str(key.value)):
                number = self.construct_object(key)
                self._problem(key, f"is the number {number} in YAML: write it in quotes")
            seen.add(identity)
        return node

    def _problem(self, key: yaml.Node, reason: str) -> None:
        self.problems.append(f"line {key.start_mark.line + 1}: the key {key.value!r} {reason}")


class _Merger:
    """Merges documents and remembers which file each path came from."""

    def __init__(self) -> None:
        self.document: dict[Any, Any] = {}
        self.problems: list[tuple[str, Location, str]] = []
        self._files: dict[tuple[Any, ...], str] = {}

    def add(self, file: str, document: dict[Any, Any]) -> None:
        self._merge(file, self.document, document, ())

    def _merge(
        self, file: str, into: dict[Any, Any], new: dict[Any, Any], at: tuple[Any, ...]
    ) -> None:
        for key, value in new.items():
            here = (*at, key)
            if key not in into:
                into[key] = {} if isinstance(value, dict) else value
                self._files[here] = file
            elif not (isinstance(value, dict) and isinstance(into[key], dict)):
                reason = f"is also defined in {self._files[here]}"
                self.problems.append((file, here, reason))
                continue
            if isinstance(value, dict):
                self._merge(file, into[key], value, here)

    def file_of(self, location: Location) -> str | None:
        """The file that defines the longest known part of `location`."""
        parts = range(len(location), 0, -1)
        return next((self._files[location[:n]] for n in parts if location[:n] in self._files), None)


def _twice(names: Sequence[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name and names.count(name) > 1}))


def _as_value_error(check: Callable[[], object]) -> None:
    """Run `check`; pydantic collects ValueErrors, which ours are not."""
    try:
        check()
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _reason(kind: str, message: str, location: Location) -> str:
    if location[-1:] == ("[key]",):
        return f"as a key: {message}"
    if kind in ("model_type", "dict_type"):
        return "must be a mapping; write {} for an empty one"
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    key = str(location[-1])
    if key in LATER_SECTIONS and len(location) in (1, 2, 3):
        return f"this version does not know the section {key!r} yet: remove it"
    fields = _model_at(location[:-1]).model_fields
    known = [field.alias or name for name, field in fields.items()]
    reason = f"unknown key {key!r}, known are {', '.join(known)}."
    if len(location) == 1 and key in _IN_SECTIONS:
        return f"{reason} Write it under common, or under a VO of vo-overrides"
    return reason + suggestion(key, known)


def _model_at(location: Location) -> type[_Section]:
    match location:
        case ():
            return Config
        case ("common",) | ("vo-overrides", _):
            return SectionConfig
        case (*_, int()):
            return TaskConfig
        case _:
            return ScheduleConfig


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
