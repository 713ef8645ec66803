"""Locks for operators: which are in use, the contended ones first, and what a release would do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nonet.operate.lists import Remember, always
from nonet.rules.findings.refusal import lasting, named
from nonet.stores.namespace.lock_board import LockBoard, LockStatus, Names, object_type_of

# A namespace with a million queued tasks has millions of keys; more would take too long.
_KEYS = 50_000

WARNING = (
    "a holder that still runs learns of it at its next renewal, and may overlap with the next "
    "holder until then: end it first if you can"
)


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
        """Return the names of an object type (empty: any) that contain `text`."""
        return [
            name
            for name in self.names
            if object_type in ("", object_type_of(name)) and text.lower() in name.lower()
        ]


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
        told = [f"would empty {found.lock} of {found.used}; the tasks that it counts continue"]
    else:
        told = [f"would take it from {named(one)}: {lasting(one)}" for one in found.holders]
        if found.holding > len(found.holders):
            told.append(f"and {found.holding - len(found.holders)} more")
        told.append(f"warning: {WARNING}")
    return [*told, f"{found.waiting} tasks wait for it"]
