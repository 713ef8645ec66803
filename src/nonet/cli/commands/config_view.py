"""Format the output of ``task-run config``: effective values, their origins, who applies them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from nonet.config.models import Config, SectionConfig
from nonet.config.wording import dotted
from nonet.rules.limits import DEFAULT, Limit, LimitAddress, find_object_type, snake_case
from nonet.scheduler.periodic import entries as plan
from nonet.scheduler.periodic.entries import Entry, entries
from nonet.scheduler.periodic.periodic_loop import overlap_of
from nonet.stores.namespace.leadership import Leader
from nonet.stores.namespace.publication import Published
from nonet.stores.queue.workers import WorkerStatus
from nonet.tasks.locks import TASK, LockedObjectType
from nonet.tasks.registry import Registry, TaskClass, locked_types
from nonet.tasks.schedules import CatchUp, Overlap
from nonet.tasks.schedules.description import describe
from nonet.tasks.secrecy import masked_arguments
from nonet.tasks.task import PeriodicBaseTask, task_locks

# Workers apply a newly published configuration within 2 s.
_LAG = timedelta(seconds=10)
_NOTHING = Published("", "", "", "", None, "", "", None)


LimitInForce = tuple[LimitAddress, Limit, str]
"""A limit, and the operator who set it by hand; empty if it comes from the configuration."""


def periodic(
    config: Config, task_class: TaskClass, vos: Iterable[str], vo: str, *, show_args: bool
) -> list[dict[str, Any]]:
    """Return the periodic entries of a class, for one VO or, without one, for all."""
    cls = task_class.cls
    if not issubclass(cls, PeriodicBaseTask):
        return []
    found = entries(_of_class(config, task_class), {task_class.name: cls}, vos)
    return [
        _entry(entry, task_class, show_args=show_args)
        for entry in found
        if not vo or entry.vo in (vo, None)
    ]


def dropped(
    config: Config, task_class: TaskClass, vos: Iterable[str], vo: str
) -> list[dict[str, Any]]:
    """Return the paths that drop the entries of a periodic class, for one VO or for all."""
    cls = task_class.cls
    if not issubclass(cls, PeriodicBaseTask):
        return []
    found = plan.dropped(_of_class(config, task_class), task_class.name, cls, vos)
    return [{"vo": of_vo, "by": dotted(at)} for of_vo, at in found if not vo or of_vo in (vo, None)]


def limits(
    config: Config,
    in_force: Iterable[LimitInForce],
    task_class: TaskClass,
    registry: Registry,
    vo: str,
) -> list[dict[str, Any]]:
    """Return the limits that can apply to a class: its own, and those of its locked objects.

    If several match a limiter, the first one in the list applies.
    """
    origins = _limit_origins(config)
    applying = [item for item in in_force if _can_apply(item[0], task_class, registry, vo)]
    ordered = sorted(applying, key=lambda item: _rank(item[0]))
    return [_limit(*item, origins) for item in ordered]


def status(
    published: Published | None,
    leader: Leader | None,
    workers: Iterable[WorkerStatus],
    now: datetime,
) -> dict[str, Any]:
    """Describe the published configuration; ``good`` says whether it applies without problems.

    Args:
        leader: None if no scheduler leads.
        now: the time by the clock of Redis.
    """
    held = published or _NOTHING
    rows = [_worker(item, held.version) for item in workers if item.alive]
    is_old = held.at is not None and now - held.at > _LAG
    lags = is_old and any(row["behind"] for row in rows)
    return {
        "good": not held.problem and not lags and leader is not None,
        "version": held.version or None,
        "source": held.source or None,
        "revision": held.revision or None,
        "since": held.at,
        "by": held.who or None,
        "problem": held.problem or None,
        "problem_since": held.problem_at,
        "leader": json.loads(leader.info or "{}").get("name", leader.owner) if leader else None,
        "workers": rows,
    }


def _worker(item: WorkerStatus, version: str) -> dict[str, Any]:
    return {
        "worker": item.name,
        "size": item.size,
        "config": item.config or None,
        "behind": bool(version) and item.config != version,
        "problem": item.config_problem or None,
    }


def _of_class(config: Config, task_class: TaskClass) -> Config:
    """Return the configuration of one class; this process may not know the others."""
    names = (task_class.name, task_class.name.rpartition(":")[2])

    def section(found: SectionConfig) -> SectionConfig:
        kept = {name: item for name, item in found.periodic_tasks.items() if name in names}
        return found.model_copy(update={"periodic_tasks": kept})

    of_vos = {vo: section(found) for vo, found in config.vo_overrides.items()}
    return config.model_copy(update={"common": section(config.common), "vo_overrides": of_vos})


def _entry(entry: Entry, task_class: TaskClass, *, show_args: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": entry.name,
        "vo": entry.vo,
        "schedule": describe(entry.schedule),
        "enabled": entry.enabled,
        "overlap": entry.overlap or _natural_overlap(entry, task_class),
        "catch_up": entry.catch_up,
        "catch_up_limit": entry.catch_up_limit if entry.catch_up == CatchUp.ALL else None,
        "jitter": entry.jitter,
        "misfire_grace": entry.misfire_grace,
    }
    if show_args:
        row["args"] = masked_arguments(entry.args, task_class.cls)
    return row | {"from": entry.origin}


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
) -> dict[str, Any]:
    return {
        "object_type": address.object_type,
        "key": address.key,
        "action": address.action or None,
        "vo": address.vo or None,
        "limiter": address.limiter,
        "limit": "off" if limit.limit is None else limit.limit,
        "window_seconds": limit.window_seconds,
        "from": f"set by hand, {by}" if by else origins.get(address, "configuration"),
    }
