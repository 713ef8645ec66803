"""The effective values of a task class: its attributes, overridden by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nonet.base.amounts import parse_bytes
from nonet.base.errors import ConfigurationError, UnknownTaskError
from nonet.base.streams import Priority, Size
from nonet.config.wording import SHARED, dotted
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import BaseTask, Isolation

if TYPE_CHECKING:  # the models take 30 ms to import, and only a published configuration needs them
    from nonet.config.models import Config, RetryPolicyConfig, Section, SizesConfig, TaskOverride
    from nonet.rules.limits import Location
    from nonet.tasks.retry import RetryPolicyBase

CLASS = "class"
SIZE = "size"
_TIMES = ("soft_timeout", "hard_timeout")
_LIMITS = (*_TIMES, "memory_limit", "cpu_limit")
_FIELDS = ("priority", "size", "retry_policy", "dlq_eligible", "isolation", *_LIMITS)
_BY_SIZE = {Size.SMALL: Isolation.LOOP, Size.MEDIUM: Isolation.CHILD, Size.LARGE: Isolation.FRESH}


class TimeLimits(Struct, frozen=True):
    """The limits of one attempt.

    Attributes:
        soft, hard: seconds, or None.
        soft_origin, hard_origin: where each limit is defined, for messages.
    """

    soft: float | None
    hard: float | None
    soft_origin: str
    hard_origin: str

    @property
    def hard_text(self) -> str:
        """The error message of an attempt that exceeded the hard limit."""
        return f"hard timeout of {self.hard:g} s exceeded ({self.hard_origin})"


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective values for tasks of one class, one VO and one size.

    Attributes:
        policy: returns the retry policy. A method, because the default of a class is imported when
            it is read, which most tasks do not need.
        time: the timeouts of an attempt. The soft one is never longer than the hard one.
        isolation: where an attempt runs; never LOOP with a limit of memory or CPU time.
        memory_limit: bytes, or None.
        cpu_limit: seconds of CPU time of an attempt, or None.
        origins: where each value is defined: ``class``, ``size`` (implied by the size), or its
            path in the configuration.
    """

    priority: Priority
    size: Size
    policy: Callable[[], RetryPolicyBase]
    time: TimeLimits
    dlq_eligible: bool
    isolation: Isolation
    memory_limit: int | None
    cpu_limit: float | None
    origins: Mapping[str, str] = field(hash=False)

    @property
    def retry_policy(self) -> RetryPolicyBase:
        """When a failed attempt is repeated."""
        return self.policy()

    @property
    def soft_timeout(self) -> float | None:
        """Seconds, or None."""
        return self.time.soft

    @property
    def hard_timeout(self) -> float | None:
        """Seconds, or None."""
        return self.time.hard


class _Sourced(Struct, frozen=True):
    value: Any
    origin: str


class _Override(Struct, frozen=True):
    at: Location
    values: TaskOverride


class Overrides:
    """Values of a configuration for task classes; `NONE` overrides nothing.

    Example:
        overrides = Overrides.of(await source.read())
        overrides.effective(registry.get("RemoveFile"), "lhcb").retry_policy
    """

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, _Override]],
        sizes: Mapping[str, Mapping[Size, Mapping[str, _Sourced]]],
    ) -> None:
        self._sections = sections
        self._sizes = sizes
        self._found: dict[tuple[type, str, Size | None], Effective] = {}
        self._policies: dict[Location, RetryPolicyBase] = {}

    @classmethod
    def of(cls, config: Config) -> Overrides:
        """Collect the overrides of a configuration, for each VO and for all."""
        return cls(
            {vo: dict(_overrides(at, found.tasks)) for at, vo, found in config.sections},
            {vo: dict(_sizes(at, found.sizes)) for at, vo, found in config.sections},
        )

    @property
    def vos(self) -> list[str]:
        """The VOs that have a section, and an empty name for the common section."""
        return ["", *(vo for vo in self._sections if vo)]

    def effective(self, task_class: TaskClass, vo: str, size: Size | None = None) -> Effective:
        """Return the effective values for tasks of a class.

        Args:
            vo: their VO (`nonet.tasks.task.vo_of`), or empty.
            size: their size, if the submission overrides it.

        Raises:
            ConfigurationError: the retry policy cannot be built in this process.
        """
        vo = vo if vo in self._sections else ""
        key = task_class.cls, vo, size
        if (found := self._found.get(key)) is None:
            found = self._found[key] = self._effective(task_class, vo, size)
        return found

    def stream(self, task_class: TaskClass, vo: str) -> tuple[Priority, Size]:
        """Return only the priority and size."""
        override = self._override(task_class, vo)
        if override is None:
            return task_class.cls.priority, task_class.cls.size
        values = override.values
        return values.priority or task_class.cls.priority, values.size or task_class.cls.size

    def check(self, registry: Registry) -> None:
        """Raise `ConfigurationError` if `effective` fails for any class of a registry."""
        for task_class in registry:
            for vo in self.vos:
                self.effective(task_class, vo)

    def _effective(self, task_class: TaskClass, vo: str, size: Size | None) -> Effective:
        sourced = _sourced_by_class(task_class.cls)
        if (override := self._override(task_class, vo)) is not None:
            sourced |= _sourced(override.at, override.values, _FIELDS)
            if override.values.retry_policy is not None:
                policy = self._policy(override, override.values.retry_policy)
                policy = override.values.retry_policy.adapted(policy, task_class.cls.retry_policy)
                sourced["retry_policy"] = _Sourced(lambda: policy, sourced["retry_policy"].origin)
        if size is not None:
            sourced["size"] = _Sourced(size, SIZE)
        return _effective(
            sourced, self._of_size(sourced["size"].value, vo), task_class.cls.__name__
        )

    def _policy(self, override: _Override, written: RetryPolicyConfig) -> RetryPolicyBase:
        if (found := self._policies.get(override.at)) is None:
            try:
                found = self._policies[override.at] = written.build()
            except ConfigurationError as error:
                at = dotted((*override.at, "retry-policy"))
                raise ConfigurationError(f"{at}: {error}") from None
        return found

    def _of_size(self, size: Size, vo: str) -> Mapping[str, _Sourced]:
        of_vo = self._sizes.get(vo, {})  # even an empty mapping of a VO replaces the common one
        return of_vo[size] if size in of_vo else self._sizes.get("", {}).get(size, {})

    def _override(self, task_class: TaskClass, vo: str) -> _Override | None:
        if not self._sections:
            return None
        return self._in_section(task_class, vo) or self._in_section(task_class, "")

    def _in_section(self, task_class: TaskClass, vo: str) -> _Override | None:
        section = self._sections.get(vo)
        if not section:
            return None
        return section.get(task_class.name) or section.get(task_class.name.rpartition(":")[2])


