"""Limits for operators: which are in force and how full they are, and where a new one applies."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from nonet.base.errors import ConfigurationError, suggestion
from nonet.rules.findings.refusal import span
from nonet.rules.limit_changes import SHOWN, EffectiveLimit
from nonet.rules.limits import DEFAULT, LimitAddress, find_object_type
from nonet.stores.namespace.limits import declared
from nonet.stores.namespace.lock_board import LockStatus
from nonet.stores.stores import Stores
from nonet.tasks.locks import TASK, LockedObjectType

# Limiters whose classes are asked for the limits that they declare.
_MOST_DECLARED = 500


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """A limit in force, and how full it is.

    Attributes:
        used, waiting: of its limiter; None for ``default``, which is counted for each key.
        hint: when a rate becomes available again; may be empty.
    """

    limit: EffectiveLimit
    used: int | None = None
    waiting: int | None = None
    hint: str = ""


async def limits_in_use(stores: Stores, names: Iterable[str]) -> list[LimitInUse]:
    """Return the limits in force, those that tasks wait for first.

    Args:
        names: of locks in use, the most wanted first. Of limiters that no limit is set for, the
            first 500 are asked for the limit that their class declares.
    """
    found = await stores.limits.all()
    limiters = (name for name in names if LimitAddress.of_counter(name) is not None)
    seen = await stores.locks.some(list(islice(limiters, _MOST_DECLARED)), show=SHOWN)
    by_name = {item.lock: item for item in seen}
    others = [item.address.counter for item in found if item.address.counter not in by_name]
    by_name |= {item.lock: item for item in await stores.locks.some(others, show=1)}
    found += declared(seen, found)
    rows = [_in_use(item, by_name.get(item.address.counter)) for item in found]
    return sorted(rows, key=lambda row: (-(row.waiting or 0), row.limit.address))


def _in_use(item: EffectiveLimit, counter: LockStatus | None) -> LimitInUse:
    if item.address.key == DEFAULT or counter is None:
        return LimitInUse(item)
    back, waiting = counter.back_seconds, counter.waiting
    return LimitInUse(item, counter.used, waiting, "" if back is None else f"next in {span(back)}")


async def find_limit(stores: Stores, address: LimitAddress) -> LimitInUse | None:
    """Return the limit of exactly this address; None if there is none."""
    counters = await stores.locks.some([address.counter], show=SHOWN)
    known = await stores.limits.all()
    for item in (*known, *declared(counters, known)):
        if item.address == address:
            return _in_use(item, counters[0] if counters else None)
    return None


async def resolve(
    where: LimitAddress, stores: Stores, task_classes: Collection[str]
) -> tuple[LimitAddress, str]:
    """Find the object type of an address: registered here, or known to the namespace.

    Args:
        task_classes: the bare names of the task classes that are registered here.

    Returns:
        The address with the name of the type, and what the operator should know of it.

    Raises:
        ConfigurationError: the type is unknown.
    """
    written, key = where.object_type, where.key
    known: Collection[str] = LockedObjectType.registered()
    found = find_object_type(written, known)
    if found is None:
        limits = {item.address.object_type for item in await stores.limits.all()}
        known = {*known, *limits, *await stores.locks.object_types()}
        found = find_object_type(written, known)
    if found is None:
        raise ConfigurationError(
            f"unknown object type {written!r}, known are {', '.join(sorted(known))}."
            + (suggestion(written, known) or " Load the module that registers it with --tasks")
        )
    note = ""
    if found == TASK and ":" in key:
        key = key.rpartition(":")[2]
        note = f"limits go by the bare class name: this one is for each class {key!r}"
    elif found == TASK and key != DEFAULT and key not in task_classes:
        note = f"task class {key!r} is not registered here.{suggestion(key, task_classes)}"
    return replace(where, object_type=found, key=key), note
