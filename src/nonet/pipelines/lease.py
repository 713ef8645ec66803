"""Values of leasing: a leased row, the result of a load, and why a row is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Held:
    """Leased rows of one table that share a token and are renewed together.

    Attributes:
        owner: value of ``lease_owner``.
    """

    table: sa.Table
    keys: tuple[Any, ...]
    token: str
    owner: str


@dataclass(slots=True, eq=False)
class Lease:
    """One leased row, from its fetch to its release.

    Attributes:
        since: monotonic time before the lease was requested.
        due_at: when the row was due, as the fetch or `Leasing.load` read it.
        waited: seconds for which it had been due then.
        waiting: seconds for which it had waited for its related rows then.
        waiting_since: since when; None: it had not.
        suspect: the column ``suspect`` then. Not 0: a process died while it processed the row, so
            the row must run alone.
        attempt: number of this attempt, from 1; 0: not counted yet.
        related: its related rows.
    """

    key: Any
    token: str
    since: float
    due_at: datetime
    waited: float = 0.0
    waiting: float = 0.0
    waiting_since: datetime | None = None
    suspect: int = 0
    attempt: int = 0
    related: list[Held] = field(default_factory=list)


# Values of the column ``suspect`` of a row whose attempt has not ended: how the attempt began.
WITH_OTHERS, ALONE = 1, 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """A row that can be processed."""

    row: Any


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A row that becomes a dead letter.

    Attributes:
        attempts: how many attempts it had.
        series: identifies the attempts since its last success, in microseconds.
    """

    attempts: int
    series: int


class Stale(Exception):
    """The lease was lost: another worker may have the row."""


class RelatedBusy(Exception):
    """A related row is leased by others."""


class NotSelected(Exception):
    """`Pipeline.load` does not select the row."""


def lease_of(row: Any, token: str, since: float) -> Lease:
    """The lease of a row of `eligibility.fetch_statement`."""
    key, due_at, now, waiting_since, suspect, *_ = row
    waiting = 0.0 if waiting_since is None else (now - waiting_since).total_seconds()
    waited = (now - due_at).total_seconds()
    return Lease(key, token, since, due_at, waited, waiting, waiting_since, suspect)


def by_token(leases: Sequence[Lease]) -> dict[str, list[Lease]]:
    """Group leases by their tokens."""
    groups: dict[str, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.token, []).append(lease)
    return groups


def microseconds(at: datetime | None) -> int:
    """A time as a series, see `Exhausted`."""
    return 0 if at is None else round(at.timestamp() * 1e6)
