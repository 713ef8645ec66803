"""The published configuration, the processes that apply it, and its values for a task class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nonet.base.errors import ConfigurationError, NotFoundError, UnknownTaskError, suggestion
from nonet.config.entries import Entry, all_vos, dropped, entries, overlap_of
from nonet.config.models import Config, SectionConfig
from nonet.config.overrides import CLASS, NONE, SIZE, Effective, Overrides
from nonet.config.wording import dotted
from nonet.rules.limits import DEFAULT, Limit, LimitAddress, find_object_type, snake_case
from nonet.tasks.locks import TASK, LockedObjectType
from nonet.tasks.registry import Registry, TaskClass, locked_types
from nonet.tasks.schedules import CatchUp, Overlap
from nonet.tasks.schedules.description import describe
from nonet.tasks.secrecy import masked_arguments
from nonet.tasks.task import PeriodicBaseTask, task_locks

if TYPE_CHECKING:
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.publication import Published
    from nonet.stores.queue.workers import WorkerStatus
    from nonet.stores.stores import Stores

# Workers apply a newly published configuration within 2 s.
_LAG = timedelta(seconds=10)
_NAMES = (
    *("priority", "size", "retry_policy", "soft_timeout", "hard_timeout", "dlq_eligible"),
    *("isolation", "memory_limit", "cpu_limit"),
)

LimitInForce = tuple[LimitAddress, Limit, str]
"""A limit, and the operator who set it by hand; empty if it comes from the configuration."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration that a worker applies.

    Attributes:
        worker: ``pid@host``.
        size: of the worker.
        config: the version that it applies; empty: none.
        behind: whether another version is published.
        config_problem: why it does not apply that, or empty.
    """

    worker: str
    size: str
    config: str
    behind: bool
    config_problem: str


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The published configuration.

    Attributes:
        good: whether it is applied everywhere, and its source has no problem.
        version: of the configuration; empty: none is published.
        source: where it was read.
        revision: the commit of a git source, or empty.
        since: when it was published.
        by: who published it.
        config_problem: why the source as it is now is not applied, or empty.
        problem_since: since when.
        leader: the scheduler that reads the source; empty: none leads.
        workers: the live workers.
    """

    good: bool
    version: str
    source: str
    revision: str
    since: datetime | None
    by: str
    config_problem: str
    problem_since: datetime | None
    leader: str
    workers: Sequence[WorkerConfig]


@dataclass(frozen=True, slots=True)
class OptionView:
    """An attribute of a class that the configuration can override.

    Attributes:
        name: of the attribute.
        value: in force.
        declared: its value without a configuration.
        origin: ``class``, ``size``, or the path in the configuration.
    """

    name: str
    value: Any
    declared: Any
    origin: str

    @property
    def override(self) -> str:
        """The path in the configuration that sets it, or empty."""
        return "" if self.origin in (CLASS, SIZE) else self.origin


@dataclass(frozen=True, slots=True)
class ConfiguredEntry:
    """A periodic entry of a class.

    Attributes:
        name: among the entries of its class.
        vo: null for a class that is not VO-aware.
        schedule: when it fires.
        enabled: false: it never fires.
        overlap: what becomes of an occurrence while the last one runs; null: unknown.
        catch_up: which missed occurrences are submitted.
        catch_up_limit: how many of them, if all are.
        jitter: each occurrence is up to this many seconds later.
        misfire_grace: seconds for which an occurrence is not missed yet; null: the default.
        args: its arguments with secrets masked, if they were asked for.
        origin: the class, or the path in the configuration.
    """

    name: str
    vo: str | None
    schedule: str
    enabled: bool
    overlap: Overlap | None
    catch_up: CatchUp
    catch_up_limit: int | None
    jitter: float
    misfire_grace: float | None
    args: Mapping[str, Any] | None
    origin: str


@dataclass(frozen=True, slots=True)
class DroppedEntries:
    """A VO without the entries of a class.

    Attributes:
        vo: null: the installation.
        by: the path in the configuration whose empty list drops them.
    """

    vo: str | None
    by: str


