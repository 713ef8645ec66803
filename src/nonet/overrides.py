"""What holds for a task class: its own attributes, or what the configuration says instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nonet.config import Config, Location, TaskOverride, dotted
from nonet.errors import ConfigurationError, UnknownTaskError
from nonet.registry import Registry, TaskClass
from nonet.retry import RetryPolicyBase
from nonet.task import Priority, Size

CLASS = "class"
_FIELDS = ("priority", "size", "retry_policy", "soft_timeout", "hard_timeout", "dlq_eligible")


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for the tasks of one class and one VO.

    Attributes:
        soft_timeout, hard_timeout: seconds, or None. The soft one is never the longer one.
        origins: where each value comes from: ``class``, or its path in the configuration.
    """

    priority: Priority
    size: Size
    retry_policy: RetryPolicyBase
    soft_timeout: float | None
    hard_timeout: float | None
    dlq_eligible: bool
    origins: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class _Override:
    at: Location
    values: TaskOverride

    def origin(self, name: str) -> str:
        return dotted((*self.at, TaskOverride.model_fields[name].alias or name))


class Overrides:
    """What a configuration says of task classes; `NONE` says nothing.

    Example:
        overrides = Overrides.of(await source.read())
        overrides.effective(registry.get("RemoveFile"), "lhcb").retry_policy
    """

    def __init__(self, sections: Mapping[str, Mapping[str, _Override]]) -> None:
        self._sections = sections
        self._found: dict[tuple[type, Location], Effective] = {}

    @classmethod
    def of(cls, config: Config) -> Overrides:
        """The overrides of a configuration; a VO's section replaces the common one of a class."""
        return cls({vo: dict(_overrides(at, found.tasks)) for at, vo, found in config.sections})

    @property
    def vos(self) -> list[str]:
        """The VOs that have a section, and the empty one."""
        return ["", *(vo for vo in self._sections if vo)]

    def effective(self, task_class: TaskClass, vo: str) -> Effective:
        """What holds for the tasks of a class.

        Args:
            vo: theirs (`nonet.task.vo_of`); empty: none.

        Raises:
            ConfigurationError: a retry policy that is named cannot be built in this process.
        """
        override = self._override(task_class, vo)
        if override is None:
            return _effective(task_class, {}, dict.fromkeys(_FIELDS, CLASS))
        key = task_class.cls, override.at
        if (found := self._found.get(key)) is None:
            found = self._found[key] = _overridden(task_class, override)
        return found

    def stream(self, task_class: TaskClass, vo: str) -> tuple[Priority, Size]:
        """Priority and size alone."""
        override = self._override(task_class, vo)
        if override is None:
            return task_class.cls.priority, task_class.cls.size
        said = override.values
        return said.priority or task_class.cls.priority, said.size or task_class.cls.size

    def check(self, registry: Registry) -> None:
        """Raise `ConfigurationError` unless `effective` can answer for each class of a registry."""
        for task_class in registry:
            for vo in self.vos:
                self.effective(task_class, vo)

    def _override(self, task_class: TaskClass, vo: str) -> _Override | None:
        if not self._sections:
            return None
        return self._in_section(task_class, vo) or self._in_section(task_class, "")

    def _in_section(self, task_class: TaskClass, vo: str) -> _Override | None:
        section = self._sections.get(vo)
        if not section:
            return None
        return section.get(task_class.name) or section.get(task_class.name.rpartition(":")[2])


NONE = Overrides({})


def override_problems(config: Config, registry: Registry) -> list[tuple[str, Location, str]]:
    """What is wrong with ``tasks``, seen from these classes: place in a file, path, reason.

    Classes may be written as ``category:Class``, or as ``Class`` where that is unique.
    """
    found: list[tuple[str, Location, str]] = []
    for section_at, _, section in config.sections:
        written: dict[str, str] = {}
        for at, reason in _section_problems(section_at, section.tasks, registry, written):
            found.append((config.where(at), at, reason))
    return found


def _section_problems(
    section_at: Location,
    tasks: Mapping[str, TaskOverride],
    registry: Registry,
    written: dict[str, str],
) -> Iterator[tuple[Location, str]]:
    for name, override in tasks.items():
        at = (*section_at, "tasks", name)
        try:
            task_class = registry.get(name)
        except UnknownTaskError as error:
            yield at, str(error)
            continue
        if task_class.name in written:
            yield at, f"is the same class as {written[task_class.name]!r}: write it once"
        written[task_class.name] = name
        soft, hard = override.soft_timeout, task_class.cls.hard_timeout
        if soft is not None and override.hard_timeout is None and hard is not None and soft > hard:
            reason = f"is longer than the hard timeout of the class, {hard:g} s: set hard-timeout"
            yield (*at, "soft-timeout"), reason


def _overrides(
    section_at: Location, tasks: Mapping[str, TaskOverride]
) -> Iterator[tuple[str, _Override]]:
    for name, values in tasks.items():
        yield name, _Override((*section_at, "tasks", name), values)


def _overridden(task_class: TaskClass, override: _Override) -> Effective:
    said: dict[str, Any] = {
        name: value for name in _FIELDS if (value := getattr(override.values, name)) is not None
    }
    if override.values.retry_policy is not None:
        try:
            said["retry_policy"] = override.values.retry_policy.build()
        except ConfigurationError as error:
            raise ConfigurationError(f"{override.origin('retry_policy')}: {error}") from None
    origins = {name: override.origin(name) if name in said else CLASS for name in _FIELDS}
    return _effective(task_class, said, origins)


def _effective(
    task_class: TaskClass, said: Mapping[str, Any], origins: Mapping[str, str]
) -> Effective:
    cls = task_class.cls
    values = {name: said[name] if name in said else getattr(cls, name) for name in _FIELDS}
    soft, hard = values["soft_timeout"], values["hard_timeout"]
    if soft is not None and hard is not None and soft > hard:
        # Said apart, of the class and in the configuration: nothing lasts beyond the hard one.
        values["soft_timeout"] = hard
        origins = {**origins, "soft_timeout": origins["hard_timeout"]}
    return Effective(**values, origins=origins)
