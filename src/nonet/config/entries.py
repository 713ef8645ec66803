"""Derive the periodic entries from classes and configuration. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nonet.base.errors import ConfigurationError, hint_of_task
from nonet.config.models import Config, SectionConfig, TaskConfig
from nonet.config.reading import problems_error
from nonet.rules.entry_names import DATABASE, key_of, name_problem
from nonet.rules.fairness import tenant_of
from nonet.rules.limits import Location
from nonet.rules.outcomes import summarize
from nonet.rules.periodic import StoredSchedule
from nonet.rules.routing import namespace_of
from nonet.tasks.locks import has_exclusive
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import CatchUp, Overlap, TaskScheduleBase
from nonet.tasks.schedules.description import describe, described, stable
from nonet.tasks.task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask

PeriodicClass = type[PeriodicBaseTask]

_OPTIONS = ("enabled", "overlap", "catch_up", "catch_up_limit", "jitter", "misfire_grace")
NO_SCHEDULE = "has no schedule: give it `_schedule = …`, or `schedule` in the configuration"


@dataclass(frozen=True)
class Entry:
    """One periodic entry: a class, for one VO or for the installation, with one schedule.

    Attributes:
        key: identity, ``full_name|vo|name`` with VO and name escaped; independent of order.
        task_name: full name ``category:Class``.
        vo: None for a class that is not VO-aware.
        name: its name in the configuration; ``default`` if it has none.
        schedule: when it fires.
        args: all keyword arguments, including `vo`: ``cls(**entry.args)`` makes the task.
        origin: where it is defined: ``class``, a path in the configuration, or ``database``.
        enabled: False: it is listed, but does not fire.
        overlap: what an occurrence does while the previous one still runs; None: ``skip`` if the
            task takes a lock that excludes itself, else ``allow``.
        catch_up: which long-missed occurrences are still submitted.
        catch_up_limit: the most occurrences that catch-up ``all`` submits.
        jitter: maximum random delay of each occurrence, in seconds.
        misfire_grace: seconds by which an occurrence may be late and still fire as if in time;
            None: the default from the settings and its schedule.
        envelope: of an entry in the database, the message with its arguments; `args` is empty.
    """

    key: str
    task_name: str
    vo: str | None
    name: str
    schedule: TaskScheduleBase
    args: Mapping[str, Any] = field(hash=False)
    origin: str = "class"
    enabled: bool = True
    overlap: Overlap | None = None
    catch_up: CatchUp = CatchUp.ONE
    catch_up_limit: int = 100
    jitter: float = 0
    misfire_grace: float | None = None
    envelope: bytes = b""

    @cached_property
    def description(self) -> str:
        """Its schedule, in a text that is the same after a restart."""
        return describe(self.schedule)

    @cached_property
    def prints(self) -> tuple[str, str]:
        """Fingerprints of schedule and arguments: when one changes, the entry is replanned."""
        args = self.envelope or stable(self.args).encode()
        return _digest(self.description.encode()), _digest(args)


def periodic_classes(registry: Registry) -> dict[str, PeriodicClass]:
    """The registered periodic classes by full name."""
    return {item.name: item.cls for item in registry if issubclass(item.cls, PeriodicBaseTask)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def entries(
    config: Config,
    classes: Mapping[str, PeriodicClass],
    vos: Iterable[str] = (),
    others: Collection[str] = (),
) -> list[Entry]:
    """Return all entries: of configured classes, and of classes with a schedule of their own.

    Disabled entries are included.

    Args:
        config: the central configuration.
        classes: the registered periodic classes by full name.
        vos: further virtual organisations, from entry points.
        others: full names of registered classes that are not periodic, for messages.

    Raises:
        ConfigurationError: all problems at once, each with its path in the configuration.
    """
    return _Planner(config, classes, vos, others).plan()


def stored_entry(item: StoredSchedule, registry: Registry) -> Entry:
    """Return the entry of a schedule that a program made.

    Raises:
        ConfigurationError: its schedule is of a class that this version does not know.
    """
    schedule, task_class = described(item.schedule), registry.find(item.task)
    if schedule is None:
        raise ConfigurationError(
            f"schedule {item.id}: {item.schedule} is unknown here: put it again with this version"
        )
    options = _options(task_class.cls, TaskConfig()) if task_class else {}
    if item.catch_up:
        options["catch_up"] = CatchUp(item.catch_up)
    if item.misfire_grace is not None:
        options["misfire_grace"] = item.misfire_grace
    return Entry(
        key=key_of(item.task, item.tenant, item.id),
        task_name=item.task,
        vo=item.tenant or None,
        name=item.id,
        schedule=schedule,
        args={},
        origin=DATABASE,
        envelope=item.envelope,
        **{**options, "enabled": True},
    )


def merged(
    configured: Sequence[Entry], stored: Sequence[Entry]
) -> tuple[list[Entry], dict[str, str]]:
    """Return all entries, and why some stored ones are left out: other entries have their names."""
    found = {entry.key: entry.origin for entry in configured}
    taken = {entry.key: entry.name for entry in stored if entry.key in found}
    problems = {f"{DATABASE}|{name}": name_problem(name, found[key]) for key, name in taken.items()}
    return [*configured, *(entry for entry in stored if entry.key not in taken)], problems


def entries_of(namespace: str, config: Config, found: Iterable[Entry]) -> list[Entry]:
    """Return the entries of the tenants of a namespace, which its leader plans.

    Every leader reads the same configuration, so each entry is planned once.
    """

    def is_own(entry: Entry) -> bool:
        vo = str(entry.args.get("vo") or entry.vo or "")
        tenant = tenant_of(config.tenants_by, entry.task_name, vo, {})
        return namespace_of(config.namespaces, tenant) in ("", namespace)

    return [entry for entry in found if is_own(entry)]


def dropped(
    config: Config, name: str, cls: PeriodicClass, vos: Iterable[str] = ()
) -> list[tuple[str | None, Location]]:
    """Return the VOs (None: the installation) whose empty list disables a class, and its place.

    Args:
        name: full name of the class.
        vos: as for `entries`.
    """
    planner = _Planner(config, {name: cls}, vos)
    return [(vo, here) for _, vo, (here, written) in planner.written() if not written]


def overlap_of(locks: str) -> Overlap:
    """Return the overlap policy of a class if neither it nor the configuration sets one.

    Args:
        locks: lines of `nonet.tasks.locks.encode_locks`.
    """
    return Overlap.SKIP if has_exclusive(locks) else Overlap.ALLOW


class _Planner:
    """Collect entries and problems in one pass over the configuration."""

    def __init__(
        self,
        config: Config,
        classes: Mapping[str, PeriodicClass],
        vos: Iterable[str],
        others: Collection[str] = (),
    ) -> None:
        self._config = config
        self._classes = classes
        self._vos = all_vos(config, vos)
        self._others = others
        self._problems: list[tuple[str, Location, str]] = []

    def plan(self) -> list[Entry]:
        found = [
            entry
            for task_name, vo, (here, task_configs) in self.written()
            for entry in self._entries_of(task_name, vo, here, task_configs)
        ]
        if self._problems:
            raise problems_error(self._problems)
        return found

    def written(self) -> Iterator[tuple[str, str | None, tuple[Location, Sequence[TaskConfig]]]]:
        """Yield the entries that apply to each class and VO, with the place of configured ones."""
        common = self._section(("common",), self._config.common)
        overrides = {
            vo: self._section(("vo-overrides", vo), section, vo=vo)
            for vo, section in self._config.vo_overrides.items()
        }
        for task_name, cls in self._classes.items():
            for vo in self._vos if is_vo_aware(cls) else [None]:
                found = overrides.get(vo or "", {}).get(task_name) or common.get(task_name)
                yield task_name, vo, found or ((), [TaskConfig()])

    def _section(
        self, at: Location, section: SectionConfig, vo: str | None = None
    ) -> dict[str, tuple[Location, list[TaskConfig]]]:
        """The configured entries by full name, with the place where they are written."""
        configured: dict[str, tuple[Location, list[TaskConfig]]] = {}
        for written, task_configs in section.periodic_tasks.items():
            here = (*at, "periodic-tasks", written)
            task_name = self._resolve(written, here)
            if task_name is None:
                continue
            cls = self._classes[task_name]
            if task_name in configured:
                self._problem(here, f"configures {task_name} a second time")
            elif vo is not None and not is_vo_aware(cls):
                self._problem(here, f"{task_name} does not run per VO: write it under common")
            else:
                self._check(cls, here, task_configs)
                configured[task_name] = (here, task_configs)
        return configured

    def _resolve(self, written: str, here: Location) -> str | None:
        matching = matching_classes(written, self._classes)
        if len(matching) == 1:
            return matching[0]
        if matching:
            reason = f"the class name is ambiguous: write {' or '.join(matching)}"
        elif matching_classes(written, self._others):
            reason = (
                "is a task that is not periodic: give it a schedule in its code, or one in the "
                "database ('task-run schedules add')"
            )
        else:
            hint = hint_of_task(written, self._classes)
            if not self._classes and self._others:
                hint = " No class here is periodic: is its module in NONET_TASKS?"
            reason = f"unknown periodic task {written!r}.{hint}"
        self._problem(here, reason)
        return None

    def _check(self, cls: PeriodicClass, here: Location, configured: list[TaskConfig]) -> None:
        try:
            cls.validate_config(configured)
        except BaseException as error:  # the author's code may raise anything
            why = summarize(error)
            self._problem(here, f"refused by {cls.__name__}: {why.text or why.type}")
        for index, task_config in enumerate(configured):
            if task_config.schedule is None and default_schedule(cls) is None:
                self._problem((*here, index), f"needs a schedule: {cls.__name__} has no default")
            if is_vo_aware(cls) and "vo" in task_config.args:
                self._problem((*here, index, "args", "vo"), "is set by the scheduler: remove it")

    def _entries_of(
        self, task_name: str, vo: str | None, here: Location, task_configs: Sequence[TaskConfig]
    ) -> Iterator[Entry]:
        cls = self._classes[task_name]
        for task_config in task_configs:
            schedule = (
                task_config.schedule.build() if task_config.schedule else default_schedule(cls)
            )
            if schedule is None:
                continue
            name = task_config.name or "default"
            yield Entry(
                key=key_of(task_name, vo or "", name),
                task_name=task_name,
                vo=vo,
                name=name,
                schedule=schedule,
                args=task_config.args if vo is None else {**task_config.args, "vo": vo},
                origin=".".join(map(str, here)) or "class",
                **_options(cls, task_config),
            )

    def _problem(self, here: Location, reason: str) -> None:
        self._problems.append((self._config.where(here), here, reason))


def is_vo_aware(cls: type[BaseTask]) -> bool:
    """Whether a class runs once per VO."""
    return issubclass(cls, PeriodicVoAwareBaseTask)


def is_enabled(cls: PeriodicClass) -> bool:
    """Whether a class is enabled unless the configuration disables it."""
    return bool(_options(cls, TaskConfig()).get("enabled", True))


def default_schedule(cls: PeriodicClass) -> TaskScheduleBase | None:
    """The schedule of the class itself; None: it needs one in the configuration."""
    schedule: TaskScheduleBase | None = _declared(cls, "_schedule", "default_schedule")
    return schedule


def all_vos(config: Config, vos: Iterable[str] = ()) -> list[str]:
    """The virtual organisations of a configuration and further ones, each once."""
    return list(dict.fromkeys([*config.vos, *config.vo_overrides, *vos]))


def find_class(written: str, classes: Iterable[str]) -> str | None:
    """The full name for a configured name; None if there is no match, or more than one."""
    matching = matching_classes(written, classes)
    return matching[0] if len(matching) == 1 else None


def matching_classes(written: str, classes: Iterable[str]) -> list[str]:
    """The full names that match a configured name.

    >>> matching_classes("Sweep", ["a:Sweep", "b:Sweep"]), matching_classes("a:Sweep", ["a:Sweep"])
    (['a:Sweep', 'b:Sweep'], ['a:Sweep'])
    """
    return [name for name in classes if written in (name, name.rpartition(":")[2])]


def _options(cls: type[BaseTask], configured: TaskConfig) -> dict[str, Any]:
    """Return the options of an entry that its class or, before it, the configuration sets."""
    given = {name: _declared(cls, f"_{name}") for name in _OPTIONS}
    given |= {name: value for name in _OPTIONS if (value := getattr(configured, name)) is not None}
    return {name: value for name, value in given.items() if value is not None}


def _declared(cls: type, *names: str) -> Any:
    """Return the value of the nearest base that has one; pydantic hides underscored names."""
    for base in cls.__mro__:
        private = base.__dict__.get("__private_attributes__", {})
        for name in names:
            value = private[name].default if name in private else base.__dict__.get(name)
            if value is not None:
                return value
    return None