NONE = Overrides({}, {})


def override_problems(config: Config, registry: Registry) -> list[tuple[str, Location, str]]:
    """Check ``tasks`` against the registered classes. Return place in a file, path and reason.

    Classes may be written as ``category:Class``, or as ``Class`` if that is unique.
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
        for key, reason in _clashes(override, task_class.cls):
            yield (*at, key), reason


def _clashes(override: TaskOverride, cls: type[BaseTask]) -> Iterator[tuple[str, str]]:
    """Yield key and reason of each override that contradicts an attribute of the class."""
    soft, hard = override.soft_timeout, cls.hard_timeout
    if soft is not None and override.hard_timeout is None and hard is not None and soft > hard:
        reason = f"is longer than the hard timeout of the class, {hard:g} s: set hard-timeout"
        yield "soft-timeout", reason
    overridden = {"memory-limit": override.memory_limit, "cpu-limit": override.cpu_limit}
    if override.isolation is None and cls.isolation == Isolation.LOOP:
        for key in (key for key, limit in overridden.items() if limit is not None):
            reason = "write 'isolation: child' beside it"
            yield key, f"cannot hold with isolation loop of the class, {SHARED}: {reason}"
    limits = {"memory_limit": cls.memory_limit, "cpu_limit": cls.cpu_limit}
    if override.isolation == Isolation.LOOP:
        for name in (name for name, limit in limits.items() if limit is not None):
            reason = f"must be child or fresh: {name} of the class cannot hold in the loop"
            yield "isolation", f"{reason}, {SHARED}"


def _overrides(
    section_at: Location, tasks: Mapping[str, TaskOverride]
) -> Iterator[tuple[str, _Override]]:
    for name, values in tasks.items():
        yield name, _Override((*section_at, "tasks", name), values)


def _sizes(
    section_at: Location, sizes: SizesConfig
) -> Iterator[tuple[Size, Mapping[str, _Sourced]]]:
    for size in Size:
        if size in sizes.model_fields_set:
            yield size, _sourced((*section_at, "sizes", size.value), sizes.get(size), _LIMITS)


def _sourced(at: Location, values: Section, names: Iterable[str]) -> dict[str, _Sourced]:
    """Return the values that a mapping sets of the fields `names`, with their source."""
    fields = type(values).model_fields
    return {
        name: _Sourced(value, dotted((*at, fields[name].alias or name)))
        for name in names
        if (value := getattr(values, name, None)) is not None
    }


def _sourced_by_class(cls: type[BaseTask]) -> dict[str, _Sourced]:
    found = {name: getattr(cls, name) for name in _FIELDS if name != "retry_policy"}
    found["retry_policy"] = partial(getattr, cls, "retry_policy")
    if cls.memory_limit is not None:
        found["memory_limit"] = parse_bytes(cls.memory_limit)
    found["size"] = Size(cls.size)
    return {name: _Sourced(value, CLASS) for name, value in found.items() if value is not None}


def _effective(
    sourced: dict[str, _Sourced], of_size: Mapping[str, _Sourced], name: str
) -> Effective:
    """Combine `sourced` (the class and its override) with `of_size` (the limits of the size)."""
    nothing = _Sourced(None, CLASS)
    isolation = _isolation(sourced)
    is_shared = (
        isolation.value == Isolation.LOOP
    )  # a limit of the process cannot apply to one of its tasks
    defaults = {name: item for name, item in of_size.items() if name in _TIMES or not is_shared}
    found = dict.fromkeys(_LIMITS, nothing) | defaults | sourced | {"isolation": isolation}
    soft, hard = found["soft_timeout"], found["hard_timeout"]
    if soft.value is not None and hard.value is not None and soft.value > hard.value:
        # One comes from the class, the other from the configuration. The hard limit wins.
        found["soft_timeout"] = hard
    values = {field: item.value for field, item in found.items()}
    values["policy"] = values.pop("retry_policy")
    origins = {field: found[field].origin for field in _FIELDS}
    time = TimeLimits(
        *(values.pop(limit) for limit in _TIMES),
        *(f"{limit} of {name}" if origins[limit] == CLASS else origins[limit] for limit in _TIMES),
    )
    return Effective(**values, time=time, origins=origins)


def _isolation(sourced: Mapping[str, _Sourced]) -> _Sourced:
    found = sourced.get("isolation") or _Sourced(_BY_SIZE[sourced["size"].value], SIZE)
    limit = sourced.get("memory_limit") or sourced.get("cpu_limit")
    if found.value == Isolation.LOOP and limit is not None:
        return _Sourced(Isolation.CHILD, limit.origin)
    return _Sourced(Isolation(found.value), found.origin)
