"""Locks: which are in use, who holds them and who waits, and their forced release."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.actor import who
from nonet.operate.audited import audited
from nonet.operate.lists import ListQuery, Page, Remember, Text, always, cut
from nonet.rules.findings.refusal import lasting, named
from nonet.rules.permissions import Action
from nonet.stores.namespace.lock_board import (
    LockBoard,
    LockStatus,
    Names,
    Released,
    folded,
    object_type_of,
)

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

# A namespace with a million queued tasks has millions of keys; more would take too long.
_KEYS = 50_000

WARNING = (
    "a holder that still runs learns of it at its next renewal, and may overlap with the next "
    "holder until then: end it first if you can"
)


class LockQuery(ListQuery):
    """Which locks are listed."""

    text: Text = Field(default="", description="Part of the name.")
    object_type: Text = Field(
        default="", description="Only locks of this object type, such as Job."
    )
    show: int = Field(
        default=5, ge=1, le=1000, description="Name at most this many holders and waiters."
    )


@dataclass(frozen=True, slots=True)
class Locks(Page[LockStatus]):
    """Locks that are held or waited for, the most wanted first.

    Attributes:
        total: how many match.
        contended: on how many of these tasks wait.
        object_types: the types of the objects that locks in use protect.
        is_all: false: there are too many keys to find all locks that no task waits for.
        stale: settles that were refused so far, by attempts that no longer owned their task.
        lost: settles that were refused so far, by attempts that had lost a lock.
    """

    total: int = 0
    contended: int = 0
    object_types: Sequence[str] = ()
    is_all: bool = True
    stale: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class LocksInUse:
    """The names of the locks in use.

    Attributes:
        names: the most wanted first, then by name.
        waiting: how many tasks wait for each contended one.
        object_types: the types of the objects that they protect.
        is_all: False: locks that no task waits for are missing, as there are too many keys.
    """

    names: Sequence[str]
    waiting: dict[str, int]
    object_types: Sequence[str]
    is_all: bool

    def matching(self, object_type: str = "", text: str = "") -> list[str]:
        """Return the names of an object type (in any spelling; empty: any) that contain `text`."""
        return [
            name
            for name in self.names
            if folded(object_type) in ("", folded(object_type_of(name)))
            and text.lower() in name.lower()
        ]


async def find(stores: Stores, query: LockQuery, remember: Remember = always) -> Locks:
    """Return the locks that are held or waited for, the most wanted first."""
    found = await locks_in_use(stores.locks, remember)
    names = found.matching(query.object_type, query.text.strip())
    page, counters = cut(names, query), await stores.locks.counters()
    rows = await stores.locks.some(page.items, show=query.show)
    return Locks(
        [row for row in rows if row.is_held or row.waiting],
        page.cursor,
        total=len(names),
        contended=sum(name in found.waiting for name in names),
        object_types=found.object_types,
        is_all=found.is_all,
        stale=counters.get("settle:stale", 0),
        lost=counters.get("settle:lost", 0),
    )


async def get(stores: Stores, name: str, show: int = 100) -> LockStatus:
    """Return one lock, which may be free.

    Args:
        show: name at most this many holders and waiters.

    Raises:
        InvalidArgumentsError: the name is not that of a lock.
    """
    return await stores.locks.get(name, show=show)


@audited(Action.RELEASE, "lock {name}: release")
async def release(stores: Stores, name: str) -> Released:
    """Take a lock from its holders by force, and offer it to the waiting tasks.

    Raises:
        NotFoundError: it is free.
        InvalidArgumentsError: the name is not that of a lock.
    """
    return await stores.locks.release(name, who())


async def locks_in_use(board: LockBoard, remember: Remember = always) -> LocksInUse:
    """Read which locks are in use, in a number of commands that is bounded."""

    async def read() -> LocksInUse:
        held = await remember(("locks", "held"), 20.0, partial(board.names, keys=_KEYS))
        waiting = await board.waiting()
        return await asyncio.to_thread(arrange, held, waiting)  # there may be 100,000

    return await remember(("locks",), 2.0, read)


def arrange(held: Names, waiting: dict[str, int]) -> LocksInUse:
    """Put the names of locks in use into order.

    Args:
        waiting: how many tasks wait for each contended lock.
    """
    names = sorted(held.names | set(waiting), key=lambda name: (-waiting.get(name, 0), name))
    types = sorted({object_type_of(name) for name in names})
    return LocksInUse(names, waiting, types, held.is_all)


def consequences(found: LockStatus) -> list[str]:
    """Return what a forced release of a lock that is held would do, one sentence each."""
    if found.used is not None:
        lines = [f"would empty {found.lock} of {found.used}; the tasks that it counts continue"]
    else:
        lines = [f"would take it from {named(one)}: {lasting(one)}" for one in found.holders]
        if found.holding > len(found.holders):
            lines.append(f"and {found.holding - len(found.holders)} more")
        lines.append(f"warning: {WARNING}")
    return [*lines, f"{found.waiting} tasks wait for it"]
