"""Which periodic entries exist, and which occurrences of one are due. Pure: `now` is given.

`entries` turns classes and configuration into the list of entries; `due` decides for one of
them what to submit. The scheduler's loop stores the last occurrence of each entry and submits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nonet import keys
from nonet.config import Config, Location, SectionConfig, TaskConfig, problems_error
from nonet.errors import suggestion
from nonet.outcomes import summarize
from nonet.schedules import (
    MICROSECOND,
    IntervalSecondsSchedule,
    TaskScheduleBase,
    next_after,
    takes_after,
)
from nonet.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

PeriodicClass = type[PeriodicBaseTask]

BATCH = 1_000  # most occurrences that one call of `due` fires, or counts one by one


@dataclass(frozen=True)
class Entry:
    """One periodic entry: a class, for one VO or for the installation, with one schedule.

    Attributes:
        key: identity, ``full_name|vo|name`` with VO and name escaped; independent of order.
        task_name: full name ``category:Class``.
        vo: None for a class that is not VO-aware.
        name: of the entry in the configuration, ``default`` when it has none.
        schedule: when it fires.
        args: all keyword arguments: ``cls(**entry.args)`` makes the task, `vo` included.
        origin: where it is defined: ``class`` or a path in the configuration.
    """

    key: str
    task_name: str
    vo: str | None
    name: str
    schedule: TaskScheduleBase
    args: Mapping[str, Any] = field(hash=False)
    origin: str = "class"


@dataclass(frozen=True)
class Due:
    """What to do for an entry now.

    Attributes:
        fire: occurrences to submit, oldest first; the last one is the new `last`.
        next: when to look again: strictly after `now`, unless a batch was cut short, when it is
            the first occurrence left over. None when the schedule is exhausted.
        collapsed: missed occurrences that are not fired; at least so many when it exceeds 1,000.
    """

    fire: list[datetime]
    next: datetime | None
    collapsed: int = 0


def entries(
    config: Config, classes: Mapping[str, PeriodicClass], vos: Iterable[str] = ()
) -> list[Entry]:
    """All enabled entries, of configured classes and of those with a schedule of their own.

    Args:
        config: the central configuration.
        classes: the registered periodic classes by full name.
        vos: further virtual organisations, from entry points.

    Raises:
        ConfigurationError: all problems at once, each with its path in the configuration.
    """
    return _Planner(config, classes, vos).plan()


def due(
    schedule: TaskScheduleBase,
    last: datetime | None,
    now: datetime,
    misfire_grace: timedelta,
    planned: datetime | None = None,
) -> Due:
    """Decide what an entry fires at `now`.

    Occurrences in (`last`, `now`] that are younger than `misfire_grace` are all fired. Of the
    older ones only the latest is (catch-up ``one``: one run makes good for all of them), also
    when younger ones follow. At most 1,000 are fired at a time; the rest follows in the next
    call, for which `last` is the last one fired.

    Args:
        schedule: of the entry.
        last: the occurrence fired last; None for an entry never seen, which fires nothing yet:
            store `now` as its `last`, so that a restart does not forget what comes next.
        now: the present, by the clock of the server.
        misfire_grace: how late an occurrence may be and still be fired for itself.
        planned: `Due.next` of the call before. Only needed, and then to be stored, for an
            author's schedule without `after` parameter, which knows nothing but the present.

    Example:
        >>> from datetime import UTC
        >>> last = datetime(2025, 1, 1, tzinfo=UTC)
        >>> now = last + timedelta(hours=5, seconds=10)
        >>> decision = due(IntervalSecondsSchedule(3600), last, now, timedelta(seconds=60))
        >>> [moment.hour for moment in decision.fire], decision.collapsed, decision.next.hour
        ([4, 5], 3, 6)
    """
    if not takes_after(schedule):
        if planned is None or planned > now:
            return Due([], planned or next_after(schedule, now))
        return Due([planned], next_after(schedule, now))
    if last is None:
        return Due([], next_after(schedule, now))
    fire: list[datetime] = []
    collapsed = 0
    cutoff = now - misfire_grace
    latest = _latest(schedule, last, cutoff)
    if latest is not None:
        collapsed = _count(schedule, last, latest) - 1
        fire.append(latest)
    moment = next_after(schedule, max(last, cutoff))
    while moment is not None and moment <= now and len(fire) < BATCH:
        fire.append(moment)
        moment = next_after(schedule, moment)
    return Due(fire, moment, collapsed)


def _latest(schedule: TaskScheduleBase, after: datetime, until: datetime) -> datetime | None:
    """The last occurrence in (`after`, `until`], by bisection: a schedule only looks forward."""
    found = next_after(schedule, after)
    if found is None or found > until:
        return None
    low, high = found, until  # an occurrence; a time after which none is left
    while high - low > MICROSECOND:
        middle = low + (high - low) / 2
        found = next_after(schedule, middle)
        if found is not None and found <= until:
            low = found
        else:
            high = middle
    return low


def _count(schedule: TaskScheduleBase, after: datetime, until: datetime) -> int:
    """Occurrences in (`after`, `until`]; when they are many, only that they exceed `BATCH`."""
    if isinstance(schedule, IntervalSecondsSchedule):
        return schedule.count(after, until)
    number = 0
    moment = next_after(schedule, after)
    while moment is not None and moment <= until and number < BATCH + 2:
        number += 1
        moment = next_after(schedule, moment)
    return number


class _Planner:
    """Collects entries and problems in one pass over the configuration."""

    def __init__(
        self, config: Config, classes: Mapping[str, PeriodicClass], vos: Iterable[str]
    ) -> None:
        self._config = config
        self._classes = classes
        self._vos = list(dict.fromkeys([*config.vos, *config.vo_overrides, *vos]))
        self._problems: list[tuple[str, Location, str]] = []

    def plan(self) -> list[Entry]:
        common = self._section(("common",), self._config.common)
        overrides = {
            vo: self._section(("vo-overrides", vo), section, vo=vo)
            for vo, section in self._config.vo_overrides.items()
        }
        found = [
            entry
            for task_name, cls in self._classes.items()
            for vo in (self._vos if _is_vo_aware(cls) else [None])
            for entry in self._entries_of(
                task_name, vo, overrides.get(vo or "", {}).get(task_name) or common.get(task_name)
            )
        ]
        if self._problems:
            raise problems_error(self._problems)
        return found

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
            elif vo is not None and not _is_vo_aware(cls):
                self._problem(here, f"{task_name} does not run per VO: write it under common")
            else:
                self._check(cls, here, task_configs)
                configured[task_name] = (here, task_configs)
        return configured

    def _resolve(self, written: str, here: Location) -> str | None:
        if written in self._classes:
            return written
        matching = [name for name in self._classes if name.rpartition(":")[2] == written]
        if len(matching) == 1:
            return matching[0]
        reason = (
            f"the class name is ambiguous: write {' or '.join(matching)}"
            if matching
            else f"unknown periodic task {written!r}.{suggestion(written, self._classes)}"
        )
        self._problem(here, reason)
        return None

    def _check(self, cls: PeriodicClass, here: Location, configured: list[TaskConfig]) -> None:
        try:
            cls.validate_config(configured)
        except BaseException as error:  # the author's code may raise anything
            why = summarize(error)
            self._problem(here, f"refused by {cls.__name__}: {why.text or why.type}")
        for index, task_config in enumerate(configured):
            if task_config.schedule is None and _default_schedule(cls) is None:
                self._problem((*here, index), f"needs a schedule: {cls.__name__} has no default")
            if _is_vo_aware(cls) and "vo" in task_config.args:
                self._problem((*here, index, "args", "vo"), "is set by the scheduler: remove it")

    def _entries_of(
        self,
        task_name: str,
        vo: str | None,
        configured: tuple[Location, Sequence[TaskConfig]] | None,
    ) -> Iterator[Entry]:
        cls = self._classes[task_name]
        here, task_configs = configured or ((), [TaskConfig()])
        for task_config in task_configs:
            schedule = (
                task_config.schedule.build() if task_config.schedule else _default_schedule(cls)
            )
            enabled = task_config.enabled
            if schedule is None or not (_is_enabled(cls) if enabled is None else enabled):
                continue
            name = task_config.name or "default"
            yield Entry(
                key=f"{task_name}|{keys.escape(vo or '')}|{keys.escape(name)}",
                task_name=task_name,
                vo=vo,
                name=name,
                schedule=schedule,
                args=task_config.args if vo is None else {**task_config.args, "vo": vo},
                origin=".".join(map(str, here)) or "class",
            )

    def _problem(self, here: Location, reason: str) -> None:
        self._problems.append((self._config.source, here, reason))


def _is_vo_aware(cls: PeriodicClass) -> bool:
    return issubclass(cls, PeriodicVoAwareBaseTask)


def _default_schedule(cls: PeriodicClass) -> TaskScheduleBase | None:
    schedule: TaskScheduleBase | None = _declared(cls, "_schedule", "default_schedule")
    return schedule


def _is_enabled(cls: PeriodicClass) -> bool:
    return _declared(cls, "_enabled") is not False


def _declared(cls: type, *names: str) -> Any:
    """The value nearest in the line of bases; pydantic hides underscored ones of its models."""
    for base in cls.__mro__:
        private = base.__dict__.get("__private_attributes__", {})
        for name in names:
            value = private[name].default if name in private else base.__dict__.get(name)
            if value is not None:
                return value
    return None
