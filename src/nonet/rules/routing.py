"""To which namespace a task belongs, by its tenant. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OTHERS = "*"
"""The tenant in routes that stands for all that are not listed."""

ARRIVAL = "arrival:"
"""What begins `Pause.what` of an arriving tenant."""

_TERM = "tenant|"


def namespace_of(routes: Mapping[str, str], tenant: str) -> str:
    """Return the namespace to which tasks of a tenant belong; empty: where they are submitted.

    >>> routes = {"lhcb": "a", "*": "main"}
    >>> namespace_of(routes, "lhcb"), namespace_of(routes, "atlas"), namespace_of({}, "lhcb")
    ('a', 'main', '')
    """
    return routes.get(tenant) or routes.get(OTHERS, "")


def belongs_to(routes: Mapping[str, str], tenant: str, namespace: str) -> bool:
    """Return whether a namespace has the tasks of a tenant.

    >>> belongs_to({"lhcb": "a"}, "lhcb", "main"), belongs_to({"lhcb": "a"}, "atlas", "main")
    (False, True)
    """
    return namespace_of(routes, tenant) in ("", namespace)


def tenant_in(terms: str) -> str:
    """Return the tenant in the terms of a submission; empty: it has none.

    >>> tenant_in("by|7\\ntenant|lhcb"), tenant_in("by|7")
    ('lhcb', '')
    """
    lines = (line for line in terms.split("\n") if line.startswith(_TERM))
    return next((line.removeprefix(_TERM) for line in lines), "")


class Arrival(NamedTuple):
    """A tenant that comes from another namespace: a pause of its tasks with locks.

    Attributes:
        source: the namespace that it leaves.
        with_delayed: its delayed tasks come, too.
    """

    tenant: str
    source: str
    with_delayed: bool = False

    @property
    def what(self) -> str:
        """As `nonet.rules.pauses.Pause.what`."""
        return f"{ARRIVAL}{self.tenant}"

    @property
    def reason(self) -> str:
        """The reason of the pause.

        >>> Arrival("lhcb", "a").reason
        'until namespace a has none of its tasks'
        """
        more = ", and its delayed tasks come" if self.with_delayed else ""
        return f"until namespace {self.source} has none of its tasks{more}"


_REASON = re.compile(r"until namespace (\S+) has none of its tasks(, and its delayed)?")


def arrival_of(what: str, reason: str) -> Arrival | None:
    """Return the arrival that a pause is; None for others.

    >>> arrival_of("arrival:lhcb", Arrival("lhcb", "a", True).reason)
    Arrival(tenant='lhcb', source='a', with_delayed=True)
    """
    found = _REASON.match(reason) if what.startswith(ARRIVAL) else None
    return Arrival(what.removeprefix(ARRIVAL), found[1], bool(found[2])) if found else None


def split_problem(what: str, home: str, homes: Sequence[str]) -> str:
    """Return why tasks cannot be submitted together; empty: all belong to one namespace.

    Args:
        what: ``group``, ``workflow`` …
        home: the namespace that replaces '' in `homes`.
        homes: the namespace of each task.

    >>> split_problem("group", "main", ["a", "a"])
    ''
    >>> split_problem("group", "main", ["", "a"]).partition(":")[0]
    'its group would be in the namespaces a and main'
    """
    found = sorted({name or home for name in homes})
    if len(found) < 2:
        return ""
    return (
        f"its {what} would be in the namespaces {', '.join(found[:-1])} and {found[-1]}: "
        f"a {what} belongs to one; submit the tasks of each tenant in a {what} of their own"
    )


def away_problem(what: str, namespace: str, home: str) -> str:
    """Return why a running task cannot submit something together with itself.

    Args:
        what: ``group``, ``workflow`` …
        namespace: where it runs.
        home: where the tenant of the new tasks belongs.

    >>> away_problem("group", "main", "a").partition(":")[0]
    'the group would be in namespace a, but its parent runs in namespace main'
    """
    return (
        f"the {what} would be in namespace {home}, but its parent runs in namespace "
        f"{namespace}: they belong to one; submit tasks of another tenant alone, with schedule()"
    )
