"""Who may do what in the dashboard and the API: actions, roles and principals. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Action(StrEnum):
    """What a principal may do. All but `READ`, `DETAILS` and `REVEAL` change something."""

    READ = "read"
    """See names, states, times, figures and types of errors."""
    DETAILS = "details"
    """See what tasks may put secrets in: labels, progress, errors and tracebacks."""
    REVEAL = "reveal"
    """See arguments and results; each time is audited."""
    SUBMIT = "submit"
    """Submit tasks."""
    CANCEL = "cancel"
    """Cancel tasks."""
    RESUBMIT = "resubmit"
    """Submit ended tasks, dead letters and quarantined messages again."""
    PAUSE = "pause"
    """Pause and resume streams, classes and periodic entries."""
    SCHEDULE = "schedule"
    """Run periodic entries and delayed tasks now."""
    DRAIN = "drain"
    """Let workers finish their tasks and end."""
    DISCARD = "discard"
    """Delete dead letters and quarantined messages."""
    LIMIT = "limit"
    """Change limits."""
    RELEASE = "release"
    """Release locks by force."""
    AUDIT = "audit"
    """See who did what in the dashboard and the API."""


class Role(StrEnum):
    """A set of actions."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER = frozenset({Action.READ})
_OPERATOR = _VIEWER | {
    Action.DETAILS,
    Action.SUBMIT,
    Action.CANCEL,
    Action.RESUBMIT,
    Action.PAUSE,
    Action.SCHEDULE,
    Action.DRAIN,
}
ACTIONS: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: frozenset(Action),
}
"""The actions of each role."""

_ORDER = tuple(Role)


def highest(roles: Iterable[Role]) -> Role | None:
    """Return the role with the most actions; None without any."""
    return max(roles, key=_ORDER.index, default=None)


def read_roles(text: str) -> dict[str, Role]:
    """Read which value of a claim gives which role.

    Raises:
        ValueError: names the part that is wrong.

    >>> read_roles("nonet-admins:admin, staff:viewer")["staff"]
    <Role.VIEWER: 'viewer'>
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        value, _, role = part.rpartition(":")
        if not value or role not in _ORDER:
            raise ValueError(f"{part!r} is not VALUE:ROLE, with one of {', '.join(_ORDER)}")
        found[value] = Role(role)
    return found


READING = frozenset({Action.READ, Action.DETAILS, Action.REVEAL, Action.AUDIT})
"""Actions that change nothing, which read-only mode allows."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a token.

    Attributes:
        name: shown in the audit, e.g. ``alice`` or ``token:ci``.
        actions: what it may do.
        classes: patterns of full class names, ``reports:*``, to which a token is scoped; None: all
            classes, and what belongs to no class.
        session: digest of the session; empty for a token or a proxy's header.
        role: for people; empty for a token with actions of its own.

    Example:
        >>> ci = Principal("token:ci", frozenset({Action.SUBMIT}), classes=("reports:*",))
        >>> ci.may(Action.SUBMIT, "reports:Daily"), ci.may(Action.SUBMIT)
        (True, False)
    """

    name: str
    actions: frozenset[Action]
    classes: tuple[str, ...] | None = None
    session: str = ""
    role: str = ""

    def may(self, action: Action, task_class: str | None = None) -> bool:
        """Return whether it may do something, for a class or (None) for what has no class."""
        if action not in self.actions:
            return False
        if self.classes is None:
            return True
        return task_class is not None and any(
            fnmatchcase(task_class, pattern) for pattern in self.classes
        )