@dataclass(frozen=True, slots=True)
class ConfiguredLimit:
    """A limit that can apply to a class.

    Attributes:
        object_type: of the objects that it protects.
        key: the object; ``default``: each without a limit of its own.
        action: the action that it limits; empty: all.
        vo: the VO whose own limit it is, or empty.
        limiter: ``concurrency`` or ``rate``.
        limit: how many tasks; null: the limit is off.
        window_seconds: of a rate.
        origin: the path in the configuration, or who set it by hand.
    """

    object_type: str
    key: str
    action: str
    vo: str
    limiter: str
    limit: int | None
    window_seconds: float | None
    origin: str

    @property
    def in_words(self) -> int | str:
        """The limit, or ``off``."""
        return "off" if self.limit is None else self.limit


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """What the configuration makes of a task class.

    Attributes:
        task: full name of the class.
        vo: the VO whose values these are; null: the common ones.
        source: where the configuration was read; empty: none is published.
        values: the attributes that can be overridden.
        entries: its periodic entries, of the VO or of all.
        dropped: which entries an empty list drops.
        limits: those that can apply; if several match a limiter, the first one does.
    """

    task: str
    vo: str | None
    source: str
    values: Sequence[OptionView]
    entries: Sequence[ConfiguredEntry]
    dropped: Sequence[DroppedEntries]
    limits: Sequence[ConfiguredLimit]


async def status(stores: Stores) -> ConfigStatus:
    """Return the published configuration, the problem of its source, and who applies it."""
    return judged(
        await stores.publication.read(),
        await stores.leader(),
        await stores.results.workers(),
        await stores.broker.now(),
    )


async def get(
    stores: Stores,
    registry: Registry,
    vos: Sequence[str],
    task: str,
    vo: str | None = None,
    *,
    show_args: bool = False,
) -> ClassConfig:
    """Return what the published configuration makes of a class.

    Args:
        vos: those of entry points.
        vo: show the values for this VO; None: the common ones.

    Raises:
        NotFoundError: the class is not loaded here, or the VO is not configured.
        ConfigurationError: this process cannot read the configuration.
    """
    task_class = known_class(registry, task)
    published, config = await stores.publication.read(), Config()
    if published is not None and published.version:
        source = f"version {published.version} from {published.source}"
        config = Config.from_document(published.document).read_from(source)
    else:
        config = config.read_from("")
    limits = [(item.address, item.limit, item.by) for item in await stores.limits.all()]
    return of_class(config, limits, registry, vos, task_class, vo, show_args=show_args)


def known_class(registry: Registry, task: str) -> TaskClass:
    """Return a class by its full or bare name.

    Raises:
        NotFoundError: it is not loaded here.
    """
    try:
        return registry.get(task)
    except UnknownTaskError as error:
        raise NotFoundError(str(error)) from None


def judged(
    published: Published | None,
    leader: Leader | None,
    workers: Iterable[WorkerStatus],
    now: datetime,
) -> ConfigStatus:
    """Judge whether the published configuration applies without problems.

    Args:
        leader: None if no scheduler leads.
        now: the time by the clock of Redis.
    """
    version = published.version if published else ""
    rows = [_worker(item, version) for item in workers if item.alive]
    since = published.at if published else None
    lags = since is not None and now - since > _LAG and any(row.behind for row in rows)
    problem = published.problem if published else ""
    return ConfigStatus(
        good=not problem and not lags and leader is not None,
        version=version,
        source=published.source if published else "",
        revision=published.revision if published else "",
        since=since,
        by=published.who if published else "",
        config_problem=problem,
        problem_since=published.problem_at if published else None,
        leader=json.loads(leader.info or "{}").get("name", leader.owner) if leader else "",
        workers=rows,
    )


def _worker(item: WorkerStatus, version: str) -> WorkerConfig:
    is_behind = bool(version) and item.config != version
    return WorkerConfig(item.name, item.size, item.config, is_behind, item.config_problem)


def of_class(
    config: Config,
    in_force: Iterable[LimitInForce],
    registry: Registry,
    vos: Sequence[str],
    task_class: TaskClass,
    vo: str | None,
    *,
    show_args: bool,
) -> ClassConfig:
    """Return what a configuration makes of a class; see `get`."""
    if vo is not None and vo not in (known := all_vos(config, vos)):
        raise NotFoundError(f"VO {vo!r} is not configured.{suggestion(vo, known)}")
    found, gone = _periodic(config, task_class, vos, vo or "", show_args=show_args)
    origins = _limit_origins(config)
    applying = [item for item in in_force if _can_apply(item[0], task_class, registry, vo or "")]
    return ClassConfig(
        task=task_class.name,
        vo=vo,
        source=config.source,
        values=options(Overrides.of(config), task_class, vo or ""),
        entries=found,
        dropped=gone,
        limits=[
            _limit(*item, origins) for item in sorted(applying, key=lambda item: _rank(item[0]))
        ],
    )


