"""Limits: which are in force and how full they are; set one by hand, and remove it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError, suggestion
from nonet.operate.audited import audited
from nonet.operate.lists import ListQuery, Page, Remember, Text, always, cut
from nonet.operate.locks import locks_in_use
from nonet.rules.limit_changes import SHOWN, EffectiveLimit, ParsedAddress, Source
from nonet.rules.limits import DEFAULT, Limit, LimitAddress, applying, find_object_type
from nonet.rules.permissions import Action
from nonet.tasks.locks import TASK, LockedObjectType

if TYPE_CHECKING:
    from nonet.stores.namespace.ceilings import Load
    from nonet.stores.namespace.lock_board import LockStatus
    from nonet.stores.stores import Stores

# Limiters whose classes are asked for the limits that they declare.
_MOST_DECLARED = 500


class LimitQuery(ListQuery):
    """Which limits are listed."""

    text: Text = Field(
        default="", description="Only limits with this in their object type, key, action or VO."
    )


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit in force, and how full it is.

    Attributes:
        name: of its limiter, such as ``limiter:conc:job:7``.
        limiter: ``concurrency`` or ``rate``.
        object_type: of the objects that it protects.
        key: the object; ``default``: each without a limit of its own.
        action: the action that it limits; empty: all.
        vo: the VO whose own limit it is, or empty.
        limit: how many tasks; null: the limit is off.
        window_seconds: of a rate: in which time they start.
        used: how many tasks count now; null for ``default``, which is counted for each key.
        waiting: how many tasks wait; null for ``default``.
        back_seconds: of a rate: when the first start leaves the window.
        source: ``configuration``, ``override`` (set by hand) or ``class`` (declared by a class).
        configured: the configured limit that is overridden.
        by, since: who set it by hand, and when.
    """

    name: str
    limiter: str
    object_type: str
    key: str
    action: str
    vo: str
    limit: int | None
    window_seconds: float | None
    used: int | None
    waiting: int | None
    back_seconds: float | None
    source: Source
    configured: Limit | None
    by: str
    since: datetime | None

    @property
    def address(self) -> LimitAddress:
        """What it applies to."""
        return LimitAddress(self.object_type, self.key, self.action, self.limiter, self.vo)

    @property
    def value(self) -> Limit:
        """The limit with its window."""
        return Limit(self.limit, self.window_seconds)


async def find(stores: Stores, query: LimitQuery, remember: Remember = always) -> Page[LimitView]:
    """Return the limits in force: configured, set by hand, or declared by a class and in use.

    Those that tasks wait for come first. Of limiters that no limit is set for, the 500 that are
    wanted most are asked for the limit that their class declares.
    """
    names = (await locks_in_use(stores.locks, remember)).names
    found = await stores.limits.all()
    limiters = (name for name in names if LimitAddress.of_counter(name) is not None)
    seen = await stores.locks.some(list(islice(limiters, _MOST_DECLARED)), show=SHOWN)
    counters = {item.lock: item for item in seen}
    others = [item.address.counter for item in found if item.address.counter not in counters]
    counters |= {item.lock: item for item in await stores.locks.some(others, show=1)}
    found += _declared(seen, found)
    views = [_view(item, counters.get(item.address.counter)) for item in found]
    wanted = [view for view in views if query.text.lower() in str(view.address).lower()]
    return cut(sorted(wanted, key=lambda view: (-(view.waiting or 0), view.address)), query)


async def get(stores: Stores, address: LimitAddress) -> LimitView:
    """Return the limit of exactly this address.

    Raises:
        NotFoundError: there is none.
    """
    counters = await stores.locks.some([address.counter], show=SHOWN)
    known = await stores.limits.all()
    for item in (*known, *_declared(counters, known)):
        if item.address == address:
            return _view(item, counters[0] if counters else None)
    raise NotFoundError(f"no limit is set for {address.counter}: 'task-run limits list' shows all")


async def ceilings(stores: Stores, query: ListQuery) -> Page[Load]:
    """Return how many tasks there are: in all, by stream, class and tenant, with their ceilings."""
    return cut(await stores.ceilings.loads(), query)


@audited(Action.LIMIT, "limit {address}: {limit}")
async def override(stores: Stores, address: LimitAddress, limit: Limit) -> None:
    """Set a limit by hand, from the next task that starts until Redis loses its data."""
    await stores.limits.override(address, limit, who())


@audited(Action.LIMIT, "limit {address}: as configured")
async def unset(stores: Stores, address: LimitAddress) -> None:
    """Remove a limit that was set by hand; the configured one applies again.

    Raises:
        NotFoundError: none was set by hand.
    """
    if not await stores.limits.go_back(address, who()):
        raise NotFoundError(
            f"{address}: no limit was set by hand; 'task-run limits list' shows all"
        )


async def resolve(
    parsed: ParsedAddress, stores: Stores, task_classes: Collection[str]
) -> tuple[LimitAddress, str]:
    """Find the object type of an address: registered here, or known to the namespace.

    Args:
        task_classes: names of the task classes that are registered here.

    Returns:
        The address with the name of the type, and what the operator should know of it.

    Raises:
        ConfigurationError: the type is unknown.
    """
    where = parsed.address
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
    note, bare = "", {name.rpartition(":")[2] for name in task_classes}
    if found == TASK and ":" in key:
        key = key.rpartition(":")[2]
        note = f"limits go by the bare class name: this one is for each class {key!r}"
    elif found == TASK and key != DEFAULT and key not in bare:
        note = f"task class {key!r} is not registered here.{suggestion(key, bare)}"
    return replace(where, object_type=found, key=key), parsed.note or note


def _view(item: EffectiveLimit, counter: LockStatus | None) -> LimitView:
    address = item.address
    counted = counter if address.key != DEFAULT else None
    return LimitView(
        name=address.counter,
        limiter=address.limiter,
        object_type=address.object_type,
        key=address.key,
        action=address.action,
        vo=address.vo,
        limit=item.limit.limit,
        window_seconds=item.limit.window_seconds,
        used=counted.used if counted else None,
        waiting=counted.waiting if counted else None,
        back_seconds=counted.back_seconds if counted else None,
        source=item.source,
        configured=item.configured,
        by=item.by,
        since=item.since,
    )


def _declared(
    found: Iterable[LockStatus], limits: Iterable[EffectiveLimit]
) -> list[EffectiveLimit]:
    """Return the limits that only classes declare, of the limiters in use.

    Args:
        limits: the other limits, which are preferred.
    """
    known = {item.address for item in limits}
    made = []
    for lock in found:
        address = LimitAddress.of_counter(lock.lock)
        if address is None or lock.limit is None:
            continue
        if not known & {*applying(address), *applying(replace(address, vo=""))}:
            made.append(EffectiveLimit(address, Limit(lock.limit, lock.window_seconds), "class"))
    return made
