"""Who may do what in the dashboard and the API: roles, their actions, and principals. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class Action(StrEnum):
    """What a principal may do. All but `READING` change something."""

    STATUS = "status"
    """See the state of a task whose id the principal knows."""
    RESULT = "result"
    """See the result of a task whose id the principal knows; each time is audited."""
    READ = "read"
    """See all pages: names, states, times, figures and types of errors."""
    REVEAL = "reveal"
    """See arguments and results; each time is audited."""
    SUBMIT = "submit"
    """Submit tasks."""
    CANCEL = "cancel"
    """Cancel tasks."""
    SIGNAL = "signal"
    """Send events to workflows, such as an approval that a step waits for."""
    RESUBMIT = "resubmit"
    """Submit ended tasks, dead letters and quarantined messages again."""
    PAUSE = "pause"
    """Pause and resume streams, classes and periodic entries."""
    SCHEDULE = "schedule"
    """Add and remove schedules in the database; run periodic entries and delayed tasks now."""
    DRAIN = "drain"
    """Let workers finish their tasks and end."""
    DISCARD = "discard"
    """Delete dead letters and quarantined messages."""
    LIMIT = "limit"
    """Change limits."""
    RELEASE = "release"
    """Release locks by force."""
    NOTE = "note"
    """Mark findings as seen, and save filters, for all operators."""
    LINK = "link"
    """Make links by which others see the pages as viewers."""
    AUDIT = "audit"
    """See who did what in the dashboard and the API."""


class Role(StrEnum):
    """A set of actions, from the smallest to the largest."""

    SUBMITTER = "submitter"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER = frozenset({Action.STATUS, Action.READ})
ACTIONS: Mapping[Role, frozenset[Action]] = {
    Role.SUBMITTER: frozenset({Action.STATUS, Action.RESULT, Action.SUBMIT}),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _VIEWER
    | {Action.SUBMIT, Action.CANCEL, Action.SIGNAL, Action.RESUBMIT, Action.PAUSE}
    | {Action.SCHEDULE, Action.DRAIN, Action.NOTE},
    Role.ADMIN: frozenset(Action),
}
"""The actions of each role."""

READING = frozenset({Action.STATUS, Action.RESULT, Action.READ, Action.REVEAL, Action.AUDIT})
"""Actions that change nothing, which read-only mode allows."""

_ORDER = tuple(Role)


class Grant(NamedTuple):
    """A role in some namespaces or (None) in all."""

    role: Role
    namespaces: tuple[str, ...] | None = None


def highest(grants: Iterable[Grant]) -> Grant | None:
    """Return the grant whose role has the most actions; None without any."""
    return max(grants, key=lambda grant: _ORDER.index(grant.role), default=None)


def read_roles(text: str) -> dict[str, Grant]:
    """Read which value of a claim gives which role, perhaps in some namespaces only.

    Raises:
        ValueError: names the part that is wrong.

    >>> read_roles("nonet-admins:admin, staff:viewer@staging+test")["staff"]
    Grant(role=<Role.VIEWER: 'viewer'>, namespaces=('staging', 'test'))
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        value, _, given = part.rpartition(":")
        role, at, names = given.partition("@")
        namespaces = tuple(names.split("+")) if at else None
        if not value or role not in _ORDER or (namespaces and not all(namespaces)):
            raise ValueError(
                f"{part!r} is not VALUE:ROLE or VALUE:ROLE@NAMESPACE+NAMESPACE, with one of "
                f"{', '.join(_ORDER)}"
            )
        found[value] = Grant(Role(role), namespaces)
    return found


class Principal(Struct, frozen=True):
    """A user or a token.

    Attributes:
        name: shown in the audit, e.g. ``alice`` or ``token:ci``.
        role: what it may do.
        namespaces: where it may do that; None: in all.
        session: digest of the session; empty for a token or a proxy's header.

    Example:
        >>> ci = Principal("token:ci", Role.SUBMITTER, namespaces=("staging",))
        >>> ci.may(Action.SUBMIT), ci.may(Action.CANCEL), ci.may_enter("production")
        (True, False, False)
    """

    name: str
    role: Role
    namespaces: tuple[str, ...] | None = None
    session: str = ""

    def may(self, action: Action) -> bool:
        """Return whether it may do something."""
        return action in ACTIONS[self.role]

    def may_enter(self, namespace: str) -> bool:
        """Return whether its role holds in a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    @property
    def sees_texts(self) -> bool:
        """Whether it sees what `nonet.rules.viewing` hides: texts of errors, labels, progress."""
        return self.role in (Role.OPERATOR, Role.ADMIN)