def options(overrides: Overrides, task_class: TaskClass, vo: str = "") -> list[OptionView]:
    """Return the attributes of a class that can be overridden.

    Raises:
        ConfigurationError: the retry policy cannot be built in this process.
    """
    try:
        found, declared = (one.effective(task_class, vo) for one in (overrides, NONE))
        return [
            OptionView(name, _value(found, name), _value(declared, name), found.origins[name])
            for name in _NAMES
        ]
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}: this process does not load the module that defines it, see --tasks"
        ) from None


def _value(found: Effective, name: str) -> Any:
    value = getattr(found, name)
    if name != "retry_policy":
        return value
    args = value.model_dump(mode="json") if isinstance(value, BaseModel) else {}
    return {"class": type(value).__name__, "args": args}


def _periodic(
    config: Config, task_class: TaskClass, vos: Sequence[str], vo: str, *, show_args: bool
) -> tuple[list[ConfiguredEntry], list[DroppedEntries]]:
    """Return the periodic entries of a class for one VO or for all, and which are dropped."""
    cls, own = task_class.cls, _only(config, task_class)
    if not issubclass(cls, PeriodicBaseTask):
        return [], []
    found = entries(own, {task_class.name: cls}, vos)
    gone = dropped(own, task_class.name, cls, vos)
    return (
        [_entry(item, task_class, show_args) for item in found if not vo or item.vo in (vo, None)],
        [DroppedEntries(of, dotted(at)) for of, at in gone if not vo or of in (vo, None)],
    )


def _only(config: Config, task_class: TaskClass) -> Config:
    """Return the configuration of one class; this process may not know the others."""
    names = (task_class.name, task_class.name.rpartition(":")[2])

    def section(found: SectionConfig) -> SectionConfig:
        kept = {name: item for name, item in found.periodic_tasks.items() if name in names}
        return found.model_copy(update={"periodic_tasks": kept})

    of_vos = {vo: section(found) for vo, found in config.vo_overrides.items()}
    return config.model_copy(update={"common": section(config.common), "vo_overrides": of_vos})


def _entry(entry: Entry, task_class: TaskClass, show_args: bool) -> ConfiguredEntry:
    return ConfiguredEntry(
        name=entry.name,
        vo=entry.vo,
        schedule=describe(entry.schedule),
        enabled=entry.enabled,
        overlap=entry.overlap or _natural_overlap(entry, task_class),
        catch_up=entry.catch_up,
        catch_up_limit=entry.catch_up_limit if entry.catch_up == CatchUp.ALL else None,
        jitter=entry.jitter,
        misfire_grace=entry.misfire_grace,
        args=masked_arguments(entry.args, task_class.cls) if show_args else None,
        origin=entry.origin,
    )


def _natural_overlap(entry: Entry, task_class: TaskClass) -> Overlap | None:
    """Return the overlap policy implied by the locks of the task; None if it cannot be built."""
    try:
        task = task_class.arguments.build(entry.args)
        return overlap_of(task_locks(task, task_class.name, {}))
    except BaseException:  # the author's constructor may raise anything
        return None


def _limit_origins(config: Config) -> Mapping[LimitAddress, str]:
    known = LockedObjectType.registered()
    found: dict[LimitAddress, str] = {}
    for at, vo, section in config.sections:
        for rule in section.limits:
            written = rule.object_type
            object_type = find_object_type(written, known) or snake_case(written)
            address = LimitAddress(object_type, rule.key, rule.action, rule.limiter, vo)
            found[address] = dotted((*at, "limits", *rule.place))
    return found


def _can_apply(address: LimitAddress, task_class: TaskClass, registry: Registry, vo: str) -> bool:
    bare = task_class.name.rpartition(":")[2]
    if address.vo not in ("", vo):
        return False
    if address.object_type == TASK:
        return address.key in (bare, DEFAULT)
    # By convention an action is the name of a class; any other action may apply to any class.
    others = {item.name.rpartition(":")[2] for item in registry} - {bare}
    return address.object_type in locked_types(task_class.cls) and address.action not in others


def _rank(address: LimitAddress) -> tuple[Any, ...]:
    """Sort limits that may match the same limiter together, the applicable one first."""
    is_default = address.key == DEFAULT
    key = "" if is_default else address.key
    kind = (address.object_type != TASK, address.object_type, address.limiter)
    return (*kind, not address.vo, is_default, key, not address.action, address.action)


def _limit(
    address: LimitAddress, limit: Limit, by: str, origins: Mapping[LimitAddress, str]
) -> ConfiguredLimit:
    return ConfiguredLimit(
        address.object_type,
        address.key,
        address.action,
        address.vo,
        address.limiter,
        limit.limit,
        limit.window_seconds,
        f"set by hand, {by}" if by else origins.get(address, "configuration"),
    )
