"""One delivery of a task to a worker, as the script fetch returns it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One delivery of a task to a worker.

    Attributes:
        state: ``running``, or ``dying`` for a task that only needs its row in SQL.
        used: attempts used before this delivery.
        deaths: number of workers that died while running it.
        crashes: number of processes that died while running no other task.
        suspect: how often a process died while running it and other tasks, since its last attempt
            that ended normally; 0: it is no suspect.
        judge: its worker died while running no other task, so the retry policy decides whether
            it runs again.
        locks: its locks, see `nonet.tasks.locks.encode_locks`.
        held: a mark for each of its locks and limiters that shows which limiters hold; or empty.
        saved: the encoded checkpoint of an earlier attempt, or empty.
        waited: how long it was parked before this delivery, in microseconds.
        error, reason, detail: for a dying task, its error document; without one, reason and detail.
        died: generation in which a dying task died.
        tenant: the tenant of the task, see `nonet.rules.fairness`; empty: no tenant, in a stream
            that tenants share; None: no tenant.
        runnable_since: when it became runnable, in microseconds, if it waited in the list of its
            tenant; 0: see the id of its entry.
    """

    id: str
    gen: str
    fence: str
    stream_key: str
    entry: str
    envelope: bytes
    locks: str
    state: str = "running"
    used: int = 0
    deaths: int = 0
    held: str = ""
    waited: int = 0
    error: bytes = b""
    reason: str = ""
    died: str = ""
    detail: str = ""
    saved: bytes = b""
    crashes: int = 0
    suspect: int = 0
    judge: bool = False
    tenant: str | None = None
    runnable_since: int = 0

    @property
    def attempt(self) -> int:
        """Number of the attempt that this delivery is, from 1."""
        return self.used + 1


@cache
def takes_slot(stream_key: str) -> bool:
    """Whether the deliveries of a stream take a slot; suspects and burials do not.

    >>> takes_slot("tasks:normal:small"), takes_slot("burials:normal:small")
    (True, False)
    """
    return not stream_key.startswith(("suspects:", "burials:"))


def read_delivery(row: Sequence[bytes]) -> Delivery:
    """Parse a row of the script fetch.

    Raises:
        ValueError: the row cannot be parsed.
    """
    id, gen, fence, stream_key, entry, envelope, locks, *more = row
    whose, *rest = more or (b"",)
    since, _, name = whose.decode(errors="replace").partition("|")
    tenant, runnable_since = name if whose else None, int(since or 0)
    first = id.decode(), gen.decode(), fence.decode(), stream_key.decode(), entry.decode()
    plain = *first, envelope, locks.decode()
    if rest:
        return Delivery(*plain, *(*_read_rest(*rest), tenant, runnable_since))
    return Delivery(*plain, tenant=tenant, runnable_since=runnable_since)


def _read_rest(
    state: bytes,
    used: bytes,
    deaths: bytes,
    held: bytes,
    waited: bytes = b"0",
    error: bytes = b"",
    reason: bytes = b"",
    died: bytes = b"",
    detail: bytes = b"",
    saved: bytes = b"",
    crashes: bytes = b"0",
    suspect: bytes = b"0",
    judge: bytes = b"0",
) -> tuple[Any, ...]:
    return (
        *(state.decode(), int(used), int(deaths), held.decode(), int(waited), error),
        *(reason.decode(), died.decode(), detail.decode(errors="replace"), saved),
        *(int(crashes), int(suspect), judge == b"1"),
    )
